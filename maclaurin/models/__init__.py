"""Language and vision models on the Hugging Face classes. Importing this package registers them with the Auto classes."""

from maclaurin.models.auto import register
from maclaurin.models.cache import StateCache
from maclaurin.models.config import MaclaurinConfig
from maclaurin.models.decode_graph import DecodeGraph
from maclaurin.models.decoder import MaclaurinForCausalLM, MaclaurinModel
from maclaurin.models.heads import MaclaurinForSequenceClassification, MaclaurinForTokenClassification
from maclaurin.models.vision import MaclaurinForImageClassification, MaclaurinVisionModel
from maclaurin.models.vision_config import MaclaurinVisionConfig

__all__ = [
    "DecodeGraph",
    "MaclaurinConfig",
    "MaclaurinForCausalLM",
    "MaclaurinForImageClassification",
    "MaclaurinForSequenceClassification",
    "MaclaurinForTokenClassification",
    "MaclaurinModel",
    "MaclaurinVisionConfig",
    "MaclaurinVisionModel",
    "StateCache",
]

register(
    MaclaurinConfig,
    {
        "AutoModel": MaclaurinModel,
        "AutoModelForCausalLM": MaclaurinForCausalLM,
        "AutoModelForSequenceClassification": MaclaurinForSequenceClassification,
        "AutoModelForTokenClassification": MaclaurinForTokenClassification,
    },
)
register(
    MaclaurinVisionConfig,
    {"AutoModel": MaclaurinVisionModel, "AutoModelForImageClassification": MaclaurinForImageClassification},
)
