"""Every architecture computes with the kernels of this package what it computes without them."""

from __future__ import annotations

import pytest
import torch

import maclaurin
from maclaurin.acceleration import ARCHITECTURES
from tests.acceleration.tiny import TINY, tiny

TOLERANCE = 1e-5
LENGTHS = [13, 1, 22, 14]  # of documents
each_architecture = pytest.mark.parametrize("name", sorted(TINY))


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(2, 64, shape, generator=torch.Generator().manual_seed(1))


def test_every_architecture_is_tested() -> None:
    assert set(TINY) == set(ARCHITECTURES)


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
    model, ids = tiny(name), tokens(2, 40)
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


@pytest.mark.parametrize("name", sorted(set(TINY) - {"glm5_next"}))
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


@pytest.mark.parametrize("name", ["mamba2", "qwen3_next", "kimi_linear", "mamba"])
def test_padding_changes_nothing(name: str) -> None:
    model, ids = tiny(name), tokens(2, 20)
    mask = torch.ones_like(ids)
    mask[0, :7] = 0
    options = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False}
    expected = model.generate(ids, **options)
    with maclaurin.accelerate_transformers():
        assert model.generate(ids, **options).tolist() == expected.tolist()


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
