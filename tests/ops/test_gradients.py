"""Gradients of every form are those of reference.py, through the state that comes in and the one that goes out."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maclaurin import ops
from maclaurin.ops import reference
from tests.ops.helpers import (
    ALL,
    BY_NAME,
    FEW,
    FORMS,
    Batch,
    Sizes,
    assert_same_gradients,
    distance,
    every,
    gradients,
    projections,
    sizes,
    state_of,
)
from tests.ops.test_handover import folded_state

FOLDS = st.tuples(st.integers(1, 21), st.integers(1, 8))


@every(ALL)
@settings(max_examples=15)
@given(s=sizes(), chunk=st.integers(1, 8), fold=FOLDS)
def test_gradients_are_those_of_the_reference(op, s, chunk, fold):
    batch = op.draw(s).leaves()
    expected = gradients(projections([op.reference(batch)]), batch.all())
    for form in (*FORMS, "auto"):
        y, _ = op(batch, chunk, fold, form=form)
        assert_same_gradients(gradients(projections([y]), batch.all()), expected)


@every(ALL)
@settings(max_examples=12)
@given(s=sizes(), chunk=st.integers(1, 8), fold=FOLDS, cut=st.floats(0, 1))
def test_gradients_flow_from_piece_to_piece(op, s, chunk, fold, cut):
    """Only the second piece is in the loss; the first one gets its gradient through the state alone."""
    batch = op.draw(s).leaves()
    middle = round(cut * (s.T - 1))
    expected = gradients(projections([op.reference(batch)[:, middle:]]), batch.all())
    for form in FORMS:
        state = None if middle == 0 else state_of(op, batch.between(0, middle), chunk=chunk, fold=fold, form=form)
        y, _ = op(batch.between(middle, None), chunk, fold, state=state, form=form)
        assert_same_gradients(gradients(projections([y]), batch.all()), expected)


@every(ALL)
@settings(max_examples=12)
@given(s=sizes(), chunk=st.integers(1, 8), fold=FOLDS, cut=st.floats(0, 1))
def test_gradients_of_states_do_not_depend_on_the_form(op, s, chunk, fold, cut):
    """By every tensor of the incoming state, from every tensor of the outgoing one."""
    batch = op.draw(s).leaves()
    middle = round(cut * (s.T - 1))
    start = None if middle == 0 else state_of(op, batch.between(0, middle), chunk=chunk, fold=fold).detach()
    found = []
    for form in FORMS:
        leaves = dict(batch.all())
        state = start
        if start is not None:
            state = start._map(lambda x: x.clone().requires_grad_() if x.is_floating_point() else x)
            leaves |= {f"state.{name}": x for name, x in state.tensors().items() if x.is_floating_point()}
        y, final = op(batch.between(middle, None), chunk, fold, state=state, form=form)
        found.append(gradients(projections([y, *final.tensors().values()]), leaves))
    for other in found[1:]:
        assert_same_gradients(other, found[0])


@pytest.mark.parametrize("name", ["power-2-decay", "power-3", "taylor-2", "taylor-gaps", "power-2-sums"])
@settings(max_examples=12)
@given(s=sizes(T=12), fold=st.tuples(st.integers(1, 12), st.integers(1, 4)), chunk=st.integers(1, 5))
def test_gradients_from_the_state_are_those_of_its_definition(name, s, fold, chunk):
    op = BY_NAME[name]
    batch = op.draw(s).leaves()
    for form in FORMS:
        y, state = op(batch, chunk, fold, form=form)
        folded = s.T - state.slots
        k, v, a = (batch.tokens[x][:, :folded] for x in ("k", "v", "log_decay"))
        expected = projections([op.reference(batch), folded_state(k, v, a, **op.options)])
        actual = projections([y, state.recurrent])
        assert_same_gradients(gradients(actual, batch.all()), gradients(expected, batch.all()))


@pytest.mark.parametrize("name", ["linear-channel", "linear-channel-sums"])
def test_gradients_from_a_state_with_channel_decays_are_those_of_its_definition(name):
    op = BY_NAME[name]
    batch = op.draw(Sizes(T=9)).leaves()
    k, v, a = (batch.tokens[x] for x in ("k", "v", "log_decay"))
    values = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1) if op.options.get("normalize", True) else v
    left = torch.stack([reference.decay_matrix(a[..., c])[:, :, -1] for c in range(5)], dim=-1)
    memory = torch.einsum("bgsk,bsgk,bsgv->bgkv", left, k, values)
    expected = gradients(projections([memory]), batch.all())
    for form in FORMS:
        _, state = op(batch, form=form)
        assert_same_gradients(gradients(projections([state.recurrent]), batch.all()), expected)


@every(FEW)
def test_gradients_are_the_slopes_of_the_function(op):
    """Finite differences, by every input and every number of the state before, of every output and the state after."""
    drawn = op.draw(Sizes(B=1, T=6, G=1, R=2, K=3, V=2, seed=3))
    state = state_of(op, drawn.between(0, 3), chunk=2, fold=(2, 2)).detach()
    batch = drawn.between(3, None)
    names = list(batch.all())
    floats = {f"state.{name}": x for name, x in state.tensors().items() if x.is_floating_point() and x.numel()}

    def function(*tensors):
        given_ = dict(zip([*names, *floats], tensors, strict=True))
        now = Batch({name: given_[name] for name in batch.tokens}, {name: given_[name] for name in batch.parameters})
        kept = {name: given_.get(f"state.{name}", x) for name, x in state.tensors().items()}
        y, after = op(now, chunk=2, fold=(2, 2), state=type(state)(**kept), form="chunked")
        return (y, *(x for x in after.tensors().values() if x.is_floating_point() and x.numel()))

    tensors = [*batch.all().values(), *floats.values()]
    assert torch.autograd.gradcheck(function, [x.detach().clone().requires_grad_() for x in tensors])


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("order", [1, 2, 3, (0, 1, 2), (1, 3)])
def test_chunked_power_passes_gradcheck(order, normalize):
    op = BY_NAME["power-3-normalised"]
    batch = op.draw(Sizes(B=1, T=5, G=1, R=2, K=2, V=2)).leaves()

    def function(q, k, v, log_decay):
        options = {"order": order, "normalize": normalize, "form": "chunked", "chunk_size": 2, "fold_at": 3, "fold_every": 2}
        y, state = ops.power_attention(q, k, v, log_decay, **options)
        return y, state.recurrent

    assert torch.autograd.gradcheck(function, list(batch.all().values()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@every(FEW)
def test_gradients_lose_no_more_than_rounding(op, dtype):
    """At most twice what autograd through the reference loses in float32, rounded to the dtype of the inputs."""
    drawn = op.draw(Sizes(T=40)).to(dtype)
    exact_leaves = drawn.to(torch.float64).leaves()
    exact = gradients(projections([op.reference(exact_leaves)]), exact_leaves.all())
    plain_leaves = drawn.to(torch.float32).leaves()
    plain = gradients(projections([op.reference(plain_leaves)]), plain_leaves.all())
    batch = drawn.leaves()
    for form in ("chunked", "parallel"):
        y, _ = op(batch, chunk=16, fold=(50, 8), form=form)
        for name, grad in gradients(projections([y]), batch.all()).items():
            assert grad.dtype == dtype
            tolerance = 2 * distance(plain[name].to(dtype), exact[name]) + (1e-4 if dtype == torch.float32 else 1e-3)
            assert distance(grad, exact[name]) <= tolerance, f"{form}: {name}"


def test_only_what_is_asked_for_gets_a_gradient():
    op = BY_NAME["power-2-decay"]
    batch = op.draw(Sizes())
    for name in batch.tokens:
        wanted = batch.map(torch.clone)
        leaf = wanted.tokens[name].requires_grad_()
        expected = gradients(projections([op.reference(wanted)]), {name: leaf})
        y, _ = op(wanted, form="chunked")
        assert_same_gradients(gradients(projections([y]), {name: leaf}), expected)


def test_a_detached_divisor_is_a_constant():
    batch = BY_NAME["softmax-decay"].draw(Sizes()).leaves()
    y_sums = reference.softmax_attention(**_renamed(batch), divisor="none")
    ones = torch.ones_like(batch.tokens["v"])
    sums = reference.softmax_attention(**{**_renamed(batch), "v_BTHV": ones}, divisor="none")[..., :1].detach()
    expected = gradients(projections([y_sums / sums]), batch.all())
    for form in (*FORMS, "auto"):
        y, _ = ops.softmax_attention(**batch.all(), detach_divisor=True, form=form, chunk_size=4)
        assert_same_gradients(gradients(projections([y]), batch.all()), expected)


def _renamed(batch):
    names = {"q": "q_BTHK", "k": "k_BTHK", "v": "v_BTHV", "log_decay": "log_decay_BTH"}
    return {names[name]: tensor for name, tensor in batch.tokens.items()}
