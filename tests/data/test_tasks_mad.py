"""MAD's tasks: what is asked for has been said, where it should have been, and nothing else is asked for."""

import pytest
import torch

from maclaurin.data.tasks import NOT_ASKED, Batch, task
from maclaurin.evals.cells import Setting
from maclaurin.evals.models import build
from maclaurin.evals.suites.rows import one


@pytest.mark.parametrize("name", ["mad-recall", "mad-noisy-recall"])
def test_recall_asks_for_the_value_that_stood_behind_the_key(name):
    drawn = task(name).sample(64, 0)
    noise = 0
    for tokens, targets in zip(drawn.tokens.tolist(), drawn.targets.tolist(), strict=True):
        said, clear = {}, 16
        for place in range(0, len(tokens), 2):
            key, value = tokens[place : place + 2]
            if key >= clear:
                assert value >= clear and targets[place] == NOT_ASKED
                noise += 1
                continue
            assert key < 8 <= value < 16 and targets[place + 1] == NOT_ASKED
            assert targets[place] == said.get(key, NOT_ASKED)
            assert said.setdefault(key, value) == value
        assert targets[-2] != NOT_ASKED
    share = noise / (64 * 64)
    assert share == 0 if name == "mad-recall" else abs(share - 0.2) < 0.03


@pytest.mark.parametrize("longest", [False, True])
def test_fuzzy_recall_asks_for_every_token_of_a_value(longest):
    drawn = task("mad-fuzzy-recall", longest_keys=longest).sample(64, 1)
    lengths = set()
    for tokens, targets in zip(drawn.tokens.tolist(), drawn.targets.tolist(), strict=True):
        place = next(n for n, token in enumerate(tokens) if token != 15)
        said = {}
        while place < len(tokens):
            start = place
            while place < len(tokens) and tokens[place] < 7:
                place += 1
            key, start_of_value = tuple(tokens[start:place]), place
            while place < len(tokens) and 7 <= tokens[place] < 15:
                place += 1
            value = tuple(tokens[start_of_value:place])
            lengths.add(len(key))
            asked = targets[start_of_value - 1 : place - 1]
            assert asked == (list(value) if key in said else [NOT_ASKED] * len(value))
            assert said.setdefault(key, value) == value and len(set(key)) == len(key)
        assert any(target != NOT_ASKED for target in targets[-7:])
    assert lengths == ({3} if longest else {1, 2, 3})


def test_facts_are_the_same_in_every_sequence_and_are_never_said():
    train, test = (task("mad-memorisation").sample(200, seed) for seed in (0, 7))
    known = dict(zip(train.tokens[:, ::2].flatten().tolist(), train.targets[:, 1::2].flatten().tolist(), strict=True))
    assert len(set(known.values())) == len(known) == 127
    for key, value in zip(test.tokens[:, ::2].flatten().tolist(), test.targets[:, 1::2].flatten().tolist(), strict=True):
        assert known[key] == value
    assert not set(test.tokens.flatten().tolist()) & set(known.values())


def test_compression_is_read_from_the_last_vector_alone():
    """Earlier vectors may be anything: the answers do not change."""
    drawn = task("mad-compression", length=8).sample(4, 0)
    assert (drawn.targets[:, :-1] == drawn.tokens[:, :-1]).all() and (drawn.tokens[:, -1] == 15).all()
    setting = Setting("compressed", width=16, heads=2, layers=1, inner=8)
    model = build(one("linear"), setting, task("mad-compression", length=8))
    logits, targets = model(drawn)
    assert logits.shape == (28, 16) and (targets == drawn.tokens[:, :-1].flatten()).all()
    model.model.norm.register_forward_hook(lambda module, inputs, output: output * torch.eye(8)[-1, :, None])
    torch.testing.assert_close(model(drawn)[0], logits)
    assert isinstance(drawn, Batch)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("mad-recall", {"length": 7}, "even"),
        ("mad-recall", {"noise": 0.2}, "need each other"),
        ("mad-fuzzy-recall", {"vocab_size": 6}, "at least 7"),
    ],
)
def test_what_cannot_be_is_refused(name, options, says):
    with pytest.raises(ValueError, match=says):
        task(name, **options)
