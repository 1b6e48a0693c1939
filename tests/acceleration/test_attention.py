"""Softmax layers of linear models take the kernel where it computes what they compute, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_utils import AttentionInterface

import maclaurin
from maclaurin.acceleration import attention
from tests.acceleration.test_architectures import TOLERANCE, assert_same_gradients, tokens
from tests.acceleration.tiny import tiny


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Those of the kernel, on any processor."""
    found: list[dict[str, Any]] = []
    kernel = attention.ops.softmax_attention

    def noted(*args: Any, **kwargs: Any) -> Any:
        found.append(kwargs)
        return kernel(*args, **kwargs)

    monkeypatch.setattr(attention, "mkl_falls_back", lambda: True)
    monkeypatch.setattr(attention.ops, "softmax_attention", noted)
    return found


@pytest.mark.parametrize("name", ["olmo_hybrid", "qwen3_next", "kimi_linear", "falcon_h1"])
def test_it_computes_what_theirs_does(name: str, calls: list[dict[str, Any]]) -> None:
    model, ids = tiny(name), tokens(2, 40)
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits
    with maclaurin.accelerate_transformers(model), torch.no_grad():
        torch.testing.assert_close(model(ids, use_cache=False).logits, logits, rtol=0, atol=TOLERANCE)
    assert calls
    calls.clear()
    assert_same_gradients(model, ids)
    assert calls


def heads(T: int = 9, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, H, T, 8, dtype=dtype) for H in (4, 2, 2)]


def layer_of(name: str) -> nn.Module:
    """Its softmax layer, with two key-value heads."""
    return next(module for module in tiny(name).modules() if type(module).__name__.endswith("Attention"))


@pytest.mark.parametrize(
    ("T", "dtype", "arguments"),
    [
        (9, torch.float32, {"is_causal": False}),
        (9, torch.float32, {"dropout": 0.5}),
        (9, torch.float32, {"position_bias": torch.zeros(1, 4, 9, 9)}),
        (9, torch.bfloat16, {}),
        (1, torch.float32, {}),
    ],
)
def test_whatever_else_stays_theirs(
    T: int, dtype: torch.dtype, arguments: dict[str, Any], calls: list[dict[str, Any]]
) -> None:
    layer = layer_of("olmo_hybrid")
    with maclaurin.accelerate_transformers():
        AttentionInterface()["sdpa"](layer, *heads(T, dtype), None, **arguments)
        assert not calls
        AttentionInterface()["sdpa"](layer, *heads(), torch.ones(2, 1, 9, 9, dtype=torch.bool))
        assert not calls
        AttentionInterface()["sdpa"](layer, *heads(), None)
        assert len(calls) == 1


def test_models_without_kernels_keep_theirs(calls: list[dict[str, Any]]) -> None:
    config = LlamaConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=64)
    model = LlamaForCausalLM(config).eval()
    with maclaurin.accelerate_transformers(), torch.no_grad():
        model(tokens(1, 12))
    assert not calls


def test_undo_gives_the_registry_back() -> None:
    theirs = AttentionInterface()["sdpa"]
    with maclaurin.accelerate_transformers():
        assert AttentionInterface()["sdpa"] is not theirs
    assert AttentionInterface()["sdpa"] is theirs


def test_whoever_looks_into_a_function_sees_theirs(calls: list[dict[str, Any]]) -> None:
    layer, (query, key, value) = layer_of("olmo_hybrid"), heads()

    def attend(query: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = AttentionInterface()["sdpa"](layer, query, key, value, None)[0]
        return y

    with maclaurin.accelerate_transformers():
        torch.func.grad(lambda query: attend(query).sum())(query)
        assert not calls
        attend(query)
        assert calls
