"""How close linear attention comes to softmax: constructions and bounds of MetaLA, features of LUNA."""

from maclaurin.lab.experiments.approximation.experiment import approximation

__all__ = ["approximation"]
