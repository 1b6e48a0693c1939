"""A native decoding step is that of torch, keeps states as they were, and costs the same at every length."""

import copy
import operator
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maclaurin import ops
from maclaurin.ops import native, options, token_buffer
from maclaurin.ops.native import library
from maclaurin.ops.power_prompt import plain_prompt
from maclaurin.ops.token_buffer import append
from tests.ops.helpers import Sizes, assert_close, assert_same_state, attention_inputs
from tests.ops.native_helpers import ISAS, assert_same_as_torch

pytestmark = pytest.mark.skipif(not native.available(), reason="built without a C++ compiler")

CHANNELS = st.sampled_from((1, 3, 8, 16, 17, 33, 64))


@st.composite
def steps(draw):
    """One token, and the state of some before it: only tokens, only a memory, or both."""
    drawn = {"B": draw(st.integers(1, 2)), "G": draw(st.integers(1, 5)), "K": draw(CHANNELS), "V": draw(CHANNELS)}
    decay, normalize = draw(st.sampled_from((None, "kv"))), draw(st.booleans())
    strength = draw(st.sampled_from((0.0, 0.01, 1.0, 30.0, 1e4)))
    options = {"normalize": normalize, "fold_at": draw(st.integers(1, 80)), "fold_every": draw(st.integers(1, 40))}

    def tokens(T, seed):
        batch = attention_inputs(decay)(Sizes(**drawn, R=draw(st.integers(1, 3)), T=T, seed=seed)).to(torch.float32)
        if decay is not None:
            batch.tokens["log_decay"] *= strength
        return batch

    before = draw(st.sampled_from((0, 1, 15, 16, 70, 130)))
    state = ops.power_attention(**tokens(before, 1).tokens, **options, backend="torch")[1] if before else None
    return tokens(1, 2), options, state


def outputs(batch, options, state):
    y, after = ops.power_attention(**batch, **options, state=state)
    return {"y": y} | {name: x for name, x in after.tensors().items() if x.numel()}


@settings(max_examples=100)
@given(step=steps())
def test_outputs_states_and_gradients_are_those_of_torch(step):
    assert_same_as_torch(outputs, *step)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=40)
@given(step=steps())
def test_every_instruction_set_says_the_same(isa, step):
    with native.using_isa(isa), torch.no_grad():
        batch, options, state = step
        y, after = ops.power_attention(**batch.tokens, **options, state=state, backend="native")
        expected, expected_after = ops.power_attention(**batch.tokens, **options, state=state, backend="torch")
        assert_close(y, expected, 1e-5)
        assert_same_state(after, expected_after, 1e-5)


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("before", [40, 130])
def test_threads_change_nothing(threads, before):
    draw = attention_inputs("kv")
    earlier, token = (draw(Sizes(T=T, G=5, K=16, V=24, seed=T)).to(torch.float32).tokens for T in (before, 1))
    _, state = ops.power_attention(**earlier, fold_at=100)
    found = []
    for count in (1, threads):
        torch.set_num_threads(count)
        y, after = ops.power_attention(**token, state=state, fold_every=31, fold_at=100, backend="native")
        found.append([y, *after.tensors().values()])
    assert all(torch.equal(left, right) for left, right in zip(*found, strict=True))


@pytest.mark.parametrize("growing_from", [0, 2**16], ids=["grown", "copied"])
def test_steps_one_by_one_are_the_whole(growing_from, monkeypatch):
    """Through the first fold and several more, and no step changes the state that it was given."""
    monkeypatch.setattr(token_buffer, "COPIED_BELOW", growing_from)
    batch = attention_inputs("kv")(Sizes(B=2, T=120, G=2, R=2, K=8, V=8)).to(torch.float32)
    expected, _ = ops.power_attention(**batch.tokens, fold_at=50, fold_every=20, backend="torch")
    state, found = None, []
    with torch.no_grad():
        for t in range(batch.length):
            before = None if state is None else state.clone()
            y, after = ops.power_attention(
                **batch.between(t, t + 1).tokens, state=state, fold_at=50, fold_every=20, backend="native"
            )
            if before is not None:
                assert_same_state(state, before, 0)
            state = after
            found.append(y)
    assert_close(torch.cat(found, 1), expected, 1e-5)


def test_two_successors_of_one_state_do_not_meet(monkeypatch):
    monkeypatch.setattr(token_buffer, "COPIED_BELOW", 0)
    with torch.no_grad():
        kept, one, other = torch.zeros(2, 3, 1), torch.ones(2, 1, 1), torch.full((2, 1, 1), 2.0)
        grown = append(kept, one)
        assert append(grown, one).data_ptr() == grown.data_ptr()  # the first one takes the slots
        left, right = append(grown, one), append(grown, other)
        assert left[:, -1].eq(1).all() and right[:, -1].eq(2).all() and grown.shape[1] == 4
        chain = grown
        for _ in range(token_buffer.SPARE + 5):
            chain = append(chain, other)
        assert torch.equal(chain[:, :4], grown) and chain[:, 4:].eq(2).all()


def test_threads_that_go_on_from_one_state_do_not_meet(monkeypatch):
    monkeypatch.setattr(token_buffer, "COPIED_BELOW", 0)
    start = append(torch.zeros(1, 3, 4), torch.zeros(1, 1, 4))
    wrong = []

    def work(number):
        for _ in range(200):
            grown = append(start, torch.full((1, 1, 4), float(number)))
            if not grown[:, -1].eq(number).all():
                wrong.append(number)

    workers = [threading.Thread(target=work, args=(number,)) for number in (1, 2, 3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_what_autograd_kept_is_not_changed_by_a_later_step(monkeypatch):
    monkeypatch.setattr(token_buffer, "COPIED_BELOW", 0)
    with torch.no_grad():
        grown = append(torch.ones(1, 3, 4), torch.ones(1, 1, 4))
    weight = torch.ones(4, requires_grad=True)
    loss = (grown * weight).sum()
    with torch.no_grad():
        append(grown, torch.ones(1, 1, 4))
    loss.backward()
    assert weight.grad.eq(4).all()


@pytest.mark.parametrize("isa", ISAS)
def test_what_has_decayed_to_nothing_has_no_influence(isa):
    """NaN behind a decay that forgets everything: neither the keys nor the memory are read."""
    draw = attention_inputs("kv")
    earlier, token = (draw(Sizes(T=T, K=8, V=8, seed=T)).to(torch.float32).tokens for T in (150, 1))
    _, state = ops.power_attention(**earlier, fold_at=60, fold_every=200, backend="torch")
    state.recurrent.fill_(float("nan"))
    state.log_decay[:, 10] = -1e4
    with native.using_isa(isa):
        y, _ = ops.power_attention(**token, state=state, fold_every=200, backend="native")
    assert y.isfinite().all()


def test_a_compiled_step_is_the_same():
    draw = attention_inputs("kv")
    earlier, token = (draw(Sizes(T=T, K=8, V=8, seed=T)).to(torch.float32).tokens for T in (70, 1))
    _, state = ops.power_attention(**earlier, fold_at=60)

    def step(token, keys, values, log_decay, memory):
        state = ops.PowerState(keys, values, log_decay, None, memory)
        y, after = ops.power_attention(**token, state=state, fold_at=60, backend="native")
        return y, after.keys

    tensors = (state.keys, state.values, state.log_decay, state.recurrent)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for actual, expected in zip(compiled(token, *tensors), step(token, *tensors), strict=True):
        assert_close(actual, expected, 1e-6)


def test_nobody_who_looks_on_is_passed_by():
    """Gradients and modes go through the dispatcher, plain calls do not."""
    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    token = attention_inputs(None)(Sizes(T=1)).to(torch.float32).tokens
    with Watch():
        ops.power_attention(**token, backend="native")
    assert any("maclaurin.quadratic" in name for name in seen)
    y, _ = ops.power_attention(**{name: x.requires_grad_() for name, x in token.items()}, backend="native")
    assert y.requires_grad


@settings(max_examples=100)
@given(step=steps())
def test_the_plain_step_is_the_general_one(step):
    batch, options, state = step
    with torch.no_grad():
        y, after = ops.power_attention(**batch.tokens, **options, state=state)
        expected, expected_after = ops.power_attention(**batch.tokens, **options, state=state, backend="torch")
    assert_close(y, expected, 1e-5)
    assert_same_state(after, expected_after, 1e-5)


def test_decoding_takes_the_plain_step_and_anything_else_does_not(monkeypatch):
    """From tokens alone to the first fold, which is a large one, and from there on."""
    ways = []
    general = options.over_documents
    monkeypatch.setattr(
        options, "over_documents", lambda *args, **ragged: ways.append("general") or general(*args, **ragged)
    )
    batch = attention_inputs("kv")(Sizes(T=60, K=8, V=8)).to(torch.float32)
    with torch.no_grad():
        _, state = ops.power_attention(**batch.between(0, 20).tokens)
        ways.clear()
        for t in range(20, 60):
            before = len(ways)
            y, state = ops.power_attention(**batch.between(t, t + 1).tokens, state=state)
            if len(ways) > before:
                assert state.slots == 0 and state.recurrent is not None
        assert len(ways) == 1
        token = batch.between(0, 1).tokens
        with pytest.raises(ValueError, match="log_decay must be <= 0"):
            ops.power_attention(**token | {"log_decay": token["log_decay"] + 9}, state=state)
        with pytest.raises(ValueError, match="same heads and channels"):
            ops.power_attention(**{name: x[:, :, :1] for name, x in token.items()}, state=state)
        with pytest.raises(ValueError, match="v must have 4 dimensions"):
            ops.power_attention(**token | {"v": token["v"][0]}, state=state)
        assert ops.power_attention(**token, state=state, attention_mask=torch.zeros(2, 1))[0].eq(0).all()
    y, _ = ops.power_attention(**{name: x.requires_grad_() for name, x in token.items()}, state=state)
    assert y.requires_grad


@pytest.mark.parametrize("fold_at", [1000, 30])
def test_two_successors_of_a_state_do_not_see_each_other(fold_at):
    """Beams: the first one takes the slot behind the tokens, the second one a buffer of its own, in any order and mode."""
    batch = attention_inputs("kv")(Sizes(T=60, K=8, V=8)).to(torch.float32)

    def decode(state, places):
        outputs = []
        for t in places:
            y, state = ops.power_attention(**batch.between(t, t + 1).tokens, state=state, fold_at=fold_at)
            outputs.append(y)
        return torch.cat(outputs, 1), state

    with torch.no_grad():
        _, start = ops.power_attention(**batch.between(0, 40).tokens, fold_at=fold_at)
        _, start = decode(start, [40])
        alone = {places: decode(start.clone(), places) for places in ((41, 42, 43), (50, 51, 52))}
        first, second = decode(start, (41, 42)), decode(start, (50, 51))
        first = torch.cat([first[0], decode(first[1], (43,))[0]], 1)
        with torch.inference_mode():
            last, _ = decode(second[1], (52,))
        second = torch.cat([second[0], last], 1)
        copied, _ = decode(copy.deepcopy(start), (41, 42, 43))
    assert_close(first, alone[41, 42, 43][0], 1e-6)
    assert_close(second, alone[50, 51, 52][0], 1e-6)
    assert_close(copied, alone[41, 42, 43][0], 1e-6)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, ops.PowerState.clone])
def test_a_copy_of_a_state_does_not_share_its_slots(copied):
    """A copy made before the next step: neither it nor the state it was made of writes where the other one reads."""
    batch = attention_inputs("kv")(Sizes(T=60, K=8, V=8)).to(torch.float32)

    def step(state, t):
        return ops.power_attention(**batch.between(t, t + 1).tokens, state=state, fold_at=1000)

    with torch.no_grad():
        _, state = step(ops.power_attention(**batch.between(0, 40).tokens, fold_at=1000)[1], 40)
        other = copied(state)
        _, other = step(other, 50)
        _, state = step(state, 41)
        y, _ = step(other, 51)
        expected, _ = step(step(ops.power_attention(**batch.between(0, 41).tokens, fold_at=1000)[1], 50)[1], 51)
    assert_close(y, expected, 1e-6)


def test_tokens_of_a_decoded_state_are_there_when_somebody_looks():
    batch = attention_inputs("kv")(Sizes(T=30, K=8, V=8)).to(torch.float32)
    with torch.no_grad():
        _, state = ops.power_attention(**batch.between(0, 20).tokens, fold_at=1000)
        for t in range(20, 30):
            _, state = ops.power_attention(**batch.between(t, t + 1).tokens, state=state, fold_at=1000)
    assert state.batch_size == batch.tokens["k"].shape[0] and state.slots == 30
    assert state.keys.equal(batch.tokens["k"]) and state.values.equal(batch.tokens["v"])
    assert state.log_decay.equal(batch.tokens["log_decay"])
    with pytest.raises(AttributeError, match="no attribute 'queries'"):
        operator.attrgetter("queries")(state)


@pytest.mark.parametrize("fails", ["kernel", "tensor"])
@pytest.mark.parametrize("fold_every", [32, 4], ids=["kept", "folded"])
def test_a_step_without_memory_can_be_made_again(fails, fold_every, monkeypatch):
    """Its state is as it was, and the slot for the token is still there."""
    draw = attention_inputs("kv")
    earlier, token, other = (draw(Sizes(T=T, seed=seed)).to(torch.float32).tokens for T, seed in ((10, 1), (1, 2), (1, 3)))
    options = {"fold_at": 8, "fold_every": fold_every}
    with torch.no_grad():
        _, state = ops.power_attention(**earlier, **options)
        _, state = ops.power_attention(**token, **options, state=state)
        expected = ops.power_attention(**token, **options, state=state.clone())
        with monkeypatch.context() as patch:
            if fails == "kernel":
                patch.setattr(library, "step", lambda buffer, token: 1)
            else:
                patch.setattr(torch, "empty", refuse)
            with pytest.raises(MemoryError, match="the native decoding step found no memory"):
                ops.power_attention(**other, **options, state=state)
        tokens, kept = state.source
        assert kept not in tokens.taken
        y, after = ops.power_attention(**token, **options, state=state)
    assert torch.equal(y, expected[0]) and kept in tokens.taken
    assert_same_state(after, expected[1], 0)


def refuse(*sizes, **options):
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes.")


@settings(max_examples=60)
@given(step=steps(), T=st.sampled_from((2, 5, 40, 130)))
def test_a_plain_prompt_is_the_general_one(step, T):
    """The same outputs and states to the bit, whichever way the call goes."""
    batch, options, _ = step
    prompt = batch.map(lambda x: x.expand(-1, T, *x.shape[2:]) * torch.rand(1, T, *(1,) * (x.dim() - 2)), parameters=False)
    tensors = [prompt.tokens.get(name) for name in ("q", "k", "v", "log_decay")]
    with torch.no_grad():
        for return_state in (True, False):
            done = plain_prompt(*tensors, chunk_size=256, **options, return_state=return_state)
            y, state = ops.power_attention(**prompt.tokens, **options, backend="native", return_state=return_state)
            assert done is not None and torch.equal(done[0], y)
            if return_state:
                assert_same_state(done[1], state, 0)
            else:
                assert done[1] is None is state


def test_what_is_not_a_plain_prompt_goes_the_general_way():
    batch = attention_inputs("kv")(Sizes(T=20, K=8, V=8)).to(torch.float32).tokens
    with pytest.raises(ValueError, match="log_decay must be <= 0"):
        ops.power_attention(**batch | {"log_decay": batch["log_decay"] + 9})
    with pytest.raises(ValueError, match="fold_every must be"):
        ops.power_attention(**batch, fold_every=0)
    with pytest.raises(ValueError, match="v must have 4 dimensions"):
        ops.power_attention(**batch | {"v": batch["v"][0]})
    broken = batch | {"v": batch["v"].clone()}
    broken["v"][:, 9] = float("nan")
    y, _ = ops.power_attention(**broken)
    assert y[:, :9].isfinite().all() and y[:, 9:].isnan().all()
    y, state = ops.power_attention(**{name: x.requires_grad_() for name, x in batch.items()})
    assert y.requires_grad and state.keys.requires_grad


def test_a_prompt_is_folded_when_somebody_looks():
    """Outputs do not wait for the recurrent state; it is that of an eager fold, whatever becomes of the caller's tensors."""
    batch = attention_inputs("kv")(Sizes(B=2, T=60, G=2, R=2, K=5, V=4)).to(torch.float32)
    options = {"fold_at": 9, "fold_every": 4}
    _, eager = ops.power_attention(**batch.leaves().tokens, **options)
    _, lazy = ops.power_attention(**batch.tokens, **options)
    assert "fold" in lazy.__dict__ and "fold" not in eager.__dict__
    for x in batch.tokens.values():
        x.zero_()
    assert torch.equal(copy.deepcopy(lazy).recurrent, eager.recurrent)
    assert torch.equal(lazy.recurrent, eager.recurrent) and "fold" not in lazy.__dict__
