"""Prompts of different lengths that are read in one step are each what they are alone, and so are their states."""

import pytest
import torch

from maclaurin.mixers import available_mixers
from maclaurin.serving.batch import batch_of
from tests.serving.crowd import VOCABULARY, small_model

LENGTHS = ([1, 40, 7, 2], [33], [5, 1, 1, 60])


def tokens(lengths):
    return [torch.randint(VOCABULARY, (length,)).tolist() for length in lengths]


@pytest.mark.parametrize("mixer", available_mixers())
@torch.inference_mode()
def test_prompts_of_one_step_never_meet(mixer):
    torch.manual_seed(0)
    batch = batch_of(small_model(mixer), 4)
    prompts = tokens([17, 3])
    known = batch.read(prompts, [[None] * batch.layers] * 2, [0, 0])[1]
    for lengths in LENGTHS:
        new = tokens(lengths)
        before = [known[0], [None] * batch.layers, known[1], known[0]][: len(new)]  # a state may be shared
        starts = [17, 0, 3, 17][: len(new)]
        kept = [None if one is None else one.clone() for one in known[0]]
        logits, states = batch.read(new, before, starts)
        for place, of_one in enumerate(states):
            own, (alone,) = batch.read([new[place]], [before[place]], [starts[place]])
            torch.testing.assert_close(logits[place], own[0], rtol=1e-4, atol=1e-5)
            for state, expected in zip(of_one, alone, strict=True):
                assert state.kind == expected.kind
                found, right = state.tensors(), expected.tensors()
                assert found.keys() == right.keys()
                for name, x in found.items():
                    torch.testing.assert_close(x, right[name], rtol=1e-4, atol=1e-5)
        for state, untouched in zip(known[0], kept, strict=True):
            assert all(torch.equal(x, untouched.tensors()[name]) for name, x in state.tensors().items())


@torch.inference_mode()
def test_the_mixers_that_are_measured_read_prompts_one_behind_another():
    for mixer in ("2mamba", "2mamba-orders", "gla", "mamba2", "mamba2s"):
        assert all(layer.mixer.packs for layer in small_model(mixer).model.layers), mixer
