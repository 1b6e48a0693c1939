"""Scores of trained models, and suites that train small models to see what mixers can learn."""

from maclaurin.evals.text import TextScore, score_text

__all__ = ["TextScore", "score_text"]
