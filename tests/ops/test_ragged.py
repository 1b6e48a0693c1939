"""Padding and neighbours have no influence: a row of a ragged batch is what it would be alone."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maclaurin import ops
from tests.ops.helpers import (
    ALL,
    FEW,
    FORMS,
    Batch,
    Sizes,
    assert_close,
    assert_same_gradients,
    every,
    gradients,
    projections,
    sizes,
)

FOLDS = st.tuples(st.integers(1, 21), st.integers(1, 8))
ANY_FORM = st.sampled_from([*FORMS, "auto"])


@st.composite
def masks(draw, B, T):
    """Left padding, right padding, holes, and rows without any token."""
    rows = []
    for _ in range(B):
        left, right = draw(st.integers(0, T)), draw(st.integers(0, T))
        row = [left <= t < T - right for t in range(T)]
        if draw(st.booleans()):
            row = [real and draw(st.booleans()) for real in row]
        rows.append(row)
    return torch.tensor(rows)


def with_garbage(batch, mask, value):
    """`value` at padding; decays, which must be <= 0, get a large one."""

    def spoiled(name, x):
        hidden = ~mask.view(*mask.shape, *(1,) * (x.dim() - 2))
        return x.masked_fill(hidden, -1e4 if name == "log_decay" else value)

    return Batch({name: spoiled(name, x) for name, x in batch.tokens.items()}, batch.parameters)


def alone(op, batch, mask, row, **options):
    """One row with its tokens only; None where it has none."""
    if not mask[row].any():
        return None, options.get("state")
    return op(batch.rows(slice(row, row + 1)).map(lambda x: x[:, mask[row]], parameters=False), **options)


@every(ALL)
@settings(max_examples=12)
@given(s=sizes(), fold=FOLDS, chunk=st.integers(1, 8), data=st.data(), garbage=st.sampled_from([1e6, math.nan]))
def test_padding_never_enters_the_state(op, s, fold, chunk, data, garbage):
    """Two masked calls and one without a mask, each in its own form, against every row alone and unpadded."""
    options = {"fold": fold, "chunk": chunk}
    batches = [op.draw(s), op.draw(Sizes(s.B, 5, s.G, s.R, s.K, s.V, s.seed + 1))]
    batches[1] = Batch(batches[1].tokens, batches[0].parameters)
    given_masks = [data.draw(masks(s.B, batch.length)) for batch in batches]
    state = None
    states = [None] * s.B
    for batch, mask in zip(batches, given_masks, strict=True):
        spoiled = with_garbage(batch, mask, garbage)
        y, state = op(spoiled, attention_mask=mask, state=state, form=data.draw(ANY_FORM), **options)
        assert (y[~mask] == 0).all()
        for row in range(s.B):
            expected, states[row] = alone(op, batch, mask, row, state=states[row], **options)
            if expected is not None:
                assert_close(y[row][mask[row]], expected[0], 1e-9, f"row {row}")
    # what is in a state shows in what follows it
    probe = Batch(op.draw(Sizes(s.B, 3, s.G, s.R, s.K, s.V, s.seed + 2)).tokens, batches[0].parameters)
    y, _ = op(probe, state=state, form=data.draw(ANY_FORM), **options)
    for row in range(s.B):
        expected, _ = op(probe.rows(slice(row, row + 1)), state=states[row], **options)
        assert_close(y[row], expected[0], 1e-9, f"after row {row}")


@every(ALL)
@settings(max_examples=12)
@given(s=sizes(), data=st.data(), garbage=st.sampled_from([1e6, math.nan]), form=ANY_FORM)
def test_padding_gets_no_gradient_and_gives_none(op, s, data, garbage, form):
    batch, mask = op.draw(s), data.draw(masks(s.B, s.T))
    clean, spoiled = batch.leaves(), with_garbage(batch, mask, garbage).leaves()
    y, state = op(spoiled, attention_mask=mask, form=form)
    # the state takes part with weight 0, which would make a NaN in it a NaN everywhere
    found = gradients(projections([y]) + 0 * projections(list(state.tensors().values())), spoiled.all())
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)  # of projections
    loss = torch.zeros((), dtype=torch.float64)
    for row in range(s.B):
        expected, _ = alone(op, clean, mask, row)
        if expected is not None:
            loss = loss + (expected[0] * weights[row][mask[row]]).sum()
    if loss.requires_grad:
        assert_same_gradients(found, gradients(loss, clean.all()))
    for name in batch.tokens:
        assert (found[name][~mask] == 0).all(), name


@every(ALL)
@settings(max_examples=12)
@given(s=sizes(), fold=FOLDS, data=st.data(), garbage=st.sampled_from([1e6, math.nan]))
def test_lengths_are_a_mask_on_the_right(op, s, fold, data, garbage):
    batch = op.draw(s)
    lengths = torch.tensor([data.draw(st.integers(0, s.T)) for _ in range(s.B)])
    mask = torch.arange(s.T) < lengths[:, None]
    spoiled = with_garbage(batch, mask, garbage)
    for form in FORMS:
        y, state = op(spoiled, lengths=lengths, fold=fold, form=form)
        masked, other = op(batch, attention_mask=mask, fold=fold)
        assert_close(y, masked, 1e-9, form)
        after, _ = op(batch, state=state, fold=fold)
        assert_close(after, op(batch, state=other, fold=fold)[0], 1e-9, form)


@every(ALL)
@settings(max_examples=12)
@given(
    s=sizes(B=1),
    fold=FOLDS,
    chunk=st.integers(1, 8),
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=5).filter(any),
    before=st.lists(st.integers(0, 9), min_size=5, max_size=5),
    form=ANY_FORM,
)
def test_documents_in_a_pack_never_meet(op, s, fold, chunk, lengths, before, form):
    """Each document, continued from a state of its own, is what it would be alone; empty ones pass their state on."""
    options = {"fold": fold, "chunk": chunk}
    bounds = [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    batch = op.draw(Sizes(1, bounds[-1], s.G, s.R, s.K, s.V, s.seed))
    past = Batch(op.draw(Sizes(1, 10, s.G, s.R, s.K, s.V, s.seed + 1)).tokens, batch.parameters)
    probe = Batch(op.draw(Sizes(len(lengths), 2, s.G, s.R, s.K, s.V, s.seed + 2)).tokens, batch.parameters)
    states = [op(past.between(n, 10), **options)[1] for n, _ in zip(before, lengths, strict=False)]
    y, after = op(batch, cu_seqlens=bounds, state=type(states[0]).cat(states), form=form, **options)
    assert after.batch_size == len(lengths)
    for n, (start, end) in enumerate(pairwise(bounds)):
        state = states[n]
        if end > start:
            expected, state = op(batch.between(start, end), state=state, **options)
            assert_close(y[:, start:end], expected, 1e-9, f"document {n}")
        one = slice(n, n + 1)
        expected, _ = op(probe.rows(one), state=state, **options)
        assert_close(op(probe.rows(one), state=after.select([n]), **options)[0], expected, 1e-9, f"after document {n}")


@every(ALL)
def test_documents_start_from_nothing_where_no_state_is_given(op):
    bounds = [0, 1, 1, 20, 38]
    batch = op.draw(Sizes(B=1, T=38)).leaves()
    y, _ = op(batch, cu_seqlens=torch.tensor(bounds, dtype=torch.int32), form="chunked")
    pieces = [op.reference(batch.between(a, b)) for a, b in pairwise(bounds) if b > a]
    expected = torch.cat(pieces, dim=1)
    assert_close(y, expected, 1e-10)
    assert_same_gradients(gradients(projections([y]), batch.all()), gradients(projections([expected]), batch.all()))


@every(FEW)
def test_a_mask_of_ones_is_no_mask(op):
    batch = op.draw(Sizes())
    y, state = op(batch)
    for ones in (torch.ones(2, 11), torch.ones(2, 11, dtype=torch.bool), torch.ones(2, 11, dtype=torch.long)):
        masked, other = op(batch, attention_mask=ones)
        assert torch.equal(masked, y)
        assert other.tensors().keys() == state.tensors().keys()


@pytest.mark.parametrize("dtype", [torch.bool, torch.long, torch.float32, torch.bfloat16])
def test_a_mask_may_have_any_dtype(dtype):
    x = torch.randn(2, 3, 2, 4)
    mask = torch.tensor([[0, 1, 1], [1, 1, 0]]).to(dtype)
    y, _ = ops.power_attention(x, x, x, attention_mask=mask)
    assert (y[0, 0] == 0).all() and (y[1, 2] == 0).all()
    assert_close(y[0, 1], x[0, 1], 1e-6)


@every(FEW)
def test_rows_that_decode_side_by_side_stay_apart(op):
    """Prompts of 2 to 9 tokens, left-padded, then ten single steps: equal to each prompt alone."""
    B, T = 3, 19
    batch = op.draw(Sizes(B=B, T=T))
    mask = torch.ones(B, T, dtype=torch.bool)
    mask[0, :7] = mask[1, :2] = False
    y, state = op(batch.between(0, 9), attention_mask=mask[:, :9])
    outputs = [y]
    for t in range(9, T):
        y, state = op(batch.between(t, t + 1), state=state)
        outputs.append(y)
    outputs = torch.cat(outputs, dim=1)
    for row in range(B):
        tokens = batch.rows(slice(row, row + 1)).map(lambda x, row=row: x[:, mask[row]], parameters=False)
        assert_close(outputs[row][mask[row]], op.reference(tokens)[0], 1e-10)
