"""Trained softmax models made linear, and published checkpoints loaded. Importing it registers the converted classes."""

from maclaurin.models.linearised import linearise

__all__ = ["linearise"]
