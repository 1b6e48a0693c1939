"""State tracking: groups are groups, and products are those of the moves one after the other."""

from itertools import permutations

import numpy as np
import pytest
import torch

from maclaurin.data.tasks import StateTracking
from maclaurin.data.tasks.tracking import multiplication, running_products


@pytest.mark.parametrize(
    ("group", "order", "commutes"),
    [
        ("parity", 2, True),
        ("Z7", 7, True),
        ("Z60", 60, True),
        ("S3", 6, False),
        ("A3", 3, True),
        ("A4", 12, False),
        ("A5", 60, False),
        ("S5", 120, False),
    ],
)
def test_tables_are_those_of_groups(group, order, commutes):
    table = multiplication(group)
    everything = np.arange(order)
    assert table.shape == (order, order)
    assert (table[0] == everything).all() and (table[:, 0] == everything).all()  # the identity
    assert (np.sort(table, 0) == everything[:, None]).all() and (np.sort(table, 1) == everything).all()  # inverses
    assert (table == table.T).all() == commutes
    a, b, c = np.random.default_rng(0).integers(order, size=(3, 1000))
    assert (table[table[a, b], c] == table[a, table[b, c]]).all()


def test_products_are_compositions_of_permutations():
    elements = list(permutations(range(5)))
    batch = StateTracking("S5", 30).sample(20, seed=0)
    for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        assert (tokens[0], targets[0]) == (120, -100)
        product = tuple(range(5))
        for token, target in zip(tokens[1:], targets[1:], strict=True):
            product = tuple(product[elements[token][i]] for i in range(5))
            assert elements[target] == product


def test_even_permutations_are_closed_and_even():
    def sign(p):
        return np.linalg.det(np.eye(5)[list(p)])

    even = [p for p in permutations(range(5)) if sign(p) > 0]
    table = multiplication("A5")
    a, b = np.random.default_rng(0).integers(60, size=(2, 200))
    for i, j in zip(a, b, strict=True):
        assert even[table[i, j]] == tuple(even[i][k] for k in even[j])


@pytest.mark.parametrize("length", [1, 2, 7, 64, 129])
def test_running_products_are_those_of_a_loop(length):
    table = multiplication("S3")
    elements = np.random.default_rng(0).integers(6, size=(10, length))
    state, expected = np.zeros(10, int), []
    for t in range(length):
        state = table[state, elements[:, t]]
        expected.append(state)
    assert (running_products(elements, table) == np.stack(expected, 1)).all()


def test_parity_and_sums():
    batch = StateTracking("parity", 50).sample(30, seed=0)
    assert torch.equal(batch.targets[:, 1:], batch.tokens[:, 1:].cumsum(1) % 2)
    batch = StateTracking("Z5", 50).sample(2000, seed=0)
    assert torch.equal(batch.targets[:, 1:], batch.tokens[:, 1:].cumsum(1) % 5)
    counts = torch.bincount(batch.targets[:, -1]).double()
    assert ((counts - 400) ** 2 / 400).sum() < 4 + 4 * 8**0.5
