"""Rotations that depend on the input: random features, hidden rotations of softmax, ripples, parity."""

from maclaurin.lab.experiments.rotation.experiment import rotation

__all__ = ["rotation"]
