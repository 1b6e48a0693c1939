"""How much attention goes to the neighbours, and what it is worth: local mass and masks, on trained models."""

from maclaurin.lab.experiments.locality.experiment import locality

__all__ = ["locality"]
