"""fla's models with softmax in some layers: formulas, generation, and the way there and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from maclaurin.convert.layouts import export_layout, import_layout
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM
from tests.convert.test_layouts import CHECKPOINTS, EPS, VOCAB, WIDTH, Weights, draw, rms, shapes_of, tokens

HEADS, KEY_HEADS, THETA = 4, 2, 500.0
HYBRIDS = ["fla-gated-deltanet", "fla-deltanet", "fla-gla", "fla-retnet"]
each_hybrid = pytest.mark.parametrize("layout", HYBRIDS)
each_window = pytest.mark.parametrize("window", [None, 5])
PLACES = ("q_proj", "k_proj", "v_proj", "o_proj")


def attn(window: int | None, **changes: Any) -> dict[str, Any]:
    described = {"layers": [0], "num_heads": HEADS, "num_kv_heads": KEY_HEADS, "qkv_bias": False, "rope_theta": THETA}
    return described | {"window_size": window} | changes


def checkpoint(folder: Path, layout: str, window: int | None, **changes: Any) -> Weights:
    shapes = {name: shape for name, shape in shapes_of(layout).items() if not name.startswith("model.layers.0.attn.")}
    for name, rows in zip(PLACES, (WIDTH, WIDTH // 2, WIDTH // 2, WIDTH), strict=True):
        shapes[f"model.layers.0.attn.{name}.weight"] = (rows, WIDTH)
    weights = draw(3, shapes)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CHECKPOINTS[layout][0] | {"attn": attn(window, **changes)}))
    save_file(weights, folder / "model.safetensors")
    return weights


def turned(x_BTHK: Tensor) -> Tensor:
    """The first half of a head's channels is turned with the second."""
    half, T = x_BTHK.shape[-1] // 2, x_BTHK.shape[1]
    angle = torch.arange(T).double()[:, None] * THETA ** -(torch.arange(half).double() / half)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x_BTHK.split(half, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def softmax(x: Tensor, w: Weights, window: int | None) -> Tensor:
    q, k, v = ((x @ w[f"{name}.weight"].mT).unflatten(-1, (-1, WIDTH // HEADS)) for name in PLACES[:3])
    q, k = turned(q), turned(k)
    k, v = (part.repeat_interleave(HEADS // KEY_HEADS, dim=2) for part in (k, v))
    T = x.shape[1]
    behind = torch.arange(T)[:, None] - torch.arange(T)
    hidden = (behind < 0) | (behind >= (window or T))
    score = torch.einsum("bthk,bshk->bhts", q, k) * (WIDTH // HEADS) ** -0.5
    y = torch.einsum("bhts,bshv->bthv", score.masked_fill(hidden, -torch.inf).softmax(-1), v)
    return y.flatten(2) @ w["o_proj.weight"].mT


def logits(layout: str, weights: Weights, ids: Tensor, window: int | None) -> Tensor:
    w = {name: tensor.double() for name, tensor in weights.items()}
    x = w["model.embeddings.weight"][ids]
    for index in range(2):
        prefix = f"model.layers.{index}."
        layer = {name.removeprefix(prefix): tensor for name, tensor in w.items() if name.startswith(prefix)}
        inner = {name.removeprefix("attn."): tensor for name, tensor in layer.items() if name.startswith("attn.")}
        y = rms(x, layer["attn_norm.weight"] - 1)
        x = x + (softmax(y, inner, window) if index == 0 else CHECKPOINTS[layout][2](y, inner))
        y = rms(x, layer["mlp_norm.weight"] - 1)
        gate, up, down = (layer[f"mlp.{name}_proj.weight"].mT for name in ("gate", "up", "down"))
        x = x + (F.silu(y @ gate) * (y @ up)) @ down
    return rms(x, w["model.norm.weight"] - 1) @ w.get("lm_head.weight", w["model.embeddings.weight"]).mT


@each_hybrid
@each_window
def test_a_hybrid_computes_its_formula_and_generates_by_it(layout: str, window: int | None, tmp_path: Path) -> None:
    assert CHECKPOINTS[layout][0]["norm_eps"] == EPS
    weights = checkpoint(tmp_path / "theirs", layout, window)
    *unknown, _, _ = import_layout(tmp_path / "theirs", tmp_path / "ours")
    assert unknown == []
    model = MaclaurinForCausalLM.from_pretrained(tmp_path / "ours").eval()
    ids = tokens(2, 40)
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits.double(), logits(layout, weights, ids, window), rtol=0, atol=1e-5)
    ids = expected = tokens(1, 6)
    for _ in range(8):
        expected = torch.cat([expected, logits(layout, weights, expected, window)[:, -1:].argmax(-1)], dim=1)
    given = model.generate(ids, max_new_tokens=8, do_sample=False, eos_token_id=VOCAB + 1, pad_token_id=0)
    assert given.tolist() == expected.tolist()


@each_hybrid
@each_window
def test_the_way_there_and_back_changes_no_bit(layout: str, window: int | None, tmp_path: Path) -> None:
    weights = checkpoint(tmp_path / "theirs", layout, window)
    list(import_layout(tmp_path / "theirs", tmp_path / "ours"))
    list(export_layout(tmp_path / "ours", tmp_path / "back", layout))
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert set(back) == set(weights)
    assert all(torch.equal(back[name], tensor) for name, tensor in weights.items())
    assert json.loads((tmp_path / "back" / "config.json").read_text())["attn"] == attn(window)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"layers": [0, 1]}, "and not all"),
        ({"layers": [2]}, "some of the layers"),
        ({"layers": "0"}, "some of the layers"),
        ({"layers": [True]}, "some of the layers"),
        ({"num_heads": 2}, "as many heads as the other layers, 4"),
        ({"qkv_bias": True}, "qkv_bias = False"),
        ({"window_size": -1}, "window"),
    ],
)
def test_softmax_that_the_mixers_do_not_compute_is_refused(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    checkpoint(tmp_path / "theirs", "fla-gla", None, **changes)
    with pytest.raises(ValueError, match=says):
        list(import_layout(tmp_path / "theirs", tmp_path / "ours"))


def test_a_model_of_softmax_alone_has_no_layout_of_fla(tmp_path: Path) -> None:
    config = MaclaurinConfig(
        mixer="softmax", hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, vocab_size=VOCAB
    )
    MaclaurinForCausalLM(config).save_pretrained(tmp_path / "ours")
    with pytest.raises(ValueError, match="models with linear layers"):
        list(export_layout(tmp_path / "ours", tmp_path / "theirs", "fla-gla"))
