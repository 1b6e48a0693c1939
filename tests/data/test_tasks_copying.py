"""Copying: what is asked for is what was said, and nothing else is."""

import re

import pytest
import torch

from maclaurin.data.tasks import Copying, SelectiveCopying

SIGNS = "abcdefghijklmnopqrstuvwxyz$|.*"


def text(row):
    return "".join(SIGNS[token] if token >= 0 else " " for token in row.tolist())


def test_selective_copying_asks_for_the_tokens_among_the_noise():
    batch = SelectiveCopying(50, 6, 10).sample(2000, seed=0)
    for tokens, targets in zip(batch.tokens, batch.targets, strict=True):
        data = tokens[:44][tokens[:44] != 0]
        assert len(data) == 6 and torch.equal(targets[44:], data)
        assert (tokens[44:] == 9).all() and (targets[:44] == -100).all() and not (data == 9).any()
    share = (batch.tokens[:, :44] != 0).double().mean(0)
    assert (share - 6 / 44).abs().max() < 4 * (6 / 44 / 2000) ** 0.5
    assert set(batch.targets[:, 44:].flatten().tolist()) == set(range(1, 9))


def test_packed_strings_are_said_again_and_the_cut_one_is_not_asked_for():
    batch = Copying(100, shortest=2, longest=12).sample(400, seed=0)
    lengths = []
    for tokens, targets in zip(batch.tokens, batch.targets, strict=True):
        row = text(tokens)
        whole = re.match(r"(\$[a-z]+\|[a-z]+\.)*", row)[0]
        strings = re.findall(r"\$([a-z]+)\|([a-z]+)\.", whole)
        assert strings and all(first == second for first, second in strings)
        lengths += [len(first) for first, _ in strings]
        # each asked-for token at the token before it
        expected = "".join(" " * (len(first) + 1) + second + ". " for first, second in strings)
        assert text(targets) == expected.ljust(100)
        cut = re.fullmatch(r"\$([a-z]*)(?:\|([a-z]*))?", row[len(whole) :] or "$")
        assert cut and cut[1].startswith(cut[2] or "")
    assert set(lengths) == set(range(2, 13))


@pytest.mark.parametrize("longest", [5, 48])
def test_a_single_string_is_padded(longest):
    batch = Copying(99, shortest=longest, longest=longest, packed=False).sample(50, seed=0)
    for tokens, targets in zip(batch.tokens, batch.targets, strict=True):
        match = re.fullmatch(r"\$([a-z]+)\|\1\.\**", text(tokens))
        assert match and len(match[1]) == longest
        assert text(targets) == (" " * (longest + 1) + match[1] + ".").ljust(99)


def test_lengths_are_uniform():
    batch = Copying(63, shortest=11, longest=30, packed=False).sample(20_000, seed=0)
    lengths = (batch.targets != -100).sum(1) - 1
    counts = torch.bincount(lengths)[11:].double()
    assert len(counts) == 20 and ((counts - 1000) ** 2 / 1000).sum() < 19 + 4 * 38**0.5
