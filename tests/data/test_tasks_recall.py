"""Recall: each key once, gaps by the law, nothing to find but what was said."""

import numpy as np
import pytest
import torch

from maclaurin.data.tasks import MQAR, MQAR_GRID, MQAR_HELD_OUT, MQAR_MIXTURE, InductionHeads, mixture
from maclaurin.data.tasks.recall import distinct, power_law_gaps


def is_drawn_from(counts, expected):
    """A chi-square statistic no further than four standard deviations above its mean."""
    counts, expected = np.asarray(counts), np.asarray(expected)
    assert counts.sum() == pytest.approx(expected.sum())
    assert expected.min() > 5
    freedom = len(counts) - 1
    statistic = ((counts - expected) ** 2 / expected).sum()
    return statistic < freedom + 4 * np.sqrt(2 * freedom)


@pytest.mark.parametrize(("length", "pairs", "vocab_size"), [(64, 4, 8192), (64, 16, 34), (66, 7, 41), (20, 5, 100)])
def test_each_key_is_said_once_and_asked_for_once(length, pairs, vocab_size):
    batch = MQAR(length, pairs, vocab_size).sample(300, seed=0)
    for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        keys, values = tokens[0 : 2 * pairs : 2], tokens[1 : 2 * pairs : 2]
        assert len(set(keys)) == len(set(values)) == pairs
        assert all(1 <= key < vocab_size // 2 <= value < vocab_size for key, value in zip(keys, values, strict=True))
        said = dict(zip(keys, values, strict=True))
        asked = [t for t, target in enumerate(targets) if target != -100]
        assert sorted(tokens[t] for t in asked) == sorted(keys)
        assert all(t >= 2 * pairs and t % 2 == 0 and targets[t] == said[tokens[t]] for t in asked)
        assert all(tokens[t] == 0 for t in range(2 * pairs, length) if t not in asked)


def test_filler_is_drawn_from_the_whole_vocabulary():
    task = MQAR(64, 4, 64, filler="random")
    batch = task.sample(2000, seed=0)
    filler = batch.tokens[:, 8:][batch.targets[:, 8:] == -100]
    assert is_drawn_from(torch.bincount(filler, minlength=64), np.full(64, len(filler) / 64))
    said = {int(k): int(v) for k, v in zip(batch.tokens[0, 0:8:2], batch.tokens[0, 1:8:2], strict=True)}
    asked = batch.targets[0] != -100
    assert [said[int(key)] for key in batch.tokens[0][asked]] == batch.targets[0][asked].tolist()


@pytest.mark.parametrize("power", [0.01, 0.5, 1.0])
def test_gaps_follow_the_power_law_without_replacement(power):
    rng, count, slots = np.random.default_rng(0), 40_000, 12
    p = np.arange(1, slots + 1) ** (power - 1.0)
    p /= p.sum()
    for size in (3, 12):  # few slots of many, and all of them
        gaps = power_law_gaps(count, size, slots, power, rng)
        assert all(len(set(row)) == size for row in gaps[:500].tolist())
        assert is_drawn_from(np.bincount(gaps[:, 0], minlength=slots), count * p)
        second = np.array([sum(p[g] * p[h] / (1 - p[g]) for g in range(slots) if g != h) for h in range(slots)])
        assert is_drawn_from(np.bincount(gaps[:, 1], minlength=slots), count * second)


def test_the_first_key_is_asked_for_by_the_power_law():
    task = MQAR(48, 4, 64)
    batch = task.sample(20_000, seed=1)
    asked = (batch.tokens == batch.tokens[:, :1]) & (batch.targets != -100)
    gaps = (asked.int().argmax(1) - 8) // 2
    p = np.arange(1, 21) ** (0.01 - 1)
    assert is_drawn_from(torch.bincount(gaps, minlength=20), 20_000 * p / p.sum())


def test_draws_without_replacement_are_uniform_also_in_their_order():
    drawn = distinct(60_000, 3, 5, np.random.default_rng(0))
    assert all(len(set(row)) == 3 for row in drawn[:500].tolist())
    codes = np.bincount(drawn @ [25, 5, 1], minlength=125)
    assert (codes > 0).sum() == 60
    assert is_drawn_from(codes[codes > 0], np.full(60, 1000.0))
    assert sorted(distinct(1, 9, 9, np.random.default_rng(0))[0]) == list(range(9))


def test_the_published_sizes():
    assert [(task.length, task.pairs) for task in MQAR_GRID] == [(64, 4), (128, 8), (256, 16), (512, 64)]
    assert sum(count for _, count in MQAR_MIXTURE) == 180_000
    assert {task.length for task in MQAR_HELD_OUT} - {task.length for task, _ in MQAR_MIXTURE} == {512, 1024}
    assert {task.vocab_size for task in (*MQAR_GRID, *MQAR_HELD_OUT, *(task for task, _ in MQAR_MIXTURE))} == {8192}


def test_a_mixture_has_every_example_once_an_epoch():
    parts = [(MQAR(16, 2), 10), (MQAR(32, 4), 7)]
    batches = mixture(parts, 4, seed=3)
    epochs = [[next(batches) for _ in range(5)] for _ in range(2)]
    for epoch in epochs:
        for task, count in parts:
            rows = [row for batch in epoch if batch.tokens.shape[1] == task.length for row in batch.tokens.tolist()]
            assert sorted(rows) == sorted(task.sample(count, seed=3).tokens.tolist())
    assert [b.tokens.tolist() for b in epochs[0]] != [b.tokens.tolist() for b in epochs[1]]


def test_induction_heads_ask_for_what_followed_the_special_token():
    batch = InductionHeads(12, 8).sample(20_000, seed=0)
    assert (batch.tokens == 7).sum(1).eq(2).all()
    assert (batch.tokens[:, -1] == 7).all()
    place = (batch.tokens == 7).int().argmax(1)
    assert torch.equal(batch.targets[:, -1], batch.tokens[torch.arange(20_000), place + 1])
    assert (batch.targets[:, :-1] == -100).all()
    assert is_drawn_from(torch.bincount(place, minlength=10), np.full(10, 2000.0))
    assert is_drawn_from(torch.bincount(batch.targets[:, -1]), np.full(7, 20_000 / 7))


def test_a_million_tokens():
    assert InductionHeads(2**20).sample(1, seed=0).tokens.shape == (1, 2**20)
