"""Every architecture computes with the kernels of this package what it computes without them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import maclaurin
from maclaurin.acceleration import ARCHITECTURES
from maclaurin.acceleration.documents import Packing
from tests.acceleration.tiny import TINY, tiny

TOLERANCE = 1e-5
LENGTHS = [13, 1, 22, 14]  # of documents
each_architecture = pytest.mark.parametrize("name", sorted(TINY))


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(2, 64, shape, generator=torch.Generator().manual_seed(1))


def test_every_architecture_is_tested() -> None:
    assert set(TINY) == set(ARCHITECTURES)


def test_every_linear_layer_of_transformers_has_kernels() -> None:
    """A modeling file that defines one of these is to be covered, those of versions to come too."""
    scans = (
        r"def \w*(selective_scan|chunk_scan|delta_rule|delta_attention|linear_attention|rnn_scan|causal_conv1d_fn|mlstm)"
        r"|class \w*(Lightning|LinearAttention|Retention|Rglru|Mamba\w*Mixer|GatedDelta)\w*\(nn\.Module"
    )
    models = Path(transformers.__file__).parent / "models"
    files = {
        file.parent.name: file for file in models.glob("*/modeling_*.py") if file.stem == f"modeling_{file.parent.name}"
    }
    found = {name for name, file in files.items() if re.search(scans, file.read_text(encoding="utf-8"))}
    assert len(found) > 20
    assert found == set(ARCHITECTURES) & set(files)


@each_architecture
@pytest.mark.parametrize("use_cache", [True, False])
def test_logits_are_the_same(name: str, use_cache: bool) -> None:
    model, ids = tiny(name), tokens(2, 50)
    with torch.no_grad():
        expected = model(ids, use_cache=use_cache).logits
        with maclaurin.accelerate_transformers(model):
            logits = model(ids, use_cache=use_cache).logits
    torch.testing.assert_close(logits, expected, rtol=0, atol=TOLERANCE)


@each_architecture
def test_gradients_are_the_same(name: str) -> None:
    assert_same_gradients(tiny(name), tokens(2, 40))


def assert_same_gradients(model: torch.nn.Module, ids: torch.Tensor) -> None:
    model.train()
    try:
        expected = gradients(model, ids)
        with maclaurin.accelerate_transformers(model):
            given = gradients(model, ids)
    finally:
        model.eval()
    for parameter, gradient in expected.items():
        torch.testing.assert_close(given[parameter], gradient, rtol=1e-4, atol=TOLERANCE)


def gradients(model: torch.nn.Module, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(ids, labels=ids, use_cache=False).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@each_architecture
def test_greedy_tokens_are_the_same(name: str) -> None:
    model, ids = tiny(name), tokens(2, 11)
    options = {"max_new_tokens": 12, "do_sample": False}
    expected = model.generate(ids, **options)
    with maclaurin.accelerate_transformers(model):
        given = model.generate(ids, **options)
    assert given.tolist() == expected.tolist()


@pytest.mark.parametrize("name", sorted(set(TINY) - {n for n in TINY if ARCHITECTURES[n].packing is Packing.REFUSED}))
@pytest.mark.parametrize("told_by", ["cu_seq_lens_q", "seq_idx", "position_ids"])
def test_documents_in_a_pack_never_meet(name: str, told_by: str) -> None:
    model, ids = tiny(name), tokens(1, sum(LENGTHS))
    lengths = torch.tensor(LENGTHS)
    packed = {
        "cu_seq_lens_q": torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]).int(),
        "seq_idx": torch.arange(len(LENGTHS)).repeat_interleave(lengths)[None].int(),
        "position_ids": torch.cat([torch.arange(length) for length in LENGTHS])[None],
    }
    with torch.no_grad():
        alone = [model(document, use_cache=False).logits for document in ids.split(LENGTHS, dim=1)]
        with maclaurin.accelerate_transformers(model):
            logits = model(ids, use_cache=False, **{told_by: packed[told_by]}).logits
    torch.testing.assert_close(logits, torch.cat(alone, dim=1), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["mamba2", "qwen3_next"])
def test_gradients_of_a_pack_are_those_of_its_documents(name: str) -> None:
    model, ids = tiny(name), tokens(1, sum(LENGTHS))
    position_ids = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    weight = torch.randn(1, sum(LENGTHS), 64, generator=torch.Generator().manual_seed(2))

    def backward(logits: torch.Tensor) -> dict[str, torch.Tensor]:
        model.zero_grad()
        (logits * weight).mean().backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    expected = backward(torch.cat([model(part, use_cache=False).logits for part in ids.split(LENGTHS, dim=1)], dim=1))
    with maclaurin.accelerate_transformers():
        given = backward(model(ids, use_cache=False, position_ids=position_ids).logits)
    for parameter, gradient in expected.items():
        torch.testing.assert_close(given[parameter], gradient, rtol=1e-4, atol=TOLERANCE)


@pytest.mark.parametrize(
    "name", ["mamba2", "qwen3_next", "kimi_linear", "mamba", "minimax", "lfm3", "recurrent_gemma", "xlstm"]
)
def test_left_padding_is_what_it_is_to_theirs(name: str) -> None:
    model, ids = tiny(name), tokens(2, 20)
    mask = torch.ones_like(ids)
    mask[0, :7] = 0
    options = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False}
    expected = model.generate(ids, **options)
    with maclaurin.accelerate_transformers():
        assert model.generate(ids, **options).tolist() == expected.tolist()


CACHES = {"mamba": "cache_params", "mamba2": "cache_params", "xlstm": "cache_params", "rwkv": "state"}


@pytest.mark.parametrize("name", ["mamba", "mamba2", "falcon_h1", "qwen3_next", "minimax", "rwkv", "xlstm"])
def test_a_cache_goes_on_with_or_without_kernels(name: str) -> None:
    """What one side has cached, the other continues: a prompt, then one token."""
    model, ids = tiny(name), tokens(2, 21)
    cached = CACHES.get(name, "past_key_values")

    def last(ids: torch.Tensor, **past: Any) -> Any:
        with torch.no_grad():
            return model(ids, use_cache=True, **past)

    expected = last(ids[:, 20:], **{cached: last(ids[:, :20])[cached]}).logits
    with maclaurin.accelerate_transformers():
        past = {cached: last(ids[:, :20])[cached]}
    torch.testing.assert_close(last(ids[:, 20:], **past).logits, expected, rtol=0, atol=TOLERANCE)
    past = {cached: last(ids[:, :20])[cached]}
    with maclaurin.accelerate_transformers():
        torch.testing.assert_close(last(ids[:, 20:], **past).logits, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["mamba2", "qwen3_next", "recurrent_gemma", "rwkv"])
def test_checkpointing_gradients_changes_none(name: str) -> None:
    model, ids = tiny(name), tokens(2, 30)
    model.train()
    try:
        expected = gradients(model, ids)
        model.gradient_checkpointing_enable()
        with maclaurin.accelerate_transformers(model):
            given = gradients(model, ids)
    finally:
        model.gradient_checkpointing_disable()
        model.eval()
    for parameter, gradient in expected.items():
        torch.testing.assert_close(given[parameter], gradient, rtol=1e-4, atol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mamba2", "qwen3_next", "mamba"])
def test_a_compiled_model_takes_the_kernels(name: str) -> None:
    model, ids = tiny(name), tokens(2, 33)
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        with maclaurin.accelerate_transformers(model):
            compiled = torch.compile(model, backend="eager")
            logits = compiled(ids, use_cache=False).logits
    torch.testing.assert_close(logits, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mamba2", "xlstm"])
def test_long_texts_are_no_further_from_exact_ones(name: str) -> None:
    """2048 tokens: a state that is rounded token by token, or by decays, would show."""
    model, ids = tiny(name), tokens(1, 2048)
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        with maclaurin.accelerate_transformers(model):
            logits = model(ids, use_cache=False).logits
    torch.testing.assert_close(logits, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["mamba2", "qwen3_next", "xlstm"])
def test_low_precision_loses_no_more_than_theirs(name: str) -> None:
    ids = tokens(2, 50)
    with torch.no_grad():
        exact = tiny(name)(ids).logits
        model = tiny(name).bfloat16()
        try:
            theirs = model(ids).logits
            with maclaurin.accelerate_transformers():
                ours = model(ids).logits
        finally:
            tiny.cache_clear()
    assert ours.dtype == theirs.dtype
    assert (ours - exact).square().mean() <= 1.5 * (theirs - exact).square().mean()
