"""Language models on the Hugging Face classes. Importing this package registers them with the Auto classes."""

from maclaurin.models.cache import StateCache
from maclaurin.models.config import MaclaurinConfig
from maclaurin.models.decoder import MaclaurinForCausalLM, MaclaurinModel

__all__ = ["MaclaurinConfig", "MaclaurinForCausalLM", "MaclaurinModel", "StateCache"]
