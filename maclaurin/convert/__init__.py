"""Conversion of trained softmax models; import of published checkpoints. Importing it registers the converted classes."""

from maclaurin.models.linearised import linearise

__all__ = ["linearise"]
