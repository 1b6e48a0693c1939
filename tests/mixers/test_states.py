"""A mixer takes its own states and no others: what does not fit is refused in one sentence, before a kernel reads it."""

import copy
import dataclasses
import itertools

import pytest
import torch

import maclaurin
from maclaurin.mixers import MixerState
from maclaurin.ops.states import PowerState, State
from tests.lies import lies, refusal
from tests.mixers.test_laws import MIXERS, VARIANTS, build, every_mixer, inputs

NEW = 3  # tokens that are handed over with a state


def may_lack(state, what):
    """The kind, and the recurrent state of powers while no token is folded."""
    powers = {
        "attention.recurrent: None": state.attention,
        "attention.far.recurrent: None": getattr(state.attention, "far", None),
    }
    return what == "kind: None" or isinstance(powers.get(what), PowerState)


@every_mixer
@pytest.mark.parametrize("form", ["auto", "recurrent"])
def test_a_state_that_lies_is_refused(name, form):
    mixer = build(name, torch.float32)
    x = inputs(mixer, 2, NEW)
    with torch.no_grad():
        _, state = mixer(inputs(mixer, 2, 11))
        before = state.clone()
        for what, lie in lies(state):
            if may_lack(state, what):
                continue
            assert refusal(mixer, x, lie, form=form), f"{what} was accepted"
        for key, tensor in state.tensors().items():
            assert torch.equal(tensor, before.tensors()[key]), "a refusal changes nothing"


@every_mixer
def test_a_lie_is_found_behind_padding_and_in_a_pack(name):
    mixer = build(name, torch.float32)
    x = inputs(mixer, 2, NEW)
    mask = torch.tensor([[0, 1, 1], [1, 1, 1]])
    with torch.no_grad():
        _, state = mixer(inputs(mixer, 2, 5))
        for key in state.tensors():
            *path, field = key.split(".")
            for more in (1, 3):
                lie = with_batch_of(state, path, field, more)
                for call in ({"attention_mask": mask}, {}):
                    with pytest.raises(ValueError, match="state"):
                        mixer(x, lie, **call)
                with pytest.raises(ValueError, match="state"):
                    mixer(x[:1], lie, cu_seqlens=[0, 1, NEW])


def with_batch_of(state, path, field, rows):
    """The state with so many sequences in one of its tensors."""
    if path:
        return dataclasses.replace(state, **{path[0]: with_batch_of(getattr(state, path[0]), path[1:], field, rows)})
    tensor = getattr(state, field)
    return dataclasses.replace(state, **{field: tensor.new_zeros(rows, *tensor.shape[1:])})


def test_a_state_of_another_mixer_is_refused():
    """Whether its tokens are few or folded, and of whatever size."""
    with torch.no_grad():
        mixers = {name: build(name, torch.float32) for name in (*MIXERS, *VARIANTS)}
        x = inputs(mixers["softmax"], 2, NEW)
        for length in (1, 20):
            states = {name: mixer(inputs(mixer, 2, length))[1] for name, mixer in mixers.items()}
            for (maker, state), (name, mixer) in itertools.product(states.items(), mixers.items()):
                if maker == name:
                    mixer(x, state)
                    continue
                assert refusal(mixer, x, state), f"{name} took a state of {maker}"


@every_mixer
@pytest.mark.parametrize("sizes", [{"d_model": 48}, {"d_model": 48, "num_heads": 2}], ids=str)
def test_a_state_of_other_sizes_is_refused(name, sizes):
    with torch.no_grad():
        mixer, other = build(name, torch.float32), build(name, torch.float32, **sizes)
        for length in (1, 20):
            _, state = other(inputs(other, 2, length))
            with pytest.raises((ValueError, TypeError), match="state"):
                mixer(inputs(mixer, 2, NEW), state)


@pytest.mark.parametrize(
    ("name", "options", "others"),
    [
        ("2mamba", {}, {"norm": "none"}),
        ("2mamba", {}, {"order": 3}),
        ("2mamba", {}, {"decay": "none"}),
        ("2mamba", {}, {"conv_width": 3}),
        ("2mamba", {}, {"conv_width": 0}),
        ("2mamba", {}, {"rotary": "rope"}),
        ("2mamba", {}, {"near_window": 4}),
        ("2mamba", {}, {"num_kv_heads": 2}),
        ("softmax", {}, {"rotary": "none"}),
        ("softmax", {}, {"rotary": "selective"}),
        ("mlstm", {}, {"input_gate": "sigmoid"}),
        ("gated-softmax", {}, {"divisor": "cumulative-gate"}),
        ("inline", {}, {"local_residual": False}),
        ("inline", {}, {"local_width": 4}),
        ("delta", {}, {"order": 2}),
        ("s6", {}, {"d_state": 8}),
    ],
)
def test_a_state_of_other_options_is_refused(name, options, others):
    with torch.no_grad():
        mixers = [build(name, torch.float32, **chosen) for chosen in (options, others)]
        for one, other in itertools.permutations(mixers):
            _, state = one(inputs(one, 2, 20))
            with pytest.raises((ValueError, TypeError), match="state"):
                other(inputs(other, 2, NEW), state)


@every_mixer
def test_copies_of_a_state_and_of_its_mixer_go_on_as_the_original(name, tmp_path):
    mixer = build(name, torch.float32)
    x = inputs(mixer, 2, NEW)
    with torch.no_grad():
        _, state = mixer(inputs(mixer, 2, 11))
        expected, _ = mixer(x, state)
        state.save(tmp_path / "state")
        copies = [State.load(tmp_path / "state"), state.clone(), state.select([0, 1]), copy.deepcopy(state)]
        copies.append(MixerState.cat([state.select([0]), state.select([1])]))
        for each in copies:
            assert each.kind == state.kind
            torch.testing.assert_close(mixer(x, each)[0], expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(copy.deepcopy(mixer)(x, state)[0], expected)
        unnamed = dataclasses.replace(state, kind=None)  # as files of before kinds were written
        torch.testing.assert_close(mixer(x, unnamed)[0], expected)


def test_a_mixer_that_was_not_built_by_name_has_the_kind_of_its_class():
    mixer = maclaurin.mixers.attention.Attention(24, 4, order=2)
    assert mixer(torch.randn(1, 2, 24))[1].kind == mixer.init_state(1).kind == "Attention"
