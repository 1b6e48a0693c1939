"""RecurrentGemma, as it is published and as transformers has it: RG-LRU layers and softmax over a window in turn, GEGLU.

Norms multiply by 1 + w. Embeddings, which are those of the head, are multiplied by the root of their width, rounded to
bfloat16. Half of the channels of queries and keys turn. Logits are below a soft cap. The first token of a document enters
the recurrence unscaled.
"""

from __future__ import annotations

from typing import Any

import torch

from maclaurin.convert.layouts.layout import (
    EMBEDDINGS,
    HEAD,
    Described,
    Layout,
    Names,
    Shapes,
    must,
    of_type,
    options_of,
    real,
    size,
    sizes_of,
    tokens,
)
from maclaurin.models import MaclaurinConfig

MIXERS = {"recurrent": "rglru", "attention": "sliding-window"}
LAYER = "model.layers.{}."  # ours and theirs
MIXER, BLOCK = f"{LAYER}mixer.", f"{LAYER}temporal_block."
UNIT = f"{BLOCK}rg_lru."
BOTH = ("weight", "bias")
NAMES: Names = {
    EMBEDDINGS: EMBEDDINGS,
    "model.norm.weight": "model.final_norm.weight",
    HEAD: HEAD,
    f"{LAYER}input_layernorm.weight": f"{LAYER}temporal_pre_norm.weight",
    f"{LAYER}post_attention_layernorm.weight": f"{LAYER}channel_pre_norm.weight",
    **{f"{LAYER}mlp.{part}_proj.{x}": f"{LAYER}mlp_block.{part}_proj.{x}" for part in ("gate", "up", "down") for x in BOTH},
}
RECURRENT: Names = {
    **{f"{MIXER}in_proj.{x}": (f"{BLOCK}linear_y.{x}", f"{BLOCK}linear_x.{x}") for x in BOTH},
    **{f"{MIXER}conv.{x}": f"{BLOCK}conv_1d.{x}" for x in BOTH},
    **{f"{MIXER}block_{x}": (f"{UNIT}recurrent_gate_{x}", f"{UNIT}input_gate_{x}") for x in BOTH},
    f"{MIXER}A": f"{UNIT}recurrent_param",
    **{f"{MIXER}out_proj.{x}": f"{BLOCK}linear_out.{x}" for x in BOTH},
}
ATTENTION: Names = {
    **{f"{MIXER}qkv_proj.{x}": tuple(f"{BLOCK}{part}_proj.{x}" for part in "qkv") for x in BOTH},
    **{f"{MIXER}out_proj.{x}": f"{BLOCK}o_proj.{x}" for x in BOTH},
}


def _fields(described: Described, shapes: Shapes) -> dict[str, Any]:
    must(described, {"hidden_activation": "gelu_pytorch_tanh", "embeddings_scale_by_sqrt_dim": True})
    width, layers, heads = (size(described, name) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    head_dim = width // heads
    must(described, {"head_dim": head_dim})
    theta, turning = _rotary(described)
    channels = int(head_dim * turning)
    attention = {
        "window": size(described, "attention_window_size", 2048),
        "num_kv_heads": heads if described.get("num_key_value_heads") is None else size(described, "num_key_value_heads"),
        "rope_theta": theta,
        "rotary_dim": None if channels == head_dim else channels,
        "projection_bias": True if described.get("attention_bias", False) else "output",
    }
    recurrent = {
        "width": width if described.get("lru_width") is None else size(described, "lru_width"),
        "conv_width": size(described, "conv1d_width", 4),
        "scale_first": False,
        "projection_bias": True,
    }
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": size(described, "intermediate_size") // 2,
        "rms_norm_eps": real(described, "rms_norm_eps", 1e-6),
        "logit_cap": real(described, "logits_soft_cap", 30.0),
        "tie_word_embeddings": described.get("tie_word_embeddings", True),
        "mlp": "geglu",
        "mlp_bias": True,
        "embedding_scale": torch.tensor(width**0.5, dtype=torch.bfloat16, device="cpu").item(),
        "zero_centered_norms": True,
        "mixer": _pattern(described)[:layers],
        "mixer_options": {"rglru": recurrent, "sliding-window": attention},
        **tokens(described),
    }


def _pattern(described: Described) -> list[str]:
    blocks = described.get("block_types", ["recurrent", "recurrent", "attention"])
    if not isinstance(blocks, list) or not blocks or any(block not in tuple(MIXERS) for block in blocks):
        raise ValueError(f"block_types must be a list of {' and '.join(MIXERS)}, got {blocks!r:.60}")
    return [MIXERS[block] for block in blocks]


def _rotary(described: Described) -> tuple[float, float]:
    """The base of the frequencies, and the part of the channels that turn. Older files have both among their own fields."""
    given = described if described.get("rope_parameters") is None else described["rope_parameters"]
    if not isinstance(given, dict):
        raise ValueError(f"rope_parameters must be an object, got {given!r:.60}")
    must(given, {"rope_type": "default"})
    return real(given, "rope_theta", 10000.0), real(given, "partial_rotary_factor", 0.5)


def _described(config: MaclaurinConfig) -> Described:
    blocks = {mixer: block for block, mixer in MIXERS.items()}
    described = sizes_of(config) | {
        "model_type": "recurrent_gemma",
        "architectures": ["RecurrentGemmaForCausalLM"],
        "num_attention_heads": config.num_attention_heads,
        "intermediate_size": 2 * config.intermediate_size,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": config.rms_norm_eps,
        "logits_soft_cap": config.logit_cap,
        "block_types": [blocks[mixer] for mixer in ([config.mixer] if isinstance(config.mixer, str) else config.mixer)],
    }
    if "rglru" in config.layer_mixers():
        options = options_of(config, "rglru")
        described |= {"lru_width": options["width"], "conv1d_width": options["conv_width"]}
    if "sliding-window" in config.layer_mixers():
        options = options_of(config, "sliding-window")
        turning = (options["rotary_dim"] or options["key_dim"]) / options["key_dim"]
        described |= {
            "attention_window_size": options["window"],
            "num_key_value_heads": options["num_kv_heads"],
            "attention_bias": options["projection_bias"] is True,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": options["rope_theta"],
                "partial_rotary_factor": turning,
            },
        }
    return described


RECURRENT_GEMMA_LAYOUTS = {
    "transformers-recurrent-gemma": Layout(
        of_type("recurrent_gemma"),
        _fields,
        _described,
        NAMES,
        {"rglru": RECURRENT, "sliding-window": ATTENTION},
        mlp="geglu",
        beside=("mixer.block_weight", "mixer.block_bias"),
    )
}
