"""Rows of different lengths, stepped in place by one call, are what each of them is alone."""

import random

import pytest
import torch

from maclaurin.ops import native, power_attention, softmax_attention
from maclaurin.ops.native.rows import Rows, RowState, Scores

pytestmark = pytest.mark.skipif(not native.available(), reason="needs the native library")
H, G, K, V = 4, 2, 5, 19
SCALE = K**-0.5
FACTORS = torch.tensor([[1.0, 1.0, 1.0], [0.5, 1.5, 0.0], [1.9, 0.1, 0.7], [0.9, 1.3, 1.8]])  # of the orders of each head
SERIES = {"order": (0, 1, 2), "fold_at": 40, "fold_every": 8}


def tokens(batch, count, decays, seed):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(batch, count, *shape, generator=generator)  # noqa: E731
    return draw(H, K), draw(G, K), draw(G, V), -draw(G).abs() / 4 if decays else None


def before(x, count):
    return [None if one is None else one[:, :count] for one in x]


@pytest.mark.parametrize("decays", [True, False])
@pytest.mark.parametrize(
    ("op", "scores", "options"),
    [
        (power_attention, Scores(False, K**-0.5, True, None, 40, 8), {"fold_at": 40, "fold_every": 8}),
        (power_attention, Scores(False, K**-0.5, True, None, 12, 32), {"fold_at": 12, "fold_every": 32}),
        (power_attention, Scores(False, K**-0.5, False, None, 1, 8), {"fold_at": 1, "fold_every": 8, "normalize": False}),
        (power_attention, Scores(False, SCALE, True, None, 40, 8, series=True), SERIES),
        (power_attention, Scores(False, SCALE, False, None, 40, 8, series=True), SERIES | {"normalize": False}),
        (power_attention, Scores(False, SCALE, True, None, 40, 8, True, FACTORS), SERIES | {"order_weights": FACTORS}),
        (power_attention, Scores(False, SCALE, True, None, 40, 8, in_halves=True), {"fold_at": 40, "fold_every": 8}),
        (power_attention, Scores(False, SCALE, False, None, 40, 8, True, in_halves=True), SERIES | {"normalize": False}),
        (power_attention, Scores(False, SCALE, True, None, 40, 8, True, FACTORS, True), SERIES | {"order_weights": FACTORS}),
        (softmax_attention, Scores(True, K**-0.5), {}),
        (softmax_attention, Scores(True, K**-0.5, window=7), {"window": 7}),
    ],
)
def test_each_row_is_what_it_is_alone(op, scores, options, decays):
    rng, rows = random.Random(0), Rows(6, scores)
    differences, outputs = [], []
    running = []  # (tokens of a row in float64, how many were read)
    for turn in range(120):
        if len(running) == 6 or (running and rng.random() < 0.1):
            gone = rng.randrange(len(running))
            _, S, x = running[gone]
            state, kept = op(*before(x, S), **options)[1], rows.take(gone)
            for name, expected in state.tensors().items():
                torch.testing.assert_close(kept.tensors()[name], expected, rtol=1e-4, atol=1e-4)
            rows.drop(gone)
            running[gone] = running[-1]
            running.pop()
        if len(running) < 6 and rng.random() < 0.3:
            x, S = tokens(1, 200, decays, turn), rng.randint(1, 70)
            rows.put(op(*before(x, S), **options)[1])
            running.append((None, S, x))
        if not running:
            continue
        new = [torch.cat([x[i][:, S : S + 1] for _, S, x in running]) for i in range(3 + decays)]
        y, _ = op(*new, state=RowState.of(rows))
        for row, (_, S, x) in enumerate(running):
            wide = [None if one is None else one.double() for one in before(x, S + 1)]
            expected = op(*wide, **options)[0][:, -1:]
            if scores.in_halves:
                differences.append(y[row : row + 1] - expected)
                outputs.append(expected)
            else:
                torch.testing.assert_close(y[row : row + 1].double(), expected, rtol=2e-3, atol=2e-4)
        running = [(None, S + 1, x) for _, S, x in running]
    if scores.in_halves:  # 8 bits of a number
        assert 0 < torch.cat(differences).norm() < 2**-7 * torch.cat(outputs).norm()


def test_a_growing_decay_and_tokens_that_do_not_fit_are_refused():
    rows, x = Rows(2, Scores(False, K**-0.5)), tokens(1, 4, True, 0)
    rows.put(power_attention(*x)[1])
    new = before(x, 1)
    with pytest.raises(ValueError, match="log_decay must be <= 0"):
        rows.step(*new[:3], -new[3] + 1)
    with pytest.raises(ValueError, match="a step of 1 rows needs tokens"):
        rows.step(*before(x, 2))
