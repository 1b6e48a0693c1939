"""Softmax separates two data sets that linear attention does not (arXiv 2310.11685): for whom, and within which limits."""

from maclaurin.lab.experiments.separation.experiment import separation
from maclaurin.lab.experiments.separation.formulas import Setting
from maclaurin.lab.experiments.separation.probe import Report, probe

__all__ = ["Report", "Setting", "probe", "separation"]
