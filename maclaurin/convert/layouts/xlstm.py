"""xLSTM-7B, as it is published and as transformers has it: mLSTM layers, MLPs, logits below a soft cap.

With weight_mode "fused" a layer has one matrix for q, k, v and the output gate, one for both other gates, and one for both
halves of the MLP.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from maclaurin.convert.layouts.layout import (
    EMBEDDINGS,
    HEAD,
    Described,
    Layout,
    Names,
    Shapes,
    must,
    options_of,
    real,
    shared_out,
    size,
    sizes_of,
    tokens,
)
from maclaurin.models import MaclaurinConfig

OURS, THEIRS = "model.layers.{}.", "backbone.blocks.{}."
LAYER = f"{THEIRS}mlstm_layer."
FEED_FORWARD = f"{THEIRS}ffn."
NAMES: Names = {
    EMBEDDINGS: "backbone.embeddings.weight",
    "model.norm.weight": "backbone.out_norm.weight",
    HEAD: HEAD,
    f"{OURS}input_layernorm.weight": f"{THEIRS}norm_mlstm.weight",
    f"{OURS}post_attention_layernorm.weight": f"{THEIRS}norm_ffn.weight",
    f"{OURS}mlp.gate_proj.weight": f"{FEED_FORWARD}proj_up_gate.weight",
    f"{OURS}mlp.up_proj.weight": f"{FEED_FORWARD}proj_up.weight",
    f"{OURS}mlp.down_proj.weight": f"{FEED_FORWARD}proj_down.weight",
}
MLSTM: Names = {
    f"{OURS}mixer.qkv_proj.weight": (f"{LAYER}q.weight", f"{LAYER}k.weight", f"{LAYER}v.weight"),
    f"{OURS}mixer.gates.weight": (f"{LAYER}igate_preact.weight", f"{LAYER}fgate_preact.weight"),
    f"{OURS}mixer.gates.bias": (f"{LAYER}igate_preact.bias", f"{LAYER}fgate_preact.bias"),
    f"{OURS}mixer.out_gate.weight": f"{LAYER}ogate_preact.weight",
    f"{OURS}mixer.norm_weight": f"{LAYER}multihead_norm.weight",
    f"{OURS}mixer.out_proj.weight": f"{LAYER}out_proj.weight",
}


GATE_AND_UP = (f"{OURS}mlp.gate_proj.weight", f"{OURS}mlp.up_proj.weight")
QKV_AND_GATE = (f"{OURS}mixer.qkv_proj.weight", f"{OURS}mixer.out_gate.weight")
FUSED = {f"{FEED_FORWARD}proj_up_gate_z.weight": GATE_AND_UP, f"{LAYER}qkv_opreact.weight": QKV_AND_GATE}
FUSED_NAMES: Names = {ours: theirs for ours, theirs in NAMES.items() if ours not in GATE_AND_UP}
FUSED_MLSTM: Names = {ours: theirs for ours, theirs in MLSTM.items() if ours not in QKV_AND_GATE} | {
    f"{OURS}mixer.gates.weight": f"{LAYER}ifgate_preact.weight",
    f"{OURS}mixer.gates.bias": f"{LAYER}ifgate_preact.bias",
}
SINGLE_WEIGHTS, FUSED_WEIGHTS = "single", "fused"


def _cap(described: Described, name: str, usual: float) -> float | None:
    return None if name in described and described[name] is None else real(described, name, usual)


def _fields(described: Described, shapes: Shapes) -> dict[str, Any]:
    must(described, {"weight_mode": SINGLE_WEIGHTS})
    return _common(described, shapes[f"{FEED_FORWARD}proj_up.weight".format(0)][0])


def _fused_fields(described: Described, shapes: Shapes) -> dict[str, Any]:
    return _common(described, shapes[f"{FEED_FORWARD}proj_up_gate_z.weight".format(0)][0] // 2)


def _common(described: Described, intermediate_size: int) -> dict[str, Any]:
    must(described, {"use_bias": False, "add_out_norm": True})
    norm_eps = real(described, "norm_eps", 1e-6)
    options = {
        "key_dim": shared_out(described, "qk_dim_factor", 0.5),
        "head_dim": shared_out(described, "v_dim_factor", 1.0),
        "gate_cap": _cap(described, "gate_soft_cap", 15.0),
        "norm_eps": norm_eps,
        "eps": real(described, "eps", 1e-6),
    }
    layers = "num_hidden_layers" if described.get("num_hidden_layers") is not None else "num_blocks"
    return {
        "hidden_size": size(described, "hidden_size"),
        "num_hidden_layers": size(described, layers),
        "num_attention_heads": size(described, "num_heads", 8),
        "intermediate_size": intermediate_size,
        "rms_norm_eps": norm_eps,
        "logit_cap": _cap(described, "output_logit_soft_cap", 30.0),
        "tie_word_embeddings": described.get("tie_word_embeddings", False),
        "mixer": "mlstm",
        "mixer_options": {"mlstm": options},
        **tokens(described),
    }


def _described(config: MaclaurinConfig) -> Described:
    options, width, heads = options_of(config, "mlstm"), config.hidden_size, config.num_attention_heads
    return sizes_of(config) | {
        "model_type": "xlstm",
        "architectures": ["xLSTMForCausalLM"],
        "num_blocks": config.num_hidden_layers,
        "num_heads": heads,
        "qk_dim_factor": options["key_dim"] * heads / width,
        "v_dim_factor": options["head_dim"] * heads / width,
        "ffn_proj_factor": config.intermediate_size / width,
        "ffn_round_up_to_multiple_of": config.intermediate_size,  # whatever the product with the factor is rounded to
        "gate_soft_cap": options["gate_cap"],
        "output_logit_soft_cap": config.logit_cap,
        "norm_eps": config.rms_norm_eps,
        "eps": options["eps"],
        "use_bias": False,
        "weight_mode": SINGLE_WEIGHTS,
        "add_out_norm": True,
    }


def _fused_described(config: MaclaurinConfig) -> Described:
    return _described(config) | {"weight_mode": FUSED_WEIGHTS}


def _recognised(*, fused: bool) -> Callable[[Described], bool]:
    return lambda described: (
        described.get("model_type") == "xlstm" and (described.get("weight_mode") == FUSED_WEIGHTS) == fused
    )


FLAT = ("mixer.norm_weight",)
XLSTM_LAYOUTS = {
    "transformers-xlstm": Layout(_recognised(fused=False), _fields, _described, NAMES, {"mlstm": MLSTM}, flat=FLAT),
    "transformers-xlstm-fused": Layout(
        _recognised(fused=True),
        _fused_fields,
        _fused_described,
        FUSED_NAMES,
        {"mlstm": FUSED_MLSTM},
        flat=FLAT,
        shared=FUSED,
    ),
}
