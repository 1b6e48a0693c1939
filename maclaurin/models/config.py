"""The configuration of a Maclaurin language model: the fields of a Llama, and a mixer per layer."""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import PretrainedConfig

from maclaurin.common.arguments import one_of
from maclaurin.mixers.base import checked_init
from maclaurin.mixers.registry import mixer_entry
from maclaurin.models import fields
from maclaurin.models.tensor_styles import PLAN

SIZES: dict[str, dict[str, int]] = {
    "tiny": {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4},
    "small": {"hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 20, "num_attention_heads": 16},
    "medium": {"hidden_size": 1536, "intermediate_size": 3072, "num_hidden_layers": 27, "num_attention_heads": 24},
    "large": {"hidden_size": 3072, "intermediate_size": 6144, "num_hidden_layers": 20, "num_attention_heads": 16},
    "large-depth": {"hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 60, "num_attention_heads": 32},
}
MLPS = ("swiglu", "geglu", "none")


class MaclaurinConfig(PretrainedConfig):
    """Fields are named as in LlamaConfig.

    mixer: one name for all layers, or a list with one per layer; a shorter list is a pattern that repeats, so that
    `["mlstm", "sliding-window"]` alternates.
    mixer_options: options for every layer's mixer, or a dict of options by mixer name.
    logit_cap: c of the soft cap c·tanh(z/c) on the logits, None for none.
    mlp: "swiglu", "geglu" with tanh's GELU in place of SiLU, or "none" for layers that are a mixer alone, as those of Mamba.
    mlp_bias: whether its projections have biases.
    embedding_scale: what embeddings are multiplied by before the first layer. zero_centered_norms: norms around the layers
    multiply by 1 + w in place of w. Gemma has both.
    init: "torch" (PyTorch's defaults in the layers, N(0, initializer_range) in the embeddings) or "llama" (everywhere).
    """

    model_type = "maclaurin"
    base_model_tp_plan: ClassVar[dict[str, Any]] = PLAN
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012 - the Trainer adds a list to it

    vocab_size: int = 32000
    hidden_size: int = 1024
    intermediate_size: int = 2048
    num_hidden_layers: int = 20
    num_attention_heads: int = 16
    num_key_value_heads: int | None = None
    mixer: str | list[str] = "2mamba"
    mixer_options: dict[str, Any] | None = None
    mlp: str = "swiglu"
    mlp_bias: bool = False
    embedding_scale: float = 1.0
    zero_centered_norms: bool = False
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-5
    logit_cap: float | None = None
    initializer_range: float = 0.02
    init: str = "torch"
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    tie_word_embeddings: bool = False

    @classmethod
    def of_size(cls, size: str, **fields: Any) -> MaclaurinConfig:
        """`tiny` for a laptop, the others as in the thesis (arXiv 2507.23632 and 2602.17363)."""
        one_of("size", size, tuple(SIZES))
        return cls(**{**SIZES[size], **fields})

    def __post_init__(self, **kwargs: Any) -> None:
        self._check_fields()
        fields.inherited(self, kwargs)
        pattern = self._pattern
        if not 1 <= len(pattern) <= self.num_hidden_layers:
            raise ValueError(
                f"mixer must name one mixer for each of the {self.num_hidden_layers} layers, or a shorter pattern that "
                f"repeats, got {len(pattern)}"
            )
        for name in pattern:
            mixer_entry(name)
        super().__post_init__(**kwargs)  # reads layer_types

    def _check_fields(self) -> None:
        """Types and ranges, before anything is built from them."""
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "max_position_embeddings"):
            fields.whole(name, getattr(self, name))
        fields.whole("num_hidden_layers", self.num_hidden_layers, largest=fields.MOST_LAYERS)
        if self.num_key_value_heads is not None:
            fields.whole("num_key_value_heads", self.num_key_value_heads)
        for name in ("rms_norm_eps", "initializer_range", "embedding_scale"):
            fields.real(name, getattr(self, name))
        if self.logit_cap is not None:
            fields.real("logit_cap", self.logit_cap, smallest=1e-3)
        for name in ("use_cache", "tie_word_embeddings", "mlp_bias", "zero_centered_norms"):
            fields.flag(name, getattr(self, name))
        for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
            value = getattr(self, name)
            for one in value if name == "eos_token_id" and isinstance(value, list) else (value,):
                fields.token_id(name, one)
        self.init = checked_init(self.init)
        one_of("mlp", self.mlp, MLPS)
        if self.mlp_bias and self.mlp == "none":
            raise ValueError("mlp_bias needs an MLP, got mlp='none'")
        fields.names("mixer", self.mixer)
        fields.options("mixer_options", self.mixer_options)
        embeddings = self.vocab_size
        mlps = 3 * self.intermediate_size * self.num_hidden_layers if self.mlp != "none" else 0
        fields.parameters(self.hidden_size * (embeddings + mlps + self.hidden_size * self.num_hidden_layers))

    @property
    def _pattern(self) -> list[str]:
        return [self.mixer] if isinstance(self.mixer, str) else list(self.mixer)

    def layer_mixers(self) -> list[str]:
        """The name of every layer's mixer."""
        pattern = self._pattern
        return [pattern[layer % len(pattern)] for layer in range(self.num_hidden_layers)]

    @property
    def layer_types(self) -> list[str]:
        """What every layer is in the words of transformers, by which its tools know what they can cut and cache."""
        entries = [mixer_entry(name) for name in self.layer_mixers()]
        return [entry.mixer.layer_type(entry.preset | named_options(self.mixer_options, entry.name)) for entry in entries]

    def options_of(self, name: str) -> dict[str, Any]:
        """The options of the mixers of that name."""
        options = named_options(self.mixer_options, name)
        if not options.get("causal", True):
            raise ValueError("a language model sees only what came before: mixer_options must not hold causal=False")
        known = mixer_entry(name).options()
        if self.num_key_value_heads not in (None, self.num_attention_heads):
            if "num_kv_heads" not in known:
                raise ValueError(
                    f"mixer {name!r} cannot group heads: num_key_value_heads must be {self.num_attention_heads}"
                )
            options.setdefault("num_kv_heads", self.num_key_value_heads)
        return {"init": self.init, **options}


def named_options(options: dict[str, Any] | None, name: str) -> dict[str, Any]:
    """The options of one mixer, from options for all or by mixer name. JSON has no tuples: they come back as lists."""
    options = dict(options or {})
    if options and all(isinstance(value, dict) for value in options.values()):
        options = dict(options.get(name, {}))
    return {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
