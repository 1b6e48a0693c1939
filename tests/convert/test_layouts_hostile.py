"""A published checkpoint may come from anybody: what is wrong with it is one sentence, said before it is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from maclaurin.convert.layouts import export_layout, import_layout
from tests.convert.test_layouts import checkpoint

NAN = float("nan")


def imported(folder: Path) -> None:
    list(import_layout(folder, folder.parent / "ours"))


def describe(folder: Path, **fields: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


@pytest.mark.parametrize(
    ("layout", "fields", "sentence"),
    [
        ("fla-gla", {"hidden_size": 2**40}, "hidden_size must be a whole number"),
        ("fla-gla", {"hidden_size": 2**20}, "these sizes ask for"),
        ("fla-gla", {"num_hidden_layers": 60000}, "the weights hold"),
        ("fla-gla", {"num_heads": 0}, "num_heads must be a whole number"),
        ("fla-gla", {"num_heads": "4"}, "num_heads must be a whole number"),
        ("fla-gla", {"norm_eps": NAN}, "norm_eps must be a number"),
        ("fla-gla", {"expand_k": NAN}, "expand_k must be a number"),
        ("fla-gla", {"gate_logit_normalizer": -1}, "gate_logit_normalizer must be a number"),
        ("fla-retnet", {"num_kv_heads": 2}, "must have num_kv_heads"),
        ("fla-gated-deltanet", {"expand_v": 1e9}, "expand_v must be a number"),
        ("fla-hgrn2", {"expand_ratio": 12}, "expand_ratio must divide hidden_size"),
        ("fla-hgrn2", {"expand_ratio": None}, "num_heads must be a whole number"),
        ("fla-hgrn2", {"expand_ratio": "16"}, "expand_ratio must be a whole number"),
        ("fla-hgrn2", {"expand_ratio": 8, "attn": {"layers": [1], "num_heads": 4}}, "must have attn"),
        ("transformers-xlstm", {"output_logit_soft_cap": 0}, "logit_cap must be a number"),
        ("transformers-xlstm", {"weight_mode": "melted"}, "must have weight_mode"),
        ("transformers-xlstm", {"weight_mode": "fused"}, "must have backbone.blocks.0.ffn.proj_up_gate_z.weight"),
        ("transformers-mamba2", {"n_groups": 3}, "n_groups must divide"),
        ("transformers-mamba2", {"time_step_limit": [3, 1]}, "dt_limit"),
        ("state-spaces-mamba", {"ssm_cfg": "Mamba1"}, "ssm_cfg must be an object"),
        ("state-spaces-mamba", {"n_layer": None}, "n_layer must be a whole number"),
        ("transformers-recurrent-gemma", {"block_types": []}, "block_types must be a list"),
        ("transformers-recurrent-gemma", {"block_types": ["recurrent", ["attention"]]}, "block_types must be a list"),
        ("transformers-recurrent-gemma", {"block_types": ["attention", "recurrent"]}, "the checkpoint lacks"),
        ("transformers-recurrent-gemma", {"rope_parameters": "default"}, "rope_parameters must be an object"),
        ("transformers-recurrent-gemma", {"rope_parameters": {"rope_type": "yarn"}}, "must have rope_type"),
        ("transformers-recurrent-gemma", {"partial_rotary_factor": NAN}, "partial_rotary_factor must be a number"),
        ("transformers-recurrent-gemma", {"partial_rotary_factor": 3}, "rotary_dim must be an even number"),
        ("transformers-recurrent-gemma", {"rope_theta": 0}, "rope_theta must be positive"),
        ("transformers-recurrent-gemma", {"hidden_activation": "silu"}, "must have hidden_activation"),
        ("transformers-recurrent-gemma", {"logits_soft_cap": None}, "logits_soft_cap must be a number"),
        ("transformers-recurrent-gemma", {"num_key_value_heads": 3}, "num_kv_heads must divide"),
        ("transformers-recurrent-gemma", {"intermediate_size": 1}, "intermediate_size must be a whole number"),
        ("transformers-recurrent-gemma", {"attention_window_size": -1}, "attention_window_size must be a whole number"),
        ("transformers-recurrent-gemma", {"num_attention_heads": 64}, "must be a multiple of num_heads"),
    ],
)
def test_a_false_description_is_one_sentence(layout: str, fields: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    checkpoint(tmp_path / "theirs", layout)
    describe(tmp_path / "theirs", **fields)
    with pytest.raises(ValueError, match=sentence) as refused:
        imported(tmp_path / "theirs")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "ours").exists()


def shards(folder: Path) -> dict[str, str]:
    """The checkpoint in two files, and the index of them."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    parts = {"a.safetensors": sorted(weights)[::2], "b.safetensors": sorted(weights)[1::2]}
    for name, tensors in parts.items():
        save_file({tensor: weights[tensor] for tensor in tensors}, folder / name)
    return {tensor: name for name, tensors in parts.items() for tensor in tensors}


def index(folder: Path, places: dict[str, str]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def test_a_checkpoint_in_shards_is_the_same_model(tmp_path: Path) -> None:
    weights = checkpoint(tmp_path / "theirs", "fla-gla")
    index(tmp_path / "theirs", shards(tmp_path / "theirs"))
    imported(tmp_path / "theirs")
    list(export_layout(tmp_path / "ours", tmp_path / "back", "fla-gla"))
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert set(back) == set(weights) and all(torch.equal(back[name], weights[name]) for name in weights)


def outside(folder: Path, places: dict[str, str]) -> None:
    save_file({"x": torch.zeros(1)}, folder.parent / "outside.safetensors")
    index(folder, places | {"x": "../outside.safetensors"})


def link(folder: Path, places: dict[str, str]) -> None:
    save_file({"x": torch.zeros(1)}, folder.parent / "outside.safetensors")
    (folder / "c.safetensors").symlink_to(folder.parent / "outside.safetensors")
    index(folder, places | {"x": "c.safetensors"})


def missing(folder: Path, places: dict[str, str]) -> None:
    (folder / "b.safetensors").unlink()
    index(folder, places)


def twice(folder: Path, places: dict[str, str]) -> None:
    save_file(load_file(folder / "a.safetensors") | load_file(folder / "b.safetensors"), folder / "b.safetensors")
    index(folder, places)


def whole_numbers(folder: Path, places: dict[str, str]) -> None:
    save_file({name: x.int() for name, x in load_file(folder / "b.safetensors").items()}, folder / "b.safetensors")
    index(folder, places)


def cut_off(folder: Path, places: dict[str, str]) -> None:
    (folder / "b.safetensors").write_bytes((folder / "b.safetensors").read_bytes()[:-9])
    index(folder, places)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (outside, "must be a file in the same folder"),
        (link, "leads out of its folder"),
        (missing, "no .safetensors file in its folder"),
        (twice, "another file of the checkpoint has too"),
        (whole_numbers, "of type I32"),
        (cut_off, "cannot be read"),
    ],
)
def test_false_shards_are_one_sentence(spoil: Callable[[Path, dict[str, str]], None], sentence: str, tmp_path: Path) -> None:
    checkpoint(tmp_path / "theirs", "fla-gla")
    spoil(tmp_path / "theirs", shards(tmp_path / "theirs"))
    with pytest.raises(ValueError, match=sentence) as refused:
        imported(tmp_path / "theirs")
    assert "\n" not in str(refused.value)


def test_a_head_that_is_not_the_embeddings_is_not_dropped(tmp_path: Path) -> None:
    weights = checkpoint(tmp_path / "theirs", "fla-gla")
    describe(tmp_path / "theirs", tie_word_embeddings=True)
    assert not torch.equal(weights["lm_head.weight"], weights["model.embeddings.weight"])
    with pytest.raises(ValueError, match="has another one"):
        imported(tmp_path / "theirs")


def test_what_a_layout_cannot_say_is_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path / "theirs", "fla-gla")
    imported(tmp_path / "theirs")
    file = tmp_path / "ours" / "config.json"
    described = json.loads(file.read_text())
    described["mixer_options"]["gla"]["rotary"] = "rope"
    file.write_text(json.dumps(described))
    with pytest.raises(ValueError, match="cannot say rotary = 'rope'"):
        list(export_layout(tmp_path / "ours", tmp_path / "back", "fla-gla"))


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("embedding_scale", 1.0, "embedding_scale"),
        ("zero_centered_norms", False, "zero_centered_norms"),
        ("mlp_bias", False, "mlp_bias"),
        ("logit_cap", None, "logits_soft_cap"),
    ],
)
def test_what_surrounds_the_mixers_is_never_dropped(field: str, value: object, named: str, tmp_path: Path) -> None:
    checkpoint(tmp_path / "theirs", "transformers-recurrent-gemma")
    imported(tmp_path / "theirs")
    file = tmp_path / "ours" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))
    with pytest.raises(ValueError, match=named):
        list(export_layout(tmp_path / "ours", tmp_path / "back", "transformers-recurrent-gemma"))
