"""Do two queries get the same weights? InLine's argument against dividing by a sum, checked."""

from maclaurin.lab.experiments.injectivity.experiment import injectivity

__all__ = ["injectivity"]
