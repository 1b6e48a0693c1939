"""Training: a recipe, and the Hugging Face Trainer made safe against interruption."""

from maclaurin.training.recipe import Recipe
from maclaurin.training.run import Result, train
from maclaurin.training.trainer import NonFiniteLossError

__all__ = ["NonFiniteLossError", "Recipe", "Result", "train"]
