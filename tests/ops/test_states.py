"""States are values: they can be moved, picked apart, joined, saved and read again."""

import dataclasses
import inspect
import os

import pytest
import torch

from maclaurin import ops
from maclaurin.ops import ConvState, PowerState, ScanState, State, TokenState, native
from tests.lies import lies, refusal
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
    names = {"conv.inputs", "tokens.keys", "tokens.values", "tokens.log_decay", "tokens.recurrent", "gate"}
    assert layer.tensors().keys() == names
    assert layer.nbytes == layer.conv.nbytes + layer.tokens.nbytes + 8


def test_detach_clone_and_to_keep_every_tensor():
    op = BY_NAME["power-2-decay"]
    state = state_of(op, op.draw(Sizes()).leaves())
    assert state.recurrent.requires_grad and state.keys.requires_grad
    detached = state.detach()
    assert not any(x.requires_grad for x in detached.tensors().values())
    assert_same_state(detached, state, 0)
    cloned = detached.clone()
    cloned.recurrent.zero_()
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
    assert joined.lengths is None  # all are real: joined states keep the fast path
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


def test_precision_is_part_of_a_state():
    batch = BY_NAME["power-2-decay"].draw(Sizes()).to(torch.bfloat16)
    state = state_of(BY_NAME["power-2-decay"], batch)
    assert (state.keys.dtype, state.values.dtype) == (torch.bfloat16, torch.bfloat16)
    assert (state.recurrent.dtype, state.log_decay.dtype) == (torch.float32, torch.float32)
    tokens = Batch({name: x for name, x in batch.tokens.items() if name != "log_decay"})
    assert isinstance(ops.softmax_attention(**tokens.all())[1], TokenState)
    assert ops.softmax_attention(**tokens.all())[1].keys.dtype == torch.bfloat16


@every(ALL)
@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("length", [1, 4])
def test_a_state_that_lies_is_refused(op, backend, length):
    """By every backend, before a kernel reads it. Left out decays are zero, and a state may not be there yet."""
    options = {"backend": backend} if "backend" in inspect.signature(op.function).parameters else {}
    batch = op.draw(Sizes(T=11)).to(torch.float32)
    new = batch.between(0, length)
    with torch.no_grad():
        state = state_of(op, batch)
        for what, lie in lies(state):
            if isinstance(state, TokenState) and what in ("log_decay: None", "recurrent: None"):
                continue
            assert refusal(op, new, state=lie, **options), f"{what} was accepted"


@pytest.mark.parametrize("lengths", [[-1, 2], [0, 6]])
def test_lengths_beyond_the_slots_are_refused(lengths):
    op = BY_NAME["power-2-decay"]
    batch = op.draw(Sizes(T=5))
    state = dataclasses.replace(state_of(op, batch), lengths=torch.tensor(lengths))
    assert refusal(op, batch, state=state)


@pytest.mark.skipif(not native.available(), reason="built without a C++ compiler")
def test_a_state_in_any_layout_is_read_as_it_is():
    op = BY_NAME["power-2-decay"]
    batch = op.draw(Sizes(T=11)).to(torch.float32)
    token = batch.between(0, 1)
    with torch.no_grad():
        state = state_of(op, batch)
        expected, _ = op(token, state=state, backend="torch")
        memory = state.recurrent.transpose(1, 2).contiguous().transpose(1, 2)
        wider = state.recurrent.repeat_interleave(2, dim=-1)[..., ::2]
        for changed in (memory, wider, state.recurrent.double(), state.recurrent.bfloat16()):
            y, _ = op(token, state=dataclasses.replace(state, recurrent=changed))
            assert_close(y, expected, 1e-2 if changed.dtype == torch.bfloat16 else 1e-5)


@pytest.mark.parametrize(
    "rows", [[3], [-1], [0, 2**40], [2**70], [0.5], [True, False, True], [[0]], 1, "1", None, torch.ones(2)]
)
def test_rows_that_are_not_there_cannot_be_selected(rows):
    with pytest.raises((ValueError, TypeError), match="batch_indices must") as raised:
        folded_state().select(rows)
    assert "\n" not in str(raised.value)


def test_no_row_is_a_selection_too():
    assert folded_state().select([]).batch_size == 0


def test_states_that_differ_cannot_be_joined():
    state = folded_state()
    with pytest.raises(ValueError, match=r"states must be a list of at least one PowerState, got \[\]"):
        PowerState.cat([])
    with pytest.raises(ValueError, match="states must be a list of at least one State, got None"):
        State.cat(None)
    with pytest.raises(TypeError, match="states must all be of the class PowerState, got ConvState"):
        PowerState.cat([state, ConvState(torch.zeros(1, 2, 3))])
    with pytest.raises(TypeError, match="states must all be of the class PowerState, got int"):
        PowerState.cat([state, 3])
    with pytest.raises(ValueError, match=r"state.inputs must be a floating point tensor of shape"):
        ConvState.cat([ConvState(torch.zeros(1, 2, 3)), ConvState(torch.zeros(1, 2, 4))])
    with pytest.raises(ValueError, match=r"state.recurrent must be a floating point tensor of shape"):
        ScanState.cat([ScanState(torch.zeros(1, 2)), ScanState(torch.zeros(1, 3))])
    with pytest.raises(ValueError, match="log_decay must be given"):
        PowerState.cat([state, dataclasses.replace(state, log_decay=None)])
    with pytest.raises(ValueError, match="states must all be on cpu"):
        PowerState.cat([state, state.to("meta")])
    assert_same_state(State.cat([state, state]), PowerState.cat([state, state]), 0)


@pytest.mark.parametrize("device", ["nowhere", "", torch.float16, 0.5, None])
def test_a_state_goes_to_devices_only(device):
    with pytest.raises((ValueError, TypeError), match="device must be"):
        folded_state().to(device)
