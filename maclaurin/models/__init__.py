"""Language and vision models on the Hugging Face classes. Importing this package registers them with the Auto classes."""

from maclaurin.models.cache import StateCache
from maclaurin.models.config import MaclaurinConfig
from maclaurin.models.decoder import MaclaurinForCausalLM, MaclaurinModel
from maclaurin.models.vision import MaclaurinForImageClassification, MaclaurinVisionModel
from maclaurin.models.vision_config import MaclaurinVisionConfig

__all__ = [
    "MaclaurinConfig",
    "MaclaurinForCausalLM",
    "MaclaurinForImageClassification",
    "MaclaurinModel",
    "MaclaurinVisionConfig",
    "MaclaurinVisionModel",
    "StateCache",
]
