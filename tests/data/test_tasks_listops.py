"""ListOps: values by brute force, lengths and the grammar as published."""

import statistics

import pytest
import torch

from maclaurin.data.tasks import ListOps
from maclaurin.data.tasks.listops import text

EVALUATE = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}


def parse(words):
    """(value, depth, largest number of arguments, how many places were lists, how many were not) of one place."""
    word = next(words)
    if word not in EVALUATE:
        return int(word), 1, 0, 0, 1
    values, depths, widths, lists, digits = [], [], [], 0, 0
    while True:
        try:
            value, depth, width, inner_lists, inner_digits = parse(words)
        except ValueError:  # the closing bracket
            assert len(values) >= 2
            return EVALUATE[word](values), 1 + max(depths), max(len(values), *widths), 1 + lists, digits
        values.append(value)
        depths.append(depth)
        widths.append(width)
        lists, digits = lists + inner_lists, digits + inner_digits


@pytest.mark.parametrize("task", [ListOps(longest=2000, shortest=500), ListOps(30, 3, 4, 5), ListOps(12, 1, 2, 3)])
def test_labels_are_right_by_brute_force(task):
    count = 64 if task.longest == 2000 else 400
    examples = task.sample(count, seed=0)
    assert examples.inputs.shape == (count, task.longest)
    for tokens, label, length in zip(examples.inputs, examples.labels, examples.lengths, strict=True):
        words = iter(text(tokens).split())
        value, depth, width, _, _ = parse(words)
        assert next(words, None) is None
        assert value == label
        assert depth <= task.depth and width <= task.arguments
        assert task.shortest < length < task.longest
        assert (tokens[:length] > 0).all() and (tokens[length:] == 0).all()


def test_the_grammar_has_its_shares():
    # depth 2: one list of digits, whatever its length: 2 to 10 arguments, equally likely
    examples = ListOps(longest=20, shortest=1, depth=2).sample(9000, seed=0)
    counts = torch.bincount(examples.lengths - 4).double()
    assert len(counts) == 9 and ((counts - 1000) ** 2 / 1000).sum() < 8 + 4 * 16**0.5
    operators = torch.bincount(examples.inputs[:, 0])[11:].double()
    assert len(operators) == 4 and ((operators - 2250) ** 2 / 2250).sum() < 3 + 4 * 6**0.5
    # depth 3 and no limit: a quarter of the places below the root are lists
    lists = total = 0
    for tokens in ListOps(longest=20, shortest=1, depth=3, arguments=3).sample(3000, seed=1).inputs:
        words = text(tokens).split()
        depth = 0
        for word in words:
            total += depth == 1 and word != "]"
            lists += depth == 1 and word in EVALUATE
            depth += (word in EVALUATE) - (word == "]")
    assert abs(lists / total - 0.25) < 4 * (0.25 * 0.75 / total) ** 0.5


def test_an_example_as_it_is_written():
    assert text(torch.tensor([12, 3, 10, 11, 5, 8, 15, 1, 15, 0, 0])) == "[MAX 2 9 [MIN 4 7 ] 0 ]"
