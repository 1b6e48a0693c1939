"""flash-linear-attention's models: a mixer and an MLP; in some layers softmax, which its field `attn` describes."""

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
    of_type,
    options_of,
    real,
    shared_out,
    size,
    sizes_of,
    tokens,
)
from maclaurin.models import MaclaurinConfig

LAYER = "model.layers.{}."  # ours and theirs
NAMES: Names = {
    EMBEDDINGS: "model.embeddings.weight",
    "model.norm.weight": "model.norm.weight",
    HEAD: HEAD,
    f"{LAYER}input_layernorm.weight": f"{LAYER}attn_norm.weight",
    f"{LAYER}post_attention_layernorm.weight": f"{LAYER}mlp_norm.weight",
    **{f"{LAYER}mlp.{part}_proj.weight": f"{LAYER}mlp.{part}_proj.weight" for part in ("gate", "up", "down")},
}


def _mixer_names(mixer: Names) -> Names:
    names: Names = {}
    for name, parts in mixer.items():
        full = tuple(f"{LAYER}attn.{part}" for part in ((parts,) if isinstance(parts, str) else parts))
        names[f"{LAYER}mixer.{name}"] = full[0] if isinstance(parts, str) else full
    return names


PROJECTIONS: Names = {
    "qkv_proj.weight": ("q_proj.weight", "k_proj.weight", "v_proj.weight"),
    "conv.weight": ("q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"),
    "out_proj.weight": "o_proj.weight",
    "gate_proj.weight": "g_proj.weight",
}
DELTA: Names = PROJECTIONS | {"beta_proj.weight": "b_proj.weight", "out_norm.weight": "o_norm.weight"}
GATED_DELTA: Names = DELTA | {"dt_proj.weight": "a_proj.weight", "A_log": "A_log", "dt_bias": "dt_bias"}
RETNET: Names = {name: theirs for name, theirs in PROJECTIONS.items() if name != "conv.weight"} | {
    "out_norm.weight": "g_norm_swish_gate.weight"
}
GLA: Names = PROJECTIONS | {
    "decay_down.weight": "gk_proj.0.weight",
    "decay_up.weight": "gk_proj.1.weight",
    "decay_up.bias": "gk_proj.1.bias",
    "out_norm.weight": "g_norm_swish_gate.weight",
}


HGRN2: Names = {
    "in_proj.weight": ("q_proj.weight", "f_proj.weight", "i_proj.weight"),
    "conv.weight": ("q_conv1d.weight", "f_conv1d.weight", "i_conv1d.weight"),
    "out_norm.weight": "g_norm.weight",
    "out_proj.weight": "o_proj.weight",
}
ATTENTION: Names = {
    "qkv_proj.weight": ("q_proj.weight", "k_proj.weight", "v_proj.weight"),
    "out_proj.weight": "o_proj.weight",
}
SOFTMAX = ("softmax", "sliding-window")


def _fla(described: Described, shapes: Shapes, mixer: str, heads: int, options: dict[str, Any]) -> dict[str, Any]:
    must(described, {"hidden_act": "swish", "elementwise_affine": True})
    mixers, mixer_options = _with_softmax(described, mixer, heads)
    return {
        "hidden_size": size(described, "hidden_size"),
        "num_hidden_layers": size(described, "num_hidden_layers"),
        "num_attention_heads": heads,
        "intermediate_size": shapes["model.layers.0.mlp.gate_proj.weight"][0],
        "max_position_embeddings": size(described, "max_position_embeddings", 2048),
        "rms_norm_eps": real(described, "norm_eps", 1e-6),
        "tie_word_embeddings": described.get("tie_word_embeddings", False),
        "mixer": mixers,
        "mixer_options": {mixer: options, **mixer_options},
        **tokens(described),
    }


def _with_softmax(described: Described, mixer: str, heads: int) -> tuple[str | list[str], dict[str, Any]]:
    """The mixers of the layers, and options of those that are softmax."""
    attn = described.get("attn")
    if attn is None:
        return mixer, {}
    layers = _softmax_layers(described)
    if size(attn, "num_heads") != heads:
        raise ValueError(f"attn must have as many heads as the other layers, {heads}, got {attn['num_heads']!r:.60}")
    must(attn, {"qkv_bias": False, "qk_norm": False})
    window, kv_heads = attn.get("window_size"), attn.get("num_kv_heads")
    softmax = "softmax" if window is None else "sliding-window"
    options = {
        "num_kv_heads": heads if kv_heads is None else size(attn, "num_kv_heads"),
        "rope_theta": real(attn, "rope_theta", 10000.0),
    } | ({} if window is None else {"window": size(attn, "window_size")})
    count = size(described, "num_hidden_layers")
    return [softmax if layer in layers else mixer for layer in range(count)], {softmax: options}


def _softmax_layers(described: Described) -> list[int]:
    attn = described.get("attn")
    if attn is None:
        return []
    layers = attn.get("layers") if isinstance(attn, dict) else None
    known = set(range(size(described, "num_hidden_layers")))
    if not isinstance(layers, list) or any(type(layer) is not int for layer in layers) or not set(layers) < known:
        raise ValueError(f"attn must name some of the layers as those of softmax, and not all, got {attn!r:.60}")
    return layers


def _as_softmax(config: MaclaurinConfig) -> Described:
    kinds = config.layer_mixers()
    softmax = next((kind for kind in kinds if kind in SOFTMAX), None)
    if softmax is None:
        return {}
    options = options_of(config, softmax)
    described = {
        "layers": [layer for layer, kind in enumerate(kinds) if kind == softmax],
        "num_heads": config.num_attention_heads,
        "num_kv_heads": options["num_kv_heads"],
        "qkv_bias": False,
        "window_size": options.get("window"),
        "rope_theta": options["rope_theta"],
    }
    return {"attn": described}


def _convolution(described: Described, *, usual: bool) -> dict[str, Any]:
    if not described.get("use_short_conv", usual):
        return {}
    return {"conv_width": size(described, "conv_size", 4), "conv_bias": False, "activation": "silu"}


def _of_delta(described: Described, key_dim: int, head_dim: int, *, gate: bool) -> dict[str, Any]:
    return _convolution(described, usual=True) | {
        "key_dim": key_dim,
        "head_dim": head_dim,
        "gate": described.get("use_gate", gate),
        "norm_eps": key_dim * real(described, "norm_eps", 1e-6),
        "allow_negative_eigenvalues": described.get("allow_neg_eigval", False),
    }


def _gated_delta(described: Described, shapes: Shapes) -> dict[str, Any]:
    keys, key_dim = size(described, "num_heads"), size(described, "head_dim")
    heads = keys if described.get("num_v_heads") is None else size(described, "num_v_heads")
    head_dim = int(key_dim * real(described, "expand_v", 2))
    options = _of_delta(described, key_dim, head_dim, gate=True) | ({"shared_keys": keys} if heads != keys else {})
    return _fla(described, shapes, "gated-delta", heads, options)


def _delta(described: Described, shapes: Shapes) -> dict[str, Any]:
    must(described, {"qk_norm": "l2", "qk_activation": "silu", "use_beta": True, "use_output_norm": True})
    sizes = shared_out(described, "expand_k", 1), shared_out(described, "expand_v", 1)
    return _fla(described, shapes, "delta", size(described, "num_heads"), _of_delta(described, *sizes, gate=False))


def _gla(described: Described, shapes: Shapes) -> dict[str, Any]:
    must(described, {"feature_map": None, "use_gk": True, "use_gv": False, "use_output_gate": True, "clamp_min": None})
    heads = size(described, "num_heads")
    must(described, {"num_kv_heads": None if described.get("num_kv_heads") != heads else heads})
    softmax = _softmax_layers(described)
    linear = next(layer for layer in range(size(described, "num_hidden_layers")) if layer not in softmax)
    options = _convolution(described, usual=False) | {
        "key_dim": shared_out(described, "expand_k", 0.5),
        "head_dim": shared_out(described, "expand_v", 1),
        "norm_eps": real(described, "norm_eps", 1e-6),
        "tau": real(described, "gate_logit_normalizer", 16),
        "decay_rank": shapes[f"model.layers.{linear}.attn.gk_proj.0.weight"][0],
    }
    return _fla(described, shapes, "gla", heads, options)


def _retnet(described: Described, shapes: Shapes) -> dict[str, Any]:
    """Its configuration has use_short_conv, which its layers are never given, and decays differ within a group of heads."""
    must(described, {"feature_map": None, "use_output_gate": True, "fuse_norm": True})
    heads = size(described, "num_heads")
    must(described, {"num_kv_heads": None if described.get("num_kv_heads") != heads else heads})
    options: dict[str, Any] = {"decays": "doubling", "norm_eps": real(described, "norm_eps", 1e-6)}
    options |= {"key_dim": shared_out(described, "expand_k", 1), "head_dim": shared_out(described, "expand_v", 2)}
    return _fla(described, shapes, "retnet", heads, options)


def _hgrn2(described: Described, shapes: Shapes) -> dict[str, Any]:
    """Channels of a head come before their number; its bounds are of all layers, so that none is softmax.

    The norm of its output has an epsilon that no file can change.
    """
    must(described, {"attn": None})
    width = size(described, "hidden_size")
    if described.get("expand_ratio", 128) is None:
        heads = size(described, "num_heads")
    else:
        head_dim = size(described, "expand_ratio", 128)
        if width % head_dim:
            raise ValueError(f"expand_ratio must divide hidden_size, got {head_dim} and {width}")
        heads = width // head_dim
    options: dict[str, Any] = {"bounded": described.get("use_lower_bound", True), "norm_eps": 1e-5}
    if described.get("use_short_conv", False):
        options["conv_width"] = size(described, "conv_size", 4)
    return _fla(described, shapes, "hgrn2", heads, options)


def _as_hgrn2(config: MaclaurinConfig) -> Described:
    options, heads = options_of(config, "hgrn2"), config.num_attention_heads
    own = {"model_type": "hgrn2", "expand_ratio": config.hidden_size // heads, "use_lower_bound": options["bounded"]}
    return _common(config, options["conv_width"]) | own


def _as_fla(config: MaclaurinConfig) -> Described:
    mixer, heads = next((kind for kind in config.layer_mixers() if kind not in SOFTMAX), None), config.num_attention_heads
    if mixer is None:
        raise ValueError("the layouts of fla are of models with linear layers, this one has none")
    options = options_of(config, mixer)
    key_dim, head_dim = options["key_dim"], options["head_dim"]
    described = (
        _common(config, options["conv_width"])
        | _as_softmax(config)
        | {
            "expand_k": key_dim * heads / config.hidden_size,
            "expand_v": head_dim * heads / config.hidden_size,
        }
    )
    if mixer == "gla":
        return described | {"model_type": "gla", "gate_logit_normalizer": options["tau"]}
    if mixer == "retnet":
        return described | {"model_type": "retnet"}
    described |= {"use_gate": options["gate"], "allow_neg_eigval": options["allow_negative_eigenvalues"]}
    if mixer == "delta":
        return described | {"model_type": "delta_net"}
    del described["expand_k"]
    keys = {"num_heads": int(options["shared_keys"]) or heads, "num_v_heads": heads}
    return described | keys | {"model_type": "gated_deltanet", "head_dim": key_dim, "expand_v": head_dim / key_dim}


def _common(config: MaclaurinConfig, conv_width: int) -> Described:
    return sizes_of(config) | {
        "num_heads": config.num_attention_heads,
        "intermediate_size": config.intermediate_size,
        "hidden_act": "swish",
        "max_position_embeddings": config.max_position_embeddings,
        "norm_eps": config.rms_norm_eps,
        "use_short_conv": conv_width > 0,
        "conv_size": conv_width or 4,
    }


def _layout(model_type: str, fields: Callable[[Described, Shapes], dict[str, Any]], mixer: str, names: Names) -> Layout:
    softmax = dict.fromkeys(SOFTMAX, _mixer_names(ATTENTION))
    return Layout(of_type(model_type), fields, _as_fla, NAMES, {mixer: _mixer_names(names), **softmax})


FLA_LAYOUTS = {
    "fla-gated-deltanet": _layout("gated_deltanet", _gated_delta, "gated-delta", GATED_DELTA),
    "fla-deltanet": _layout("delta_net", _delta, "delta", DELTA),
    "fla-gla": _layout("gla", _gla, "gla", GLA),
    "fla-retnet": _layout("retnet", _retnet, "retnet", RETNET),
    "fla-hgrn2": Layout(
        of_type("hgrn2"),
        _hgrn2,
        _as_hgrn2,
        NAMES | {"model.lower_bounds.logits": "model.lower_bounds"},
        {"hgrn2": _mixer_names(HGRN2)},
    ),
}
