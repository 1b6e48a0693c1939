"""Queries of layers whose state is the tokens are shared out: all processes have equally many pairs."""

import random

import pytest

from maclaurin.distributed.balance import Load, given_away, needed_by, partner_of, sent_to


def shared_pairs(loads, size):
    """Of each process, before and after tokens are given, counted one by one."""
    earlier, before = 0, []
    keys = []
    for load in loads:
        keys.append(earlier)
        before.append(load.continuing * earlier + load.pairs)
        earlier = load.open + (0 if load.begins else earlier)
    after = list(before)
    for rank, load in enumerate(loads):
        count = given_away(loads[: rank + 1], rank, size)
        assert 0 <= count < load.tokens and count <= load.continuing
        moved = sum(keys[rank] + number + 1 for number in range(count))
        after[rank] -= moved
        after[partner_of(rank, size)] += moved
    return before, after


@pytest.mark.parametrize("size", [2, 3, 4, 7, 8])
def test_slices_of_one_document_are_shared_equally(size):
    tokens = 512
    before, after = shared_pairs([Load.of([0, tokens])] * size, size)
    assert sum(before) == sum(after) == size * tokens * (size * tokens + 1) // 2
    row = size * tokens  # pairs of one query, which is not divided
    assert max(after) - min(after) <= 2 * row
    assert max(before) > 1.4 * sum(before) / size


def test_documents_never_make_the_later_process_the_one_that_waits_longer():
    draw = random.Random(0)
    for _ in range(200):
        size = draw.randint(2, 6)
        loads = []
        for _ in range(size):
            tokens = draw.randint(2, 40)
            inside = sorted(draw.randint(0, tokens) for _ in range(draw.randint(0, 3)))
            loads.append(Load.of([0, *inside, tokens]))
        before, after = shared_pairs(loads, size)
        for rank in range(size):
            pair = rank, partner_of(rank, size)
            assert max(after[one] for one in pair) <= max(before[one] for one in pair)
    assert given_away([Load.of([0, 9]), Load.of([0, 0, 9])], 1, 2) == 0  # its document begins with the slice


def test_every_slice_goes_to_those_that_need_it_and_to_no_other():
    for size in range(1, 9):
        for rank in range(size):
            assert rank not in needed_by(rank, size)
            assert set(range(max(rank, partner_of(rank, size)))) <= {rank, *needed_by(rank, size)}
            assert all(rank in needed_by(other, size) for other in sent_to(rank, size))
