"""What the delta rule promises beyond the laws of every op: peers, special cases, and a state that cannot grow."""

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from maclaurin import ops
from maclaurin.ops import reference
from tests.ops.helpers import (
    BY_NAME,
    FORMS,
    Sizes,
    assert_close,
    assert_same_gradients,
    distance,
    gradients,
    projections,
)

EVERY_FORM = (*FORMS, "auto")


def draw(T, K=5, V=3, B=2, H=2, seed=0, dtype=torch.float64):
    """q, k of unit length, v, β between 0 and 1, log decay."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(B, T, H, width, generator=generator, dtype=torch.float64) for width in (K, K, V))
    beta, log_decay = torch.rand(2, B, T, H, generator=generator, dtype=torch.float64)
    drawn = {"q": q, "k": F.normalize(k, dim=-1), "v": v, "beta": beta, "log_decay": -log_decay}
    return {name: x.to(dtype) for name, x in drawn.items()}


@pytest.mark.parametrize("order", [1, 2, 3])
def test_the_reference_is_the_product_of_its_transitions(order):
    """S_t = e^a (I - β φφᵀ) S_{t-1} + β φ vᵀ, with the matrices written out."""
    x = draw(7, B=1, H=1)
    phi = ops.symmetric_power(x["k"][0, :, 0], order)
    memory = torch.zeros(phi.shape[1], 3, dtype=torch.float64)
    expected = []
    for t in range(7):
        beta, keep = x["beta"][0, t, 0], x["log_decay"][0, t, 0].exp()
        erase = torch.eye(len(memory), dtype=torch.float64) - beta * torch.outer(phi[t], phi[t])
        memory = keep * erase @ memory + beta * torch.outer(phi[t], x["v"][0, t, 0])
        expected.append(ops.symmetric_power(x["q"][0, t, 0] * 5**-0.5, order) @ memory)
    y = reference.delta_rule(*x.values(), order=order)
    assert_close(y[0, :, 0], torch.stack(expected), 1e-12)
    for form in EVERY_FORM:
        _, state = ops.delta_rule(**x, order=order, form=form, chunk_size=3)
        assert_close(state.recurrent[0, 0], memory, 1e-12, form)


@pytest.mark.parametrize("form", EVERY_FORM)
def test_delta_rule_against_flash_linear_attention(form):
    naive = pytest.importorskip(
        "fla.ops.delta_rule.naive", reason="flash-linear-attention (the extra `peers`) is not installed"
    )
    x = draw(128, K=16, V=24, dtype=torch.float32)
    del x["log_decay"]
    theirs = [part.transpose(1, 2) for part in x.values()]
    y, state = ops.delta_rule(**x, form=form)
    for peer in (naive.delta_rule_recurrence, naive.delta_rule_chunkwise):
        expected, memory = peer(*theirs)
        assert_close(y, expected.transpose(1, 2), 1e-5, peer.__name__)
        assert_close(state.recurrent, memory, 1e-5, peer.__name__)


@pytest.mark.parametrize("form", EVERY_FORM)
def test_gated_delta_rule_against_flash_linear_attention(form):
    """State included: they decay the state first and then correct it, as here."""
    naive = pytest.importorskip(
        "fla.ops.gated_delta_rule.naive", reason="flash-linear-attention (the extra `peers`) is not installed"
    )
    x = draw(130, K=16, V=24, dtype=torch.float32)
    start = torch.randn(2, 2, 16, 24, generator=torch.Generator().manual_seed(1))
    y, state = ops.delta_rule(**x, form=form, state=ops.DeltaState(start))
    q, k, v, beta, g = x.values()
    for expected, memory in (
        naive.naive_recurrent_gated_delta_rule(q, k, v, beta, g, initial_state=start, output_final_state=True),
        naive.naive_chunk_gated_delta_rule(q, k, v, g, beta, initial_state=start, output_final_state=True),
    ):
        assert_close(y, expected, 1e-5)
        assert_close(state.recurrent, memory, 1e-5)


@pytest.mark.parametrize("form", EVERY_FORM)
@pytest.mark.parametrize("order", [1, 2])
def test_keys_that_share_no_direction_are_plain_attention(order, form):
    """Nothing is there to erase: attention without a normaliser on the values β v, decayed or not."""
    x = draw(6, K=6)
    x["k"] = torch.eye(6, dtype=torch.float64)[:, None].expand(2, 6, 2, 6)
    expected, _ = ops.power_attention(
        x["q"], x["k"], x["v"] * x["beta"][..., None], x["log_decay"], order=order, normalize=False
    )
    y, _ = ops.delta_rule(**x, order=order, form=form, chunk_size=4)
    assert_close(y, expected, 1e-12)


@pytest.mark.parametrize("form", EVERY_FORM)
@pytest.mark.parametrize("order", [1, 2])
def test_at_beta_one_the_last_value_under_a_key_is_read_back_exactly(order, form):
    """However often and with whatever else it was written before."""
    x = draw(20)
    x["k"] = x["k"][:, torch.arange(20) % 7]  # every key comes three times, between keys that share directions with it
    x["q"], x["beta"] = x["k"], torch.ones_like(x["beta"])
    y, _ = ops.delta_rule(**x, order=order, scale=1.0, form=form, chunk_size=8)
    assert_close(y, x["v"], 1e-12)


@pytest.mark.parametrize("form", EVERY_FORM)
@pytest.mark.parametrize("order", [1, 2])
def test_at_beta_zero_the_state_only_decays(order, form):
    x = draw(9)
    _, state = ops.delta_rule(**x, order=order)
    x["beta"] = torch.zeros_like(x["beta"])
    y, after = ops.delta_rule(**x, order=order, state=state, form=form, chunk_size=4)
    sums = x["log_decay"].cumsum(1)
    assert_close(after.recurrent, state.recurrent * sums[:, -1, :, None, None].exp(), 1e-12)
    read = torch.einsum("bthf,bhfv->bthv", ops.symmetric_power(x["q"] * 5**-0.5, order), state.recurrent)
    assert_close(y, read * sums[..., None].exp(), 1e-12)


def test_at_beta_two_a_key_turns_round_what_it_holds():
    """The eigenvalue -1: the sign of a state counts the ones of a bit string modulo two."""
    bits = torch.randint(0, 2, (1, 100, 1), generator=torch.Generator().manual_seed(0)).double()
    ones = torch.ones(1, 100, 1, 1, dtype=torch.float64)
    start = ops.DeltaState(torch.ones(1, 1, 1, 1, dtype=torch.float64))
    for form in EVERY_FORM:
        y, _ = ops.delta_rule(ones, ones, 0 * ones, 2 * bits, scale=1.0, state=start, form=form, chunk_size=16)
        assert_close(y.flatten(), 1 - 2 * (bits.flatten().cumsum(0) % 2), 1e-12, form)


def test_the_second_order_recalls_as_many_patterns_as_it_has_features():
    """d(d+1)/2 = 10 keys in 4 dimensions, presented again and again: order 1 has room for 4 of them, order 2 for all.

    Each correction at β = 1 is a projection onto the memories that hold this pattern, so that repetition leads to one that
    holds all of them, if there is one.
    """
    d, repeats = 4, 150
    axes = torch.eye(d, dtype=torch.float64)
    keys = torch.stack([*axes, *((axes[i] + axes[j]) * 0.5**0.5 for i in range(d) for j in range(i))])
    values = torch.randn(len(keys), 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    k, v = (x.repeat(repeats, 1)[None, :, None] for x in (keys, values))
    wrong = {}
    for order in (1, 2):
        _, state = ops.delta_rule(k, k, v, torch.ones(k.shape[:3], dtype=torch.float64), order=order, scale=1.0)
        wrong[order] = distance(ops.symmetric_power(keys, order) @ state.recurrent[0, 0], values)
    assert wrong[2] < 1e-6
    assert wrong[1] > 0.3


@pytest.mark.parametrize("order", [1, 2])
def test_with_unit_keys_the_state_cannot_grow(order):
    """Without new values its norm never rises, for any β up to 2; and no output exceeds the sum of what was written."""
    x = draw(300, K=4, B=1, H=1)
    x["beta"] = 2 * x["beta"]
    _, state = ops.delta_rule(**x, order=order)
    x["v"] = torch.zeros_like(x["v"])
    norms = [state.recurrent.norm()]
    for t in range(0, 300, 10):
        _, state = ops.delta_rule(**{name: part[:, t : t + 10] for name, part in x.items()}, order=order, state=state)
        norms.append(state.recurrent.norm())
    assert all(after <= before * (1 + 1e-12) for before, after in pairwise(norms))


HOSTILE = {
    "beta 0": {"beta": 0.0},
    "beta 1": {"beta": 1.0},
    "beta 2": {"beta": 2.0},
    "zero keys": {"k": 0.0},
    "one key": {"k": 0.5},  # in four dimensions: all keys are the same unit vector
    "decay -1e4": {"log_decay": -1e4},
    "decay -inf": {"log_decay": -math.inf},
    "values of 1e4": {"v": 1e4},
    "queries of 1e4": {"q": 1e4},
}


@pytest.mark.parametrize("every", [1, 3], ids=["all", "every third"])
@pytest.mark.parametrize("changes", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("order", [1, 2])
def test_hostile_inputs(order, changes, every):
    """Outputs, state and gradients are those of the reference, and in float32 as near as its own rounding."""
    x = draw(40, K=4)
    for name, value in changes.items():
        x[name][:, ::every] = value
    leaves = {name: part.requires_grad_() for name, part in x.items()}
    expected = reference.delta_rule(*leaves.values(), order=order)
    slopes = gradients(projections([expected]), leaves)
    single = {name: part.detach().float() for name, part in x.items()}
    for form in EVERY_FORM:
        y, state = ops.delta_rule(**leaves, order=order, form=form, chunk_size=16)
        assert state.recurrent.isfinite().all()
        assert_close(y, expected, 1e-10, form)
        found = gradients(projections([y]), leaves)
        if "log_decay" in changes:  # a decay of nothing at all has no slope: e^-750 is zero
            assert (found["log_decay"][:, ::every] == 0).all()
            slopes["log_decay"][:, ::every] = 0
        assert_same_gradients(found, slopes)
        y, _ = ops.delta_rule(**single, order=order, form=form, chunk_size=16)
        assert_close(y, expected, 1e-4, form)


@pytest.mark.parametrize("name", ["delta-decay", "delta-2-decay"])
def test_long_sequences_in_float32(name):
    """4000 tokens: output and gradients, that of the decay included, which is a sum over all later tokens."""
    op = BY_NAME[name]
    batch = op.draw(Sizes(B=1, T=4000, G=1, R=1, K=6, V=5))
    batch.tokens["log_decay"] *= 0.1
    exact = batch.leaves()
    y, _ = op.function(**exact.all(), **op.options)
    slopes = gradients(projections([y]), exact.all())
    single = batch.to(torch.float32).leaves()
    got, _ = op.function(**single.all(), **op.options)
    assert_close(got, y, 1e-5)
    for key, slope in gradients(projections([got]), single.all()).items():
        assert_close(slope, slopes[key], 1e-4, key)


def test_bad_calls():
    x = draw(5, dtype=torch.float32)
    _, second = ops.delta_rule(**x, order=2)
    _, power = ops.power_attention(x["q"], x["k"], x["v"])
    for changed, error, match in (
        ({"beta": x["beta"][..., 0]}, ValueError, r"beta must have 3 dimensions \(batch, time, heads\)"),
        ({"beta": x["beta"][:, :4]}, ValueError, r"beta must match q \(2, 5, 2, 5\) in batch and time and have 2 heads"),
        ({"beta": 0.5}, TypeError, "beta must be a tensor, got float"),
        ({"log_decay": -x["log_decay"]}, ValueError, "log_decay must be <= 0 everywhere"),
        ({"order": 0}, ValueError, "order must be at least 1, got 0"),
        ({"chunk_size": 0}, ValueError, "chunk_size must be at least 1, got 0"),
        ({"form": "wy"}, ValueError, "form must be one of"),
        ({"scale": math.nan}, ValueError, "scale must be a finite number"),
        ({"state": second}, ValueError, r"state must be \(2, 5, 3\) .* got \(2, 15, 3\)"),
        ({"state": power}, TypeError, "state must be a DeltaState or None, got PowerState"),
    ):
        with pytest.raises(error, match=match) as caught:
            ops.delta_rule(**{**x, **changed})
        assert "\n" not in str(caught.value)
