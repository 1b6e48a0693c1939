"""Softmax as linear attention for long prompts (Boursier and Boyer, arXiv 2512.11784): its limit and its error."""

from maclaurin.lab.experiments.long_prompt.experiment import long_prompt
from maclaurin.lab.experiments.long_prompt.linearisation import Head, LinearisationReport, linearisation_report
from maclaurin.lab.experiments.long_prompt.risks import Regression, RegressionReport, icl_regression

__all__ = [
    "Head",
    "LinearisationReport",
    "Regression",
    "RegressionReport",
    "icl_regression",
    "linearisation_report",
    "long_prompt",
]
