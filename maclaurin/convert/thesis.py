"""Checkpoints of the authors of the thesis (arXiv 2507.23632, paper 1, and 2602.17363, paper 2) as `maclaurin` models.

Only `model.safetensors` and `config.json` are read. Their folders also contain pickles (`.pt`), which are never opened, and
a (1, 1, L, L) mask per layer, which is never read: 1.8 GB of the published 2Mamba. Two layouts are known: paper 2's (one
`qkv_proj`, rotary pairs interleaved) and paper 1's (three projections, but for two rows, and halves paired).
`attention_type` in config.json names the row of the papers' tables (`mixers/published.py`). For trained weights the authors'
code is the law: where it differs from a row's name, the model has the options of `AS_TRAINED`, and what no mixer computes is
refused.

Paper 2's softmax was trained with positions rounded to bfloat16 and evaluated with exact ones; here either is an option.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from maclaurin.common.files import naming, read_json
from maclaurin.mixers.published import AS_TRAINED, NOT_LOADED, PAPER_1, PAPER_2
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM
from maclaurin.models.checked import check_size, stays_inside

LAYER = re.compile(r"model\.layers\.(\d+)\.self_attn\.(.+)$")
# not parameters: masks, rotary frequencies, an unused table of positions, a bias that no configuration adds
SKIPPED = re.compile(r"self_attn\.(attn_mask|rotary_emb\..*|abs_pos_enc\.pe|dt_bias_value)$|^model\.rotary_emb\.")
# their name -> ours, inside a layer's attention
NAMES = {
    "o_proj.weight": "out_proj.weight",
    "A_mask_proj.weight": "decay_proj.weight",
    "conv1d.weight": "conv.weight",
    "conv1d.bias": "conv.bias",
    "D": "skip",
    "z_gate_proj.weight": "gate_proj.weight",
    "z_gate_proj.bias": "gate_proj.bias",
    "norm_const": "position_power",
}
# the gate that is summed into a divisor
CUMULATIVE = {f"out_gate_proj.{part}": f"divisor_proj.{part}" for part in ("weight", "bias")}
SEPARATE = ("q_proj.weight", "k_proj.weight", "v_proj.weight")
MAMBA = "mamba_layer."
FIELDS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
    "rms_norm_eps",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "tie_word_embeddings",
)
BESIDE = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")


def import_checkpoint(folder: Path, output: Path, *, rounded_positions: bool = False) -> Iterator[str]:
    """Writes the model to `output`, with the tokenizer if there is one; says what it found, line by line."""
    if output.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"output {str(output)!r} lies in the checkpoint's folder, which is never written to")
    model, unknown = load_checkpoint(folder, rounded_positions=rounded_positions)
    model.save_pretrained(output)
    for name in BESIDE:
        if (folder / name).is_file():
            stays_inside(folder, folder / name)
            shutil.copyfile(folder / name, output / name)
    for name in unknown:
        yield f"unknown and left out: {name}"
    mixers = ", ".join(sorted(set(model.config.layer_mixers())))
    yield f"{sum(p.numel() for p in model.parameters()):,} parameters, {model.config.num_hidden_layers} layers of {mixers}"
    yield str(output)


def load_checkpoint(folder: Path, *, rounded_positions: bool = False) -> tuple[MaclaurinForCausalLM, list[str]]:
    """The model, in float32, and the names of tensors that have no place in it."""
    described = _config_file(folder)
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise ValueError(f"checkpoint {str(folder)!r} has no model.safetensors: pickled weights are never loaded")
    try:
        with safe_open(weights, framework="pt") as file:
            names = list(file.keys())
            config = _config(described, names, folder, rounded_positions)
            kept = {name: file.get_tensor(name) for name in names if not SKIPPED.search(name)}
            tensors, unknown = _translated(kept, described["attention_type"])
    except SafetensorError as error:
        raise ValueError(f"checkpoint {str(folder)!r} has a broken model.safetensors: {error}") from error
    check_size(folder, described, lambda: MaclaurinForCausalLM(config))
    model = MaclaurinForCausalLM(config)
    known = model.state_dict()
    unknown += [name for name in tensors if name not in known]
    for name, wanted in known.items():
        if name not in tensors:
            raise ValueError(f"checkpoint {str(folder)!r} lacks {name}, which its attention_type needs")
        tensors[name] = tensors[name].reshape(wanted.shape) if tensors[name].numel() == wanted.numel() else tensors[name]
        if tensors[name].shape != wanted.shape:
            raise ValueError(
                f"checkpoint {str(folder)!r} has {name} of shape {tuple(tensors[name].shape)}, "
                f"its config.json gives {tuple(wanted.shape)}"
            )
    model.load_state_dict({name: tensor for name, tensor in tensors.items() if name in known})
    return model.eval(), sorted(unknown)


def _config_file(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    if not file.is_file():
        raise ValueError(f"checkpoint {str(folder)!r} has no config.json")
    try:
        described: dict[str, Any] = read_json(file)
    except ValueError as error:
        raise ValueError(f"checkpoint {str(folder)!r} cannot be imported: {error}") from error
    for name in ("attention_type", "hidden_size", "num_attention_heads"):
        if name not in described:
            raise ValueError(f"checkpoint {str(folder)!r} has no {name} in its config.json: it is none of the thesis's")
    return described


def _config(described: dict[str, Any], names: list[str], folder: Path, rounded_positions: bool) -> MaclaurinConfig:
    kind = described["attention_type"]
    if not isinstance(kind, str):
        raise ValueError(f"checkpoint {str(folder)!r} must name its attention_type in config.json, got {kind!r:.60}")
    if kind in NOT_LOADED:
        raise ValueError(
            f"checkpoint {str(folder)!r} has attention_type {kind!r}, which cannot be loaded: {NOT_LOADED[kind]}"
        )
    separate = any(name.endswith(f"self_attn.{SEPARATE[0]}") for name in names)
    paper_1 = kind not in PAPER_2 or (kind in PAPER_1 and separate)  # both have softmax
    rows = PAPER_1 if paper_1 else PAPER_2
    if kind not in rows:
        raise ValueError(f"checkpoint {str(folder)!r} has attention_type {kind!r}, which neither paper's tables have")
    mixer, options = rows[kind]
    options = {**options, **(AS_TRAINED.get(kind, {}) if paper_1 else {})}
    if rounded_positions:
        if mixer != "softmax":
            raise ValueError(f"rounded positions are for checkpoints of softmax, this one is {kind!r}")
        options["rounded_positions"] = True
    if paper_1 and mixer != "mamba2" and "rope_theta" in described:  # paper 2's layers have one of their own, 10000
        options["rope_theta"] = described["rope_theta"]
    fields = {name: described[name] for name in FIELDS if described.get(name) is not None}
    with naming(folder / "config.json"):
        return MaclaurinConfig(**fields, mixer=mixer, mixer_options={mixer: options})


def _translated(tensors: dict[str, Tensor], kind: str) -> tuple[dict[str, Tensor], list[str]]:
    """Under our names, with three projections put into one."""
    own = NAMES | (CUMULATIVE if kind == "gated_softmax_cumgate" else {})
    found: dict[str, Tensor] = {}
    separate: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        match = LAYER.match(name)
        if match is None:
            found[name] = tensor.float()
            continue
        layer, part = match.groups()
        prefix = f"model.layers.{layer}.mixer."
        if part in SEPARATE:
            separate.setdefault(prefix, {})[part] = tensor.float()
        elif part.startswith(MAMBA):
            found[prefix + part.removeprefix(MAMBA)] = tensor.float()
        else:
            found[prefix + own.get(part, part)] = tensor.float()
    unknown = []
    for prefix, parts in separate.items():
        if len(parts) == len(SEPARATE):
            found[f"{prefix}qkv_proj.weight"] = torch.cat([parts[part] for part in SEPARATE])
        else:
            unknown += [prefix.replace("mixer.", "self_attn.") + part for part in parts]
    return found, unknown
