"""Published checkpoints of linear models as `maclaurin` models and back: names of tensors, and fields of config.json.

Where a layout has three tensors for what is one here (q, k and v), they are joined, and cut again on the way back. Tensors
keep their type, so that the way there and back changes no bit. Only safetensors and config.json are read: state-spaces
publishes pickles, which their owner has to save again.

What the mixers do not compute is refused by the name of its field, not approximated.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from maclaurin.common.arguments import one_of
from maclaurin.common.files import naming, read_json
from maclaurin.convert.thesis import BESIDE
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM
from maclaurin.models.checked import check_size, stays_inside

Described = dict[str, Any]  # what config.json says
Names = dict[str, str | tuple[str, ...]]  # ours -> theirs, or those that ours is made of; {} is the number of a layer
EMBEDDINGS = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Layout:
    """recognised: by config.json. fields: of MaclaurinConfig, by config.json and the tensors. described: the way back."""

    recognised: Callable[[Described], bool]
    fields: Callable[[Described, dict[str, Tensor]], dict[str, Any]]
    described: Callable[[MaclaurinConfig], Described]
    names: Names
    mixer: str


# --- state-spaces and transformers: Mamba and Mamba-2, blocks without MLP


def _mamba_names(embeddings: str, mixer: dict[str, str]) -> Names:
    layer = "backbone.layers.{}."
    return {
        EMBEDDINGS: f"backbone.{embeddings}.weight",
        "model.norm.weight": "backbone.norm_f.weight",
        HEAD: HEAD,
        "model.layers.{}.input_layernorm.weight": layer + "norm.weight",
        **{f"model.layers.{{}}.mixer.{ours}": f"{layer}mixer.{theirs}" for ours, theirs in mixer.items()},
    }


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


def _state_spaces(described: Described, tensors: dict[str, Tensor]) -> dict[str, Any]:
    _must(described, {"d_intermediate": 0, "attn_layer_idx": [], "rms_norm": True})
    ssm, width = described.get("ssm_cfg", {}), described["d_model"]
    expand, tied = ssm.get("expand", 2), described.get("tie_embeddings", True)
    options = {"expand": expand, "conv_width": ssm.get("d_conv", 4), "conv_bias": ssm.get("conv_bias", True)}
    if _is_mamba_2(described):
        _must(ssm, {"bias": False, "rmsnorm": True, "norm_before_gate": False, "D_has_hdim": False})
        options |= {"d_state": ssm.get("d_state", 128), "n_groups": ssm.get("ngroups", 1), "norm_eps": 1e-5}
        heads, mixer = expand * width // ssm.get("headdim", 64), "mamba2"
    else:
        _must(ssm, {"bias": False})
        options |= {"d_state": ssm.get("d_state", 16), "dt_rank": _rank(tensors)}
        heads, mixer = 1, "mamba"
    fields = _without_mlp(width, described["n_layer"], heads, mixer, options)
    return fields | {"rms_norm_eps": 1e-5, "tie_word_embeddings": tied}


def _as_state_spaces(config: MaclaurinConfig) -> Described:
    mixer = config.layer_mixers()[0]
    options = config.options_of(mixer)
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


def _is_mamba_2(described: Described) -> bool:
    return described.get("ssm_cfg", {}).get("layer", "Mamba1") == "Mamba2"


def _rank(tensors: dict[str, Tensor]) -> int:
    return tensors["backbone.layers.0.mixer.dt_proj.weight"].shape[1]


def _transformers(described: Described, tensors: dict[str, Tensor]) -> dict[str, Any]:
    _must(described, {"use_bias": False, "hidden_act": "silu"})
    options = {"expand": described.get("expand", 2), "conv_width": described.get("conv_kernel", 4)}
    options |= {"conv_bias": described.get("use_conv_bias", True), "d_state": described["state_size"]}
    eps = described.get("layer_norm_epsilon", 1e-5)
    if described["model_type"] == "mamba2":
        low, high = (float(limit) for limit in described.get("time_step_limit", (0.0, "inf")))
        if (low, high) != (0.0, float("inf")):
            options["dt_limit"] = [low, high]
        options |= {"n_groups": described["n_groups"], "norm_eps": eps}
        heads, mixer = described["num_heads"], "mamba2"
    else:
        options["dt_rank"] = _rank(tensors)
        heads, mixer = 1, "mamba"
    fields = _without_mlp(described["hidden_size"], described["num_hidden_layers"], heads, mixer, options)
    fields |= {"rms_norm_eps": eps, "tie_word_embeddings": described.get("tie_word_embeddings", mixer == "mamba")}
    return fields | _tokens(described)


def _as_transformers(config: MaclaurinConfig) -> Described:
    mixer = config.layer_mixers()[0]
    options = config.options_of(mixer)
    described = {
        "model_type": mixer,
        "architectures": ["Mamba2ForCausalLM" if mixer == "mamba2" else "MambaForCausalLM"],
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "vocab_size": config.vocab_size,
        "state_size": options["d_state"],
        "expand": options["expand"],
        "conv_kernel": options["conv_width"],
        "use_conv_bias": options["conv_bias"],
        "layer_norm_epsilon": config.rms_norm_eps,
        "tie_word_embeddings": config.tie_word_embeddings,
        **_tokens(vars(config)),
    }
    if mixer == "mamba":
        return described | {"time_step_rank": options["dt_rank"]}
    heads = config.num_attention_heads
    limit = {"time_step_limit": list(options["dt_limit"])} if "dt_limit" in options else {}
    head_dim = options["expand"] * config.hidden_size // heads
    return described | {"num_heads": heads, "head_dim": head_dim, "n_groups": options["n_groups"]} | limit


# --- flash-linear-attention: a mixer and an MLP


def _fla_names(mixer: Names) -> Names:
    ours, theirs = "model.layers.{}.", "model.layers.{}."
    mlp = {f"{ours}mlp.{part}_proj.weight": f"{theirs}mlp.{part}_proj.weight" for part in ("gate", "up", "down")}
    inside: Names = {}
    for name, parts in mixer.items():
        joined = (parts,) if isinstance(parts, str) else parts
        full = tuple(f"{theirs}attn.{part}" for part in joined)
        inside[f"{ours}mixer.{name}"] = full[0] if isinstance(parts, str) else full
    return {
        EMBEDDINGS: "model.embeddings.weight",
        "model.norm.weight": "model.norm.weight",
        HEAD: HEAD,
        f"{ours}input_layernorm.weight": f"{theirs}attn_norm.weight",
        f"{ours}post_attention_layernorm.weight": f"{theirs}mlp_norm.weight",
        **mlp,
        **inside,
    }


PROJECTIONS: Names = {
    "qkv_proj.weight": ("q_proj.weight", "k_proj.weight", "v_proj.weight"),
    "conv.weight": ("q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"),
    "out_proj.weight": "o_proj.weight",
    "gate_proj.weight": "g_proj.weight",
}
DELTA: Names = PROJECTIONS | {"beta_proj.weight": "b_proj.weight", "out_norm.weight": "o_norm.weight"}
GATED_DELTA: Names = DELTA | {"dt_proj.weight": "a_proj.weight", "A_log": "A_log", "dt_bias": "dt_bias"}
GLA: Names = PROJECTIONS | {
    "decay_down.weight": "gk_proj.0.weight",
    "decay_up.weight": "gk_proj.1.weight",
    "decay_up.bias": "gk_proj.1.bias",
    "out_norm.weight": "g_norm_swish_gate.weight",
}


def _fla(
    described: Described, tensors: dict[str, Tensor], mixer: str, heads: int, options: dict[str, Any]
) -> dict[str, Any]:
    _must(described, {"attn": None, "hidden_act": "swish"})
    if described.get("use_short_conv", mixer != "gla"):
        options |= {"conv_width": described.get("conv_size", 4), "conv_bias": False, "activation": "silu"}
    return {
        "hidden_size": described["hidden_size"],
        "num_hidden_layers": described["num_hidden_layers"],
        "num_attention_heads": heads,
        "intermediate_size": tensors["model.layers.0.mlp.gate_proj.weight"].shape[0],
        "max_position_embeddings": described.get("max_position_embeddings", 2048),
        "rms_norm_eps": described.get("norm_eps", 1e-6),
        "tie_word_embeddings": described.get("tie_word_embeddings", False),
        "mixer": mixer,
        "mixer_options": {mixer: options},
        **_tokens(described),
    }


def _gated_delta(described: Described, tensors: dict[str, Tensor]) -> dict[str, Any]:
    keys, heads, key_dim = (
        described["num_heads"],
        described.get("num_v_heads") or described["num_heads"],
        described["head_dim"],
    )
    options = {"key_dim": key_dim, "head_dim": int(key_dim * described.get("expand_v", 2))}
    if heads != keys:
        options["shared_keys"] = keys
    options |= {"gate": described.get("use_gate", True), "norm_eps": key_dim * described.get("norm_eps", 1e-6)}
    options["allow_negative_eigenvalues"] = described.get("allow_neg_eigval", False)
    return _fla(described, tensors, "gated-delta", heads, options)


def _delta(described: Described, tensors: dict[str, Tensor]) -> dict[str, Any]:
    _must(described, {"qk_norm": "l2", "qk_activation": "silu", "use_beta": True, "use_output_norm": True})
    heads, width = described["num_heads"], described["hidden_size"]
    key_dim = int(width * described.get("expand_k", 1)) // heads
    options = {"key_dim": key_dim, "head_dim": int(width * described.get("expand_v", 1)) // heads}
    options |= {"gate": described.get("use_gate", False), "norm_eps": key_dim * described.get("norm_eps", 1e-6)}
    options["allow_negative_eigenvalues"] = described.get("allow_neg_eigval", False)
    return _fla(described, tensors, "delta", heads, options)


def _gla(described: Described, tensors: dict[str, Tensor]) -> dict[str, Any]:
    _must(described, {"feature_map": None, "use_gk": True, "use_gv": False, "use_output_gate": True, "clamp_min": None})
    heads, width = described["num_heads"], described["hidden_size"]
    _must(described, {"num_kv_heads": None if described.get("num_kv_heads") != heads else heads})
    options = {"key_dim": int(width * described.get("expand_k", 0.5)) // heads}
    options |= {"head_dim": int(width * described.get("expand_v", 1)) // heads, "norm_eps": described.get("norm_eps", 1e-6)}
    options |= {"tau": float(described.get("gate_logit_normalizer", 16))}
    options["decay_rank"] = tensors["model.layers.0.attn.gk_proj.0.weight"].shape[0]
    return _fla(described, tensors, "gla", heads, options)


def _as_fla(config: MaclaurinConfig) -> Described:
    mixer = config.layer_mixers()[0]
    options, width, heads = config.options_of(mixer), config.hidden_size, config.num_attention_heads
    key_dim, head_dim = options["key_dim"], options["head_dim"]
    described = {
        "hidden_size": width,
        "num_hidden_layers": config.num_hidden_layers,
        "num_heads": heads,
        "intermediate_size": config.intermediate_size,
        "hidden_act": "swish",
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tie_word_embeddings,
        "use_short_conv": options.get("conv_width", 0) > 0,
        "conv_size": options.get("conv_width", 4),
        **_tokens(vars(config)),
    }
    if mixer == "gla":
        ratios = {"expand_k": key_dim * heads / width, "expand_v": head_dim * heads / width}
        return described | ratios | {"model_type": "gla", "gate_logit_normalizer": options["tau"]}
    described |= {"use_gate": options["gate"], "allow_neg_eigval": options["allow_negative_eigenvalues"]}
    if mixer == "delta":
        ratios = {"expand_k": key_dim * heads / width, "expand_v": head_dim * heads / width}
        return described | ratios | {"model_type": "delta_net"}
    keys = options.get("shared_keys", heads)
    own = {"num_heads": keys, "num_v_heads": heads, "head_dim": key_dim, "expand_v": head_dim / key_dim}
    return described | own | {"model_type": "gated_deltanet"}


# --- all of them


def _must(described: Described, fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        given = described.get(name, value)
        if given != value and not (value in (None, False, []) and not given):
            raise ValueError(
                f"config.json must have {name} = {value!r}, which is all that the mixers compute, got {given!r:.60}"
            )


def _tokens(described: Mapping[str, Any]) -> dict[str, Any]:
    return {name: described.get(name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}


def _is(model_type: str) -> Callable[[Described], bool]:
    return lambda described: described.get("model_type") == model_type


LAYOUTS: dict[str, Layout] = {
    "state-spaces-mamba2": Layout(
        lambda described: "ssm_cfg" in described and _is_mamba_2(described),
        _state_spaces,
        _as_state_spaces,
        _mamba_names("embedding", MAMBA_2),
        "mamba2",
    ),
    "state-spaces-mamba": Layout(
        lambda described: "ssm_cfg" in described and not _is_mamba_2(described),
        _state_spaces,
        _as_state_spaces,
        _mamba_names("embedding", MAMBA_1),
        "mamba",
    ),
    "transformers-mamba2": Layout(
        _is("mamba2"), _transformers, _as_transformers, _mamba_names("embeddings", MAMBA_2), "mamba2"
    ),
    "transformers-mamba": Layout(
        _is("mamba"), _transformers, _as_transformers, _mamba_names("embeddings", MAMBA_1), "mamba"
    ),
    "fla-gated-deltanet": Layout(_is("gated_deltanet"), _gated_delta, _as_fla, _fla_names(GATED_DELTA), "gated-delta"),
    "fla-deltanet": Layout(_is("delta_net"), _delta, _as_fla, _fla_names(DELTA), "delta"),
    "fla-gla": Layout(_is("gla"), _gla, _as_fla, _fla_names(GLA), "gla"),
}


def import_layout(folder: Path, output: Path) -> Iterator[str]:
    """Writes the model to `output`, with the tokenizer if there is one; says what it found, line by line."""
    _apart(folder, output)
    name, model, unknown = load_layout(folder)
    model.save_pretrained(output)
    _beside(folder, output)
    for tensor in unknown:
        yield f"unknown and left out: {tensor}"
    config = model.config
    yield f"{name}: {model.num_parameters():,} parameters, {config.num_hidden_layers} layers of {config.layer_mixers()[0]}"
    yield str(output)


def load_layout(folder: Path) -> tuple[str, MaclaurinForCausalLM, list[str]]:
    """The name of the layout, the model, and the names of tensors that have no place in it."""
    described = _described(folder)
    name = next((name for name, layout in LAYOUTS.items() if layout.recognised(described)), None)
    if name is None:
        kind = described.get("model_type")
        raise ValueError(f"{str(folder)!r} must have a known layout ({', '.join(LAYOUTS)}), its model_type is {kind!r:.60}")
    tensors, layout = _tensors(folder), LAYOUTS[name]
    with naming(folder / "config.json"):
        try:
            fields = layout.fields(described, tensors)
            fields["vocab_size"] = tensors[layout.names[EMBEDDINGS]].shape[0]  # type: ignore[index]
        except KeyError as missing:
            raise ValueError(f"{str(folder)!r} lacks {missing}, which the layout {name} has") from missing
        config = MaclaurinConfig(**fields)
    check_size(folder, described, lambda: MaclaurinForCausalLM(config))
    model = MaclaurinForCausalLM(config)
    given, used = _joined(layout, tensors, model)
    model.load_state_dict(given, assign=True)
    model.tie_weights()
    return name, model.eval(), sorted(set(tensors) - used)


def _joined(layout: Layout, tensors: dict[str, Tensor], model: MaclaurinForCausalLM) -> tuple[dict[str, Tensor], set[str]]:
    given: dict[str, Tensor] = {}
    used: set[str] = set()
    for ours, parts, layer in _pairs(layout, model.config.num_hidden_layers):
        wanted = model.state_dict().get(ours)
        if wanted is None:
            continue
        if ours == HEAD and model.config.tie_word_embeddings and HEAD not in tensors:
            parts = (str(layout.names[EMBEDDINGS]),)
        for part in parts:
            if part not in tensors:
                raise ValueError(
                    f"the checkpoint lacks {part} of layer {layer}" if layer else f"the checkpoint lacks {part}"
                )
        made = torch.cat([tensors[part] for part in parts]) if len(parts) > 1 else tensors[parts[0]]
        if made.shape != wanted.shape:
            raise ValueError(
                f"the checkpoint has {' and '.join(parts)} of shape {tuple(made.shape)}, "
                f"its config.json gives {tuple(wanted.shape)}"
            )
        given[ours] = made
        used.update(parts)
    return given, used


def export_layout(folder: Path, output: Path, to: str) -> Iterator[str]:
    """Writes the model of a folder in a published layout, with its tokenizer."""
    one_of("to", to, tuple(LAYOUTS))
    _apart(folder, output)
    layout, config = LAYOUTS[to], MaclaurinConfig.from_pretrained(folder)
    if set(config.layer_mixers()) != {layout.mixer} or (config.mlp == "none") != to.endswith(("mamba", "mamba2")):
        has = f"{', '.join(sorted(set(config.layer_mixers())))} and mlp {config.mlp}"
        raise ValueError(f"layout {to} is of layers of {layout.mixer} alone, {str(folder)!r} has {has}")
    tensors = _tensors(folder)
    found: dict[str, Tensor] = {}
    with torch.device("meta"):
        mixer: Any = MaclaurinForCausalLM(config).model.layers[0].mixer
    for ours, parts, _ in _pairs(layout, config.num_hidden_layers):
        if ours not in tensors or (ours == HEAD and config.tie_word_embeddings):
            continue
        pieces = tensors.pop(ours).split(mixer.qkv_sizes) if len(parts) > 1 else [tensors.pop(ours)]
        found.update(zip(parts, (piece.contiguous() for piece in pieces), strict=True))
    if left := sorted(set(tensors) - {HEAD}):
        raise ValueError(f"layout {to} has no place for {', '.join(left)}")
    output.mkdir(parents=True, exist_ok=True)
    save_file(found, output / "model.safetensors", metadata={"format": "pt"})
    (output / "config.json").write_text(json.dumps(layout.described(config), indent=2) + "\n", encoding="utf-8")
    _beside(folder, output)
    yield str(output)


def _pairs(layout: Layout, layers: int) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """Our name and theirs of every tensor that a model of the layout may have."""
    for ours, theirs in layout.names.items():
        parts = (theirs,) if isinstance(theirs, str) else theirs
        for layer in range(layers if "{}" in ours else 1):
            yield ours.format(layer), tuple(part.format(layer) for part in parts), layer


def _described(folder: Path) -> Described:
    if not (folder / "config.json").is_file():
        raise ValueError(f"{str(folder)!r} has no config.json")
    described: Described = read_json(folder / "config.json")
    return described


def _tensors(folder: Path) -> dict[str, Tensor]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{str(folder)!r} has no safetensors: pickled weights are never loaded")
    tensors: dict[str, Tensor] = {}
    for path in files:
        stays_inside(folder, path)
        try:
            with safe_open(path, framework="pt") as file:
                tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        except SafetensorError as error:
            raise ValueError(f"{str(path)!r} is broken: {error}") from error
    return tensors


def _apart(folder: Path, output: Path) -> None:
    if output.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"output {str(output)!r} lies in the folder of the model, which is never written to")


def _beside(folder: Path, output: Path) -> None:
    """The tokenizer's files."""
    for name in BESIDE:
        if (folder / name).is_file():
            stays_inside(folder, folder / name)
            shutil.copyfile(folder / name, output / name)
