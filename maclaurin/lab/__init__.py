"""The theory of softmax against linear attention, as experiments: each computes a claim and says whether it held.

    result = maclaurin.lab.separation(n=1000, a1=0.7)
    print(result.table()); result.plot(); result.to_json()

In the shell `maclaurin lab separation --n 1000 --a1 0.7`; `maclaurin lab all --quick` runs them all.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from maclaurin.lab.result import Result

# name in the shell -> one line about it; the function is the name with underscores, in the module of that name
EXPERIMENTS = {
    "series": "softmax as a sum of recurrent networks of every order",
    "separation": "two data sets that softmax tells apart and linear attention does not",
    "long-prompt": "softmax becomes linear as the prompt grows: how fast, and when it breaks",
    "dynamics": "every mixer as a linear time-varying system: eigenvalues, kernel, rank",
    "injectivity": "do two queries get the same weights?",
    "locality": "how much attention goes to the neighbours, and what it is worth",
    "approximation": "how close linear attention can come to softmax, and with how large a state",
    "rotation": "rotations that depend on the input: random features, ripples, parity",
    "memory": "bytes of state and time per token against the context",
}

# pieces of experiments that are of use by themselves -> their modules
HELPERS = {
    "card": "maclaurin.lab.cards",
    "to_dsf": "maclaurin.lab.experiments.dynamics",
    "icl_regression": "maclaurin.lab.experiments.long_prompt",
    "linearisation_report": "maclaurin.lab.experiments.long_prompt",
}

__all__ = ["EXPERIMENTS", "HELPERS", "Result"]


def __getattr__(name: str) -> Any:
    """maclaurin.lab.NAME is the experiment or the helper, imported when it is asked for."""
    if name in HELPERS:
        return getattr(import_module(HELPERS[name]), name)
    if name.replace("_", "-") in EXPERIMENTS:
        return getattr(import_module(f"maclaurin.lab.experiments.{name}"), name)
    raise AttributeError(f"module 'maclaurin.lab' has no attribute {name!r}")
