"""A sequence may be cut anywhere, and each piece computed in any form: the states carry all that matters."""

import math
from itertools import pairwise

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
    Sizes,
    assert_close,
    assert_same_state,
    every,
    sizes,
    state_of,
)

FOLDS = st.tuples(st.integers(1, 21), st.integers(1, 8))
ANY_FORM = st.sampled_from([*FORMS, "auto"])


@every(ALL)
@settings(max_examples=25)
@given(s=sizes(), fold=FOLDS, chunk=st.integers(1, 8), cuts=st.lists(st.floats(0, 1), max_size=3), data=st.data())
def test_state_handover_at_any_split(op, s, fold, chunk, cuts, data):
    """Any pieces, any form for each: the same outputs, and in the end the same state as in one call."""
    batch = op.draw(s)
    whole, final = op(batch, chunk, fold, form="parallel")
    bounds = sorted({0, s.T, *(round(cut * s.T) for cut in cuts)})
    state, pieces = None, []
    for start, end in pairwise(bounds):
        y, state = op(batch.between(start, end), chunk, fold, state=state, form=data.draw(ANY_FORM))
        pieces.append(y)
    assert_close(torch.cat(pieces, dim=1), whole, 1e-10)
    assert_same_state(state, final)


@pytest.mark.parametrize("second", FORMS)
@pytest.mark.parametrize("first", FORMS)
@every(FEW)
def test_any_form_continues_any_other_across_the_fold(op, first, second):
    """Nine tokens are kept, the tenth folds them, and every third one after it folds again."""
    batch = op.draw(Sizes(T=17))
    expected = op.reference(batch)
    for cut in (1, 8, 9, 10, 11, 13, 16):
        y1, state = op(batch.between(0, cut), fold=(10, 3), form=first)
        y2, _ = op(batch.between(cut, None), fold=(10, 3), form=second, state=state)
        assert_close(torch.cat([y1, y2], dim=1), expected, 1e-10, f"cut at {cut}")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@every(FEW)
def test_handover_costs_no_precision(op, dtype):
    batch = op.draw(Sizes(T=17)).to(dtype)
    whole, _ = op(batch, form="parallel")
    state, pieces = None, []
    for start in range(0, 17, 5):
        y, state = op(batch.between(start, start + 5), form="chunked", state=state)
        pieces.append(y)
    assert_close(torch.cat(pieces, dim=1), whole, 2e-4 if dtype == torch.float32 else 2e-2)


@every(ALL)
def test_a_state_is_an_argument_and_never_changes(op):
    """The same state can be continued twice: no op writes into it, or into its inputs."""
    batch = op.draw(Sizes(T=13))
    state = state_of(op, batch.between(0, 7))
    inputs, before = batch.map(torch.clone), state.clone()
    for form in (*FORMS, "auto"):
        first, _ = op(batch.between(7, None), state=state, form=form)
        second, _ = op(batch.between(7, None), state=state, form=form)
        assert torch.equal(first, second)
    for name, tensor in before.tensors().items():
        assert torch.equal(state.tensors()[name], tensor), name
    for name, tensor in inputs.all().items():
        assert torch.equal(batch.all()[name], tensor), name


@every(ALL)
def test_a_state_owns_no_more_memory_than_it_says(op):
    """A view into a long sequence would keep the whole of it alive."""
    batch = op.draw(Sizes(B=1, T=30))
    for form in (*FORMS, "auto"):
        state = state_of(op, batch, form=form)
        storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in state.tensors().values()}
        assert sum(storages.values()) <= state.nbytes, form


@pytest.mark.parametrize("name", ["power-2-decay", "power-3", "taylor-2", "taylor-gaps", "power-2-sums"])
@settings(max_examples=15)
@given(s=sizes(T=12), fold=st.tuples(st.integers(1, 12), st.integers(1, 4)))
def test_the_state_is_the_sum_of_decayed_features(name, s, fold):
    """state = Σ_s exp(a_{s+1} + … + a_n) φ(scale·k_s) [v_s, 1]ᵀ over the n tokens that are folded."""
    op = BY_NAME[name]
    batch = op.draw(s)
    for form in FORMS:
        state = state_of(op, batch, fold=fold, form=form)
        folded = s.T - state.slots
        assert folded >= fold[0] and state.slots < fold[1]
        k, v, a = (batch.tokens[x][:, :folded] for x in ("k", "v", "log_decay"))
        assert_close(state.recurrent, folded_state(k, v, a, **op.options), 1e-12, form)
        for kept, given_ in (("keys", "k"), ("values", "v"), ("log_decay", "log_decay")):
            assert torch.equal(state.tensors()[kept], batch.tokens[given_][:, folded:])


def folded_state(k, v, log_decay, *, order, scale=None, normalize=True):
    """(B, G, F, V or V+1), from the reference's features and decays."""
    scale = reference.default_scale(scale, k)
    orders = (order,) if isinstance(order, int) else order
    coefficients = [1.0] if isinstance(order, int) else [1 / math.factorial(n) for n in orders]
    features = torch.cat(
        [c**0.5 * reference.symmetric_power(scale * k, n) for n, c in zip(orders, coefficients, strict=True)], dim=-1
    )
    values = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1) if normalize else v
    left = reference.decay_matrix(log_decay)[:, :, -1]  # of each token, at the end
    return torch.einsum("bgs,bsgf,bsgv->bgfv", left, features, values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("decay", [False, True])
def test_a_decoding_state_is_never_larger_than_a_cache(dtype, decay):
    """At every length, tokens folded or not: at most the keys, values and decays of that many tokens, and bounded."""
    K = V = 6
    every = 4
    at = ops.fold_length(K, V, dtype=dtype)
    state, sizes_seen = None, []
    for n in range(1, at + 40):
        q, k, v = (torch.randn(1, 1, 1, K, dtype=dtype) for _ in range(3))
        log_decay = -torch.rand(1, 1, 1) if decay else None
        _, state = ops.power_attention(q, k, v, log_decay, state=state, fold_every=every)
        cache = n * (K + V) * dtype.itemsize + (n * 4 if decay else 0)
        assert state.nbytes <= cache, n
        sizes_seen.append(state.nbytes)
    token = (K + V) * dtype.itemsize + (4 if decay else 0)
    memory = 21 * 7 * 4
    assert sizes_seen[at - 2] == (at - 1) * token and sizes_seen[at - 1] == memory
    assert max(sizes_seen[at:]) == memory + (every - 1) * token


def test_the_fold_of_64_channels_comes_after_1057_tokens():
    assert ops.fold_length(64, 64) == 1057  # 2080·65 numbers against 128 a token
    assert ops.fold_length(64, 64, normalize=False) == 1040
    assert ops.fold_length(64, 64, dtype=torch.bfloat16) == 2113  # the state stays float32
    assert ops.fold_length(64, 64, dtype=torch.float64) == 1057


@pytest.mark.parametrize("form", FORMS)
def test_the_default_fold_is_invisible(form):
    K = V = 4
    at = ops.fold_length(K, V)
    T = at + 70
    op = BY_NAME["power-2-decay"]
    batch = op.draw(Sizes(B=1, T=T, G=1, R=1, K=K, V=V)).to(torch.float32)
    y, state = ops.power_attention(**batch.all(), form=form)
    assert state.recurrent is not None and state.slots == 6
    assert_close(y, op.reference(batch.to(torch.float64)), 2e-4)


def test_a_call_without_decay_is_one_with_log_decay_zero():
    op = BY_NAME["power-2"]
    batch = op.draw(Sizes(T=12))
    zero = torch.zeros(2, 12, 2, dtype=torch.float64)
    for name in ("power_attention", "linear_attention", "softmax_attention"):
        function = getattr(ops, name)
        for form in FORMS:
            plain, decayed = function(**batch.all(), form=form)[0], function(**batch.all(), log_decay=zero, form=form)[0]
            assert_close(plain, decayed, 1e-9, name)


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_a_first_order_state_goes_on_whatever_the_rank_of_the_decay(scale, backend):
    """No decay, one per head and one per channel are one recurrence: a state of one serves the others."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.rand(2, 12, 2, 3, generator=generator) for _ in range(3))
    per_head = -torch.rand(2, 12, 2, generator=generator)
    per_head[:, :4] = 0
    per_channel = per_head[..., None].expand(-1, -1, -1, 3)
    whole, _ = ops.linear_attention(q, k, v, per_channel, scale=scale)
    state, pieces = None, []
    for now, decay in ((slice(0, 4), None), (slice(4, 8), per_head), (slice(8, 12), per_channel)):
        decay = None if decay is None else decay[:, now]
        y, state = ops.linear_attention(q[:, now], k[:, now], v[:, now], decay, scale=scale, state=state, backend=backend)
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole)


@pytest.mark.parametrize("scale", [None, 0.3])
def test_a_first_order_state_of_an_older_file_goes_on(scale):
    """It was a PowerState without tokens, whose state held scaled keys."""
    q, k, v = torch.rand(3, 2, 8, 2, 3, generator=torch.Generator().manual_seed(0))
    whole, _ = ops.linear_attention(q, k, v, scale=scale)
    _, state = ops.linear_attention(q[:, :5], k[:, :5], v[:, :5], scale=scale)
    scaled = state.recurrent * (3**-0.5 if scale is None else scale)
    old = ops.PowerState(k[:, :0], v[:, :0], recurrent=scaled)
    rest, after = ops.linear_attention(q[:, 5:], k[:, 5:], v[:, 5:], scale=scale, state=old)
    torch.testing.assert_close(rest, whole[:, 5:])
    assert type(after) is ops.LinearState
