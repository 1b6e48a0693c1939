"""What a trained model can do."""

from maclaurin.evals.text import TextScore, score_text

__all__ = ["TextScore", "score_text"]
