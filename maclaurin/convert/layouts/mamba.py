"""state-spaces' and transformers' Mamba and Mamba-2: blocks without MLP."""

from __future__ import annotations

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
    size,
    sizes_of,
    tokens,
)
from maclaurin.models import MaclaurinConfig

LAYER = "backbone.layers.{}."


def _names(embeddings: str) -> Names:
    return {
        EMBEDDINGS: f"backbone.{embeddings}.weight",
        "model.norm.weight": "backbone.norm_f.weight",
        HEAD: HEAD,
        "model.layers.{}.input_layernorm.weight": f"{LAYER}norm.weight",
    }


def _mixer_names(mixer: dict[str, str]) -> Names:
    return {f"model.layers.{{}}.mixer.{ours}": f"{LAYER}mixer.{theirs}" for ours, theirs in mixer.items()}


MAMBA_1 = {name: name for name in ("A_log", "D", "in_proj.weight", "x_proj.weight", "dt_proj.weight", "dt_proj.bias")} | {
    "conv.weight": "conv1d.weight",
    "conv.bias": "conv1d.bias",
    "out_proj.weight": "out_proj.weight",
}
MAMBA_2 = {
    name: name
    for name in ("A_log", "D", "dt_bias", "in_proj.weight", "conv1d.weight", "conv1d.bias", "norm.weight", "out_proj.weight")
}


def _without_mlp(width: int, layers: int, heads: int, mixer: str, options: dict[str, Any]) -> dict[str, Any]:
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {**sizes, "mlp": "none", "mixer": mixer, "mixer_options": {mixer: options}}


def _state_spaces(described: Described, shapes: Shapes) -> dict[str, Any]:
    must(described, {"d_intermediate": 0, "attn_layer_idx": [], "rms_norm": True})
    ssm, width = _ssm(described), size(described, "d_model")
    expand, tied = size(ssm, "expand", 2), described.get("tie_embeddings", True)
    options = {"expand": expand, "conv_width": size(ssm, "d_conv", 4), "conv_bias": ssm.get("conv_bias", True)}
    if _is_mamba_2(described):
        must(ssm, {"bias": False, "rmsnorm": True, "norm_before_gate": False, "D_has_hdim": False})
        options |= {"d_state": size(ssm, "d_state", 128), "n_groups": size(ssm, "ngroups", 1), "norm_eps": 1e-5}
        heads, mixer = expand * width // size(ssm, "headdim", 64), "mamba2"
    else:
        must(ssm, {"bias": False})
        options |= {"d_state": size(ssm, "d_state", 16), "dt_rank": _rank(shapes)}
        heads, mixer = 1, "mamba"
    fields = _without_mlp(width, size(described, "n_layer"), heads, mixer, options)
    return fields | {"rms_norm_eps": 1e-5, "tie_word_embeddings": tied}


def _as_state_spaces(config: MaclaurinConfig) -> Described:
    mixer = config.layer_mixers()[0]
    options = options_of(config, mixer)
    ssm = {"layer": "Mamba2" if mixer == "mamba2" else "Mamba1", "d_state": options["d_state"], "expand": options["expand"]}
    ssm |= {"d_conv": options["conv_width"], "conv_bias": options["conv_bias"]}
    if mixer == "mamba2":
        ssm |= {
            "ngroups": options["n_groups"],
            "headdim": options["expand"] * config.hidden_size // config.num_attention_heads,
        }
    else:
        ssm["dt_rank"] = options["dt_rank"]
    return {
        "d_model": config.hidden_size,
        "d_intermediate": 0,
        "n_layer": config.num_hidden_layers,
        "vocab_size": config.vocab_size,
        "ssm_cfg": ssm,
        "attn_layer_idx": [],
        "attn_cfg": {},
        "rms_norm": True,
        "residual_in_fp32": True,
        "fused_add_norm": True,
        "pad_vocab_size_multiple": 1,
        "tie_embeddings": config.tie_word_embeddings,
    }


def _ssm(described: Described) -> Described:
    ssm = described.get("ssm_cfg")
    if not isinstance(ssm, dict):
        raise ValueError(f"ssm_cfg must be an object, got {ssm!r:.60}")
    return ssm


def _is_mamba_2(described: Described) -> bool:
    return _ssm(described).get("layer", "Mamba1") == "Mamba2"


def _rank(shapes: Shapes) -> int:
    return shapes["backbone.layers.0.mixer.dt_proj.weight"][1]


def _transformers(described: Described, shapes: Shapes) -> dict[str, Any]:
    must(described, {"use_bias": False, "hidden_act": "silu"})
    options: dict[str, Any] = {"expand": size(described, "expand", 2), "conv_width": size(described, "conv_kernel", 4)}
    options |= {"conv_bias": described.get("use_conv_bias", True), "d_state": size(described, "state_size")}
    eps = real(described, "layer_norm_epsilon", 1e-5)
    if described["model_type"] == "mamba2":
        low, high = (float(limit) for limit in described.get("time_step_limit", (0.0, "inf")))
        if (low, high) != (0.0, float("inf")):
            options["dt_limit"] = [low, high]
        options |= {"n_groups": size(described, "n_groups"), "norm_eps": eps}
        heads, mixer = size(described, "num_heads"), "mamba2"
    else:
        options["dt_rank"] = _rank(shapes)
        heads, mixer = 1, "mamba"
    fields = _without_mlp(size(described, "hidden_size"), size(described, "num_hidden_layers"), heads, mixer, options)
    fields |= {"rms_norm_eps": eps, "tie_word_embeddings": described.get("tie_word_embeddings", mixer == "mamba")}
    return fields | tokens(described)


def _as_transformers(config: MaclaurinConfig) -> Described:
    mixer = config.layer_mixers()[0]
    options = options_of(config, mixer)
    described = {
        "model_type": mixer,
        "architectures": ["Mamba2ForCausalLM" if mixer == "mamba2" else "MambaForCausalLM"],
        **sizes_of(config),
        "state_size": options["d_state"],
        "expand": options["expand"],
        "conv_kernel": options["conv_width"],
        "use_conv_bias": options["conv_bias"],
        "layer_norm_epsilon": config.rms_norm_eps,
    }
    if mixer == "mamba":
        return described | {"time_step_rank": options["dt_rank"]}
    heads = config.num_attention_heads
    limit = {} if options["dt_limit"] is None else {"time_step_limit": list(options["dt_limit"])}
    head_dim = options["expand"] * config.hidden_size // heads
    return described | {"num_heads": heads, "head_dim": head_dim, "n_groups": options["n_groups"]} | limit


def _layout(mixer: str, embeddings: str, *, published_by: str) -> Layout:
    names, mixers = _names(embeddings), {mixer: _mixer_names(MAMBA_2 if mixer == "mamba2" else MAMBA_1)}
    if published_by == "transformers":
        return Layout(of_type(mixer), _transformers, _as_transformers, names, mixers, mlp="none")

    def recognised(described: Described) -> bool:
        return "ssm_cfg" in described and _is_mamba_2(described) == (mixer == "mamba2")

    return Layout(recognised, _state_spaces, _as_state_spaces, names, mixers, mlp="none")


MAMBA_LAYOUTS = {
    "state-spaces-mamba2": _layout("mamba2", "embedding", published_by="state-spaces"),
    "state-spaces-mamba": _layout("mamba", "embedding", published_by="state-spaces"),
    "transformers-mamba2": _layout("mamba2", "embeddings", published_by="transformers"),
    "transformers-mamba": _layout("mamba", "embeddings", published_by="transformers"),
}
