"""Bytes of state and time a token against the context, measured and predicted, and where the lines cross."""

from maclaurin.lab.experiments.memory.experiment import memory

__all__ = ["memory"]
