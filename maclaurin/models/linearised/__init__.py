"""Models of `transformers` with linear attention in place of softmax. Importing it registers their classes."""

from maclaurin.models.linearised.classes import linearise

__all__ = ["linearise"]
