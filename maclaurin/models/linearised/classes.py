"""Converted models as classes of `transformers`: for every model class of a supported family, one with students inside.

`LlamaForCausalLM` becomes `LinearLlamaForCausalLM`, whose configuration has the type "maclaurin-llama" and two fields more.
They are made from the source's classes by inheritance and registered with the Auto classes as this package is imported,
which startup/ does where a folder asks for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import transformers
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.bert.modeling_bert import BertSelfAttention
from transformers.models.distilbert.modeling_distilbert import DistilBertSelfAttention
from transformers.models.llama.modeling_llama import LlamaAttention
from transformers.models.mistral.modeling_mistral import MistralAttention
from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention
from transformers.models.vit.modeling_vit import ViTAttention

from maclaurin.models.auto import register
from maclaurin.models.checked import load_checked
from maclaurin.models.decoder import MaclaurinForCausalLM
from maclaurin.models.linearised.attention import NAME, hand_over, own_cache
from maclaurin.models.linearised.students import SOFTMAX, Shape, build_student, is_new
from maclaurin.ops.products import with_faster_products


@dataclass(frozen=True)
class Family:
    """A type of model: the class of its attention modules, and whether they are causal."""

    config: Any  # the class
    attention: type[nn.Module]
    causal: bool


FAMILIES = {
    family.config.model_type: family
    for family in (
        Family(transformers.BertConfig, BertSelfAttention, causal=False),
        Family(transformers.DistilBertConfig, DistilBertSelfAttention, causal=False),
        Family(transformers.ViTConfig, ViTAttention, causal=False),
        Family(transformers.LlamaConfig, LlamaAttention, causal=True),
        Family(transformers.MistralConfig, MistralAttention, causal=True),
        Family(transformers.Qwen2Config, Qwen2Attention, causal=True),
        Family(transformers.Qwen3Config, Qwen3Attention, causal=True),
    )
}
PREFIX = "maclaurin-"
AUTO_CLASSES = (
    "AutoModel",
    "AutoModelForCausalLM",
    "AutoModelForImageClassification",
    "AutoModelForMaskedLM",
    "AutoModelForMultipleChoice",
    "AutoModelForQuestionAnswering",
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
)


def family_of(config: PretrainedConfig) -> Family:
    return FAMILIES[config.model_type.removeprefix(PREFIX)]


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """The modules with a student, or that could have one, in the order of the layers."""
    kinds = tuple(family.attention for family in FAMILIES.values())
    return [module for module in model.modules() if isinstance(module, kinds)]


def shape_of(config: PretrainedConfig) -> Shape:
    heads = config.num_attention_heads
    return Shape(
        d_model=config.hidden_size,
        num_heads=heads,
        num_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        causal=family_of(config).causal,
    )


class Linearised(PreTrainedModel):
    """What a converted class adds to its source's. Fields of the configuration:

    students: the name of every layer's student, `softmax` where it keeps its attention.
    student_options: num_features, window and one_sum, as in `build_student`.
    """

    def __init__(self, config: PretrainedConfig, *args: Any, **kwargs: Any) -> None:
        config._attn_implementation = NAME
        super().__init__(config, *args, **kwargs)
        shape = shape_of(config)
        modules = attention_modules(self)
        for index, (module, name) in enumerate(zip(modules, config.students, strict=True)):
            module.__dict__["layer_idx"] = index  # BERT's and DistilBERT's do not know it
            module.student = build_student(name, shape, **(config.student_options or {}) if name != SOFTMAX else {})
            module.register_forward_pre_hook(hand_over, with_kwargs=True)
        if shape.causal:
            self.base_model.register_forward_pre_hook(own_cache, with_kwargs=True)
        with_faster_products(self)

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """As in transformers, but a student without its weights is refused."""
        model, info = load_checked(cls, super().from_pretrained, *args, **kwargs)
        if lost := sorted(name for name in info["missing_keys"] if is_new(f".{name}")):
            raise ValueError(f"the checkpoint lacks {len(lost)} weights of students, such as {lost[0]}: convert it again")
        return (model, info) if output_loading_info else model

    _prepare_cache_for_generation = MaclaurinForCausalLM._prepare_cache_for_generation


@cache
def linear_config(source: Any) -> Any:
    fields = {"students": list[str] | None, "student_options": dict[str, Any] | None}
    body = {
        "__annotations__": fields,
        "__module__": __name__,
        "model_type": PREFIX + source.model_type,
        **dict.fromkeys(fields),
    }
    return type(f"Linear{source.__name__}", (source,), body)


@cache
def linear_class(source: Any) -> Any:
    config = linear_config(source.config_class)
    body = {"__module__": __name__, "config_class": config, "_is_stateful": FAMILIES[source.config_class.model_type].causal}
    return type(f"Linear{source.__name__}", (Linearised, source), body)


def linearise(model: PreTrainedModel, students: Sequence[str], options: dict[str, Any] | None = None) -> PreTrainedModel:
    """A copy of a model of a supported family with a student in each layer. Students are as built, untrained."""
    layers = model.config.num_hidden_layers
    if len(students) != layers:
        raise ValueError(f"students must name one student for each of the {layers} layers, got {len(students)}")
    fields = {name: value for name, value in model.config.to_dict().items() if name != "model_type"}
    source: Any = type(model)
    made = linear_class(source)
    config = made.config_class(**fields, students=list(students), student_options=dict(options or {}))
    config.architectures = [made.__name__]
    converted = made(config).to(dtype=model.dtype)
    missing, unexpected = converted.load_state_dict(model.state_dict(), strict=False)
    left = [name for name in missing if not is_new(name)]
    assert not left and not unexpected, (left, unexpected)
    if model.can_generate():
        converted.generation_config = model.generation_config
    return converted.train(model.training)


def _register() -> None:
    for family in FAMILIES.values():
        mappings = {auto: getattr(transformers, auto)._model_mapping for auto in AUTO_CLASSES}
        sources = {auto: mapping[family.config] for auto, mapping in mappings.items() if family.config in mapping}
        register(linear_config(family.config), {auto: linear_class(source) for auto, source in sources.items()})


_register()
