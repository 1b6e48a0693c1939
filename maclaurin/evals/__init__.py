"""What a trained model can do, and what mixers can learn."""

from maclaurin.evals.text import TextScore, score_text

__all__ = ["TextScore", "score_text"]
