"""States are values: they can be moved, picked apart, joined, saved and read again."""

import dataclasses
import json
import os

import pytest
import torch
from safetensors.torch import save_file

from maclaurin import ops
from maclaurin.ops import ConvState, PowerState, State, TokenState
from tests.ops.helpers import ALL, BY_NAME, FEW, Batch, Sizes, assert_close, assert_same_state, every, state_of


@dataclasses.dataclass(frozen=True)
class LayerState(State):
    """Two states and a tensor, as a mixer would have them."""

    conv: ConvState
    tokens: PowerState | None
    gate: torch.Tensor | None = None


def folded_state(B=3, T=11, seed=0):
    return state_of(BY_NAME["power-2-decay"], BY_NAME["power-2-decay"].draw(Sizes(B=B, T=T, seed=seed)))


@every(ALL)
def test_bytes_are_those_of_all_tensors(op):
    state = state_of(op, op.draw(Sizes()))
    assert state.nbytes == sum(x.numel() * x.element_size() for x in state.tensors().values())
    assert state.batch_size == 2


def test_names_of_nested_tensors_are_dotted():
    layer = LayerState(ConvState(torch.zeros(2, 3, 4)), folded_state(B=2), torch.ones(2))
    names = {"conv.inputs", "tokens.keys", "tokens.values", "tokens.log_decay", "tokens.memory", "gate"}
    assert layer.tensors().keys() == names
    assert layer.nbytes == layer.conv.nbytes + layer.tokens.nbytes + 8


def test_detach_clone_and_to_keep_every_tensor():
    op = BY_NAME["power-2-decay"]
    state = state_of(op, op.draw(Sizes()).leaves())
    assert state.memory.requires_grad and state.keys.requires_grad
    detached = state.detach()
    assert not any(x.requires_grad for x in detached.tensors().values())
    assert_same_state(detached, state, 0)
    cloned = detached.clone()
    cloned.memory.zero_()
    cloned.keys.zero_()
    assert_same_state(detached, state, 0)
    moved = detached.to("meta")
    assert all(x.device.type == "meta" for x in moved.tensors().values())
    assert all(x.dtype == detached.tensors()[name].dtype for name, x in moved.tensors().items())


@every(FEW)
def test_selected_rows_continue_like_the_originals(op):
    """Reordered, repeated, dropped."""
    batch = op.draw(Sizes(B=3, T=12))
    state = state_of(op, batch.between(0, 8))
    rows = [2, 0, 2, 2]
    y, _ = op(batch.between(8, None), state=state)
    chosen, _ = op(batch.between(8, None).rows(rows), state=state.select(rows))
    assert_close(chosen, y[rows], 1e-12)
    assert_same_state(state.select(torch.tensor(rows)), state.select(rows), 0)


@every(FEW)
def test_joined_states_continue_like_each_alone(op):
    """Of different lengths: one token, kept tokens, just folded, folded with tokens waiting."""
    batch = op.draw(Sizes(B=1, T=16))
    states = [state_of(op, batch.between(0, length)) for length in (1, 4, 6, 8)]
    joined = type(states[0]).cat(states)
    assert joined.batch_size == 4
    probe = batch.between(10, None)
    y, after = op(probe.map(lambda x: x.expand(4, *x.shape[1:]), parameters=False), state=joined)
    for row, state in enumerate(states):
        expected, alone = op(probe, state=state)
        assert_close(y[row], expected[0], 1e-10)
        again, _ = op(probe, state=after.select([row]))
        assert_close(again, op(probe, state=alone)[0], 1e-10)


def test_joining_what_was_taken_apart_changes_nothing():
    state = folded_state()
    rows = [state.select([row]) for row in range(3)]
    joined = PowerState.cat(rows)
    assert joined.lengths.tolist() == [state.slots] * 3
    for name, tensor in state.tensors().items():
        assert torch.equal(joined.tensors()[name], tensor)


@every(ALL)
def test_a_saved_state_is_read_back_as_it_was(op, tmp_path):
    path = tmp_path / "state.safetensors"
    state = state_of(op, op.draw(Sizes()))
    state.save(path)
    loaded = State.load(path)
    assert_same_state(loaded, state, 0)
    assert os.listdir(tmp_path) == ["state.safetensors"]


def test_a_saved_nested_state_is_read_back_as_it_was(tmp_path):
    layer = LayerState(ConvState(torch.randn(2, 3, 4).bfloat16()), folded_state(B=2))
    layer.save(tmp_path / "layer")
    assert_same_state(State.load(tmp_path / "layer"), layer, 0)
    empty = LayerState(ConvState(torch.randn(2, 3, 4)), None)
    empty.save(tmp_path / "layer")
    assert State.load(tmp_path / "layer").tokens is None


def test_keys_and_values_of_one_tensor_can_be_saved(tmp_path):
    x = torch.randn(1, 3, 2, 4)
    _, state = ops.power_attention(x, x, x)
    state.save(tmp_path / "state")
    assert_same_state(State.load(tmp_path / "state"), state, 0)


def test_an_old_file_survives_a_failed_save(tmp_path, monkeypatch):
    path = tmp_path / "state"
    state = folded_state()
    state.save(path)

    def fail(*_args, **_kwargs):
        raise OSError("disk full")

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        folded_state(seed=1).save(path)
    assert_same_state(State.load(path), state, 0)
    assert os.listdir(tmp_path) == ["state"]


def test_files_that_are_no_state_are_refused(tmp_path):
    (tmp_path / "text").write_bytes(b"nothing of the kind, but long enough to have a header")
    with pytest.raises(ValueError, match="text is not a saved state"):
        State.load(tmp_path / "text")
    folded_state().save(tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    (tmp_path / "half").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="half is not a saved state"):
        State.load(tmp_path / "half")
    save_file({"x": torch.zeros(1)}, tmp_path / "weights")
    with pytest.raises(ValueError, match="weights is not a saved state: it has no 'state' entry"):
        State.load(tmp_path / "weights")
    described = json.dumps({"class": "Pickle", "states": {}, "tensors": ["x"]})
    save_file({"x": torch.zeros(1)}, tmp_path / "unknown", metadata={"state": described})
    with pytest.raises(ValueError, match="unknown class 'Pickle'"):
        State.load(tmp_path / "unknown")
    described = json.dumps({"class": "TokenState", "states": {}, "tensors": ["keys", "values"]})
    save_file({"keys": torch.zeros(1)}, tmp_path / "part", metadata={"state": described})
    with pytest.raises(ValueError, match="saved TokenState has lost its tensor 'values'"):
        State.load(tmp_path / "part")
    with pytest.raises(FileNotFoundError):
        State.load(tmp_path / "absent")


def test_precision_is_part_of_a_state():
    batch = BY_NAME["power-2-decay"].draw(Sizes()).to(torch.bfloat16)
    state = state_of(BY_NAME["power-2-decay"], batch)
    assert (state.keys.dtype, state.values.dtype) == (torch.bfloat16, torch.bfloat16)
    assert (state.memory.dtype, state.log_decay.dtype) == (torch.float32, torch.float32)
    tokens = Batch({name: x for name, x in batch.tokens.items() if name != "log_decay"})
    assert isinstance(ops.softmax_attention(**tokens.all())[1], TokenState)
    assert ops.softmax_attention(**tokens.all())[1].keys.dtype == torch.bfloat16
