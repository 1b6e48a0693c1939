"""Bad input is refused in one sentence that names the argument and what it must be."""

import math

import pytest
import torch

from maclaurin import ops

ATTENTION = pytest.mark.parametrize(
    "attention", [ops.power_attention, ops.linear_attention, ops.softmax_attention], ids=["power", "linear", "softmax"]
)


def qkv(B=2, T=5, H=4, G=2, K=3, V=6):
    return {"q": torch.randn(B, T, H, K), "k": torch.randn(B, T, G, K), "v": torch.randn(B, T, G, V)}


def refused(function, error, match, **arguments):
    with pytest.raises(error, match=match) as caught:
        function(**arguments)
    assert "\n" not in str(caught.value)


SHAPES = [
    ({"q": torch.randn(5, 4, 3)}, ValueError, "q must have 4 dimensions"),
    ({"k": torch.randn(2, 5, 2, 3, 1)}, ValueError, "k must have 4 dimensions"),
    ({"v": torch.randn(2, 5)}, ValueError, "v must have 4 dimensions"),
    ({"q": [[1.0]]}, TypeError, "q must be a tensor, got list"),
    ({"k": None}, TypeError, "k must be a tensor, got NoneType"),
    ({"q": torch.ones(2, 5, 4, 3, dtype=torch.long)}, TypeError, "q must be a floating point tensor, got torch.int64"),
    ({"v": torch.ones(2, 5, 2, 6, dtype=torch.bool)}, TypeError, "v must be a floating point tensor, got torch.bool"),
    ({"k": torch.randn(2, 4, 2, 3)}, ValueError, "k must match q .* in batch, time and channels"),
    ({"k": torch.randn(2, 5, 2, 4)}, ValueError, "k must match q .* in batch, time and channels"),
    ({"v": torch.randn(2, 5, 1, 6)}, ValueError, "v must match k .* in batch, time and heads"),
    ({"v": torch.randn(3, 5, 2, 6)}, ValueError, "v must match k .* in batch, time and heads"),
    ({"q": torch.randn(2, 5, 3, 3)}, ValueError, "heads of k and v must divide the 3 heads of q, got 2"),
    ({"q": torch.randn(2, 5, 4, 3, device="meta")}, ValueError, "k must be on the device of q"),
    ({x: torch.randn(2, 0, 2, 3) for x in "qkv"}, ValueError, "q must hold at least one token"),
]


@pytest.mark.parametrize(("changed", "error", "match"), SHAPES, ids=[match[:32] for _, _, match in SHAPES])
@ATTENTION
def test_shapes_and_types_are_checked(attention, changed, error, match):
    refused(attention, error, match, **{**qkv(), **changed})


DECAYS = [
    (torch.zeros(2, 5), "log_decay must have shape"),
    (torch.zeros(2, 5, 3), "log_decay must match q .* have 2 or 4 heads"),
    (torch.zeros(2, 4, 2), "log_decay must match q .* in batch and time"),
    (torch.full((2, 5, 2), 0.1), "log_decay must be <= 0 everywhere, got a largest value of 0.1"),
    (torch.zeros(2, 5, 2, 4), r"log_decay must have (shape \(batch, time, heads\)|the 3 channels of k)"),
]


@pytest.mark.parametrize(("log_decay", "match"), DECAYS)
@ATTENTION
def test_decays_are_checked(attention, log_decay, match):
    refused(attention, ValueError, match, **qkv(), log_decay=log_decay)


def test_a_single_growing_decay_is_found():
    decay = torch.zeros(2, 5, 2, 3)
    decay[1, 4, 1, 2] = 1e-6
    refused(ops.linear_attention, ValueError, "log_decay must be <= 0", **qkv(), log_decay=decay)


RAGGED = [
    ({"attention_mask": torch.ones(2, 4)}, r"attention_mask must be a tensor of shape \(2, 5\)"),
    ({"attention_mask": torch.ones(2, 5, 1)}, r"attention_mask must be a tensor of shape \(2, 5\)"),
    ({"attention_mask": [[1] * 5] * 2}, "attention_mask must be a tensor .* got list"),
    ({"attention_mask": torch.full((2, 5), math.nan)}, "attention_mask must hold only 1 .* and 0 .* or NaN"),
    ({"attention_mask": torch.full((2, 5), -1e9)}, "attention_mask must hold only 1"),
    ({"attention_mask": torch.full((2, 5), 0.5)}, "attention_mask must hold only 1"),
    ({"lengths": torch.tensor([5])}, "lengths must be 2 whole numbers"),
    ({"lengths": torch.tensor([1.0, 2.0])}, "lengths must be 2 whole numbers"),
    ({"lengths": torch.tensor([5, 6])}, "lengths must lie between 0 and the 5 tokens"),
    ({"lengths": torch.tensor([-1, 5])}, "lengths must lie between 0 and the 5 tokens"),
    ({"cu_seqlens": [0, 5]}, "cu_seqlens describes documents packed in one sequence, but the batch has 2"),
    (
        {"lengths": torch.tensor([5, 5]), "attention_mask": torch.ones(2, 5)},
        "at most one of .* got attention_mask and lengths",
    ),
    (
        {"cu_seqlens": [0, 5], "lengths": torch.tensor([5, 5])},
        "at most one of .* got cu_seqlens and lengths",
    ),
]
PACKED = [
    ([0, 3, 2, 5], "cu_seqlens must rise from 0 to the 5 tokens"),
    ([0, 3], "cu_seqlens must rise from 0 to the 5 tokens"),
    ([0, 3, 6], "cu_seqlens must rise from 0 to the 5 tokens"),
    ([1, 5], "cu_seqlens must rise from 0 to the 5 tokens"),
    ([-1, 5], "cu_seqlens must rise from 0 to the 5 tokens"),
    ([5], "cu_seqlens must be a list of at least 2 whole numbers"),
    ([0.0, 5.0], "cu_seqlens must be a list of at least 2 whole numbers"),
    (torch.tensor([[0, 5]]), "cu_seqlens must be a list of at least 2 whole numbers"),
]


def conv(x=None, **ragged):
    return ops.short_conv(torch.randn(2, 5, 3) if x is None else x, torch.randn(3, 4), **ragged)


@pytest.mark.parametrize(("ragged", "match"), RAGGED)
@ATTENTION
def test_ragged_batches_are_checked(attention, ragged, match):
    refused(attention, ValueError, match, **qkv(), **ragged)
    refused(conv, ValueError, match, **ragged)


@pytest.mark.parametrize(("bounds", "match"), PACKED)
@ATTENTION
def test_packed_documents_are_checked(attention, bounds, match):
    refused(attention, ValueError, match, **qkv(B=1), cu_seqlens=bounds)
    refused(conv, ValueError, match, x=torch.randn(1, 5, 3), cu_seqlens=bounds)


@pytest.mark.parametrize("form", ["chunk", "", None, 3])
@ATTENTION
def test_forms_and_backends_are_checked(attention, form):
    refused(attention, ValueError, "form must be one of 'auto', 'parallel', 'chunked', 'recurrent'", **qkv(), form=form)
    refused(attention, ValueError, "backend must be one of 'auto', 'torch'", **qkv(), backend="cuda")
    refused(conv, ValueError, "form must be one of", form=form)
    refused(conv, ValueError, "backend must be one of", backend="cuda")


@ATTENTION
def test_sizes_of_chunks_are_checked(attention):
    refused(attention, ValueError, "chunk_size must be at least 1, got 0", **qkv(), chunk_size=0)


@pytest.mark.parametrize("size", [2**63, 2**64, 10**400])
@ATTENTION
def test_sizes_beyond_64_bits_are_refused(attention, size):
    """As a pointer-sized number they would wrap around: a chunk of -2⁶³ tokens never ends."""
    refused(attention, ValueError, r"chunk_size must be at most 2\*\*62", **qkv(), chunk_size=size)


@pytest.mark.parametrize("scale", [1e38, -1e19, 10**400, float("inf"), float("nan"), "1"])
@ATTENTION
def test_scales_are_checked(attention, scale):
    refused(attention, ValueError, "scale must be", **qkv(), scale=scale)


def test_folding_is_checked():
    refused(ops.power_attention, ValueError, "fold_every must be at least 1, got 0", **qkv(), fold_every=0)
    refused(ops.power_attention, ValueError, "fold_at must be at least 1, got -3", **qkv(), fold_at=-3)


@pytest.mark.parametrize("order", [0, -2, 2.5, True, (), (0,), (2, 1), (1, 1, 2), (-1, 1), 10**9, (0, 10**9), range(10**9)])
def test_orders_are_checked(order):
    refused(ops.power_attention, ValueError, "order must be a whole number >= 1, or an increasing", **qkv(), order=order)


@pytest.mark.parametrize("shape", [(), (2,), (4, 2), (2, 3), (1, 3), (4, 3, 1)])
def test_weights_of_orders_are_checked(shape):
    match = r"order_weights must have shape \(3,\) or \(4, 3\)"
    refused(ops.power_attention, ValueError, match, **qkv(), order=(0, 1, 2), order_weights=torch.ones(shape))


def test_softmax_options_are_checked():
    attention = ops.softmax_attention
    refused(attention, ValueError, "window must be at least 1, got 0", **qkv(), window=0)
    refused(attention, ValueError, "divisor must be one of 'sum', 'floored-sum', 'count', 'none'", **qkv(), divisor="mean")
    refused(attention, ValueError, "numerator must be one of 'exp', 'relu', got 'elu'", **qkv(), numerator="elu")


@ATTENTION
def test_states_are_checked(attention):
    _, state = attention(**qkv())
    other = ops.ConvState(torch.zeros(2, 3, 4))
    refused(attention, TypeError, "state must be a .*State or None, got ConvState", **qkv(), state=other)
    refused(attention, TypeError, "state must be a .*State or None, got dict", **qkv(), state={})
    refused(attention, ValueError, "state must hold 3 sequences, got 2", **qkv(B=3), state=state)
    match = "state must have been made with the same heads and channels: it holds"
    refused(attention, ValueError, match, **qkv(H=3, G=3), state=state)
    refused(attention, ValueError, match, **qkv(K=4), state=state)
    refused(attention, ValueError, match, **qkv(V=4), state=state)
    mask = torch.tensor([[1] * 5, [0] * 5, [1] * 5])
    refused(attention, ValueError, "state must hold 3", **qkv(B=3), state=state, attention_mask=mask)
    refused(attention, ValueError, "state must hold 1", **qkv(B=1), state=state, cu_seqlens=[0, 5])


@pytest.mark.parametrize("decay", [None, torch.zeros(2, 5, 2), torch.zeros(2, 5, 2, 3)], ids=["none", "head", "channel"])
def test_states_of_first_order_are_of_one_class_whatever_the_decay(decay):
    _, state = ops.linear_attention(**qkv(), log_decay=decay)
    assert type(state) is ops.LinearState
    _, squared = ops.power_attention(**qkv(), fold_at=9)
    match = "state must be a LinearState or None, got PowerState"
    refused(ops.linear_attention, TypeError, match, **qkv(), log_decay=decay, state=squared)
    match = "state must have been made with the same heads and channels: it holds"
    refused(ops.linear_attention, ValueError, match, **qkv(V=4), log_decay=decay, state=state)
    refused(ops.linear_attention, ValueError, match, **qkv(), log_decay=decay, state=state, normalize=False)


@pytest.mark.parametrize("options", [{"order": 3}, {"order": (0, 1, 2)}, {"normalize": False}])
def test_a_state_of_another_order_is_refused(options):
    _, state = ops.power_attention(**qkv(), fold_at=2)
    match = "state must have been made with the same order and normalize"
    refused(ops.power_attention, ValueError, match, **qkv(), state=state, **options)


@pytest.mark.parametrize("attention", [ops.power_attention, ops.softmax_attention], ids=["power", "softmax"])
def test_decays_cannot_be_left_out_halfway(attention):
    """Whether its tokens are folded or not."""
    for T in (4, 5):
        _, state = attention(**qkv(T=T), log_decay=-torch.rand(2, T, 2))
        refused(attention, ValueError, "log_decay must be given, because the state comes from", **qkv(), state=state)


def test_convolutions_are_checked():
    x, weight = torch.randn(2, 5, 3), torch.randn(3, 4)
    refused(ops.short_conv, ValueError, "x must have 3 dimensions", x=x[0], weight=weight)
    refused(ops.short_conv, TypeError, "x must be a floating point tensor", x=x.long(), weight=weight)
    refused(ops.short_conv, ValueError, "x must hold at least one token", x=x[:, :0], weight=weight)
    refused(ops.short_conv, ValueError, r"weight must have shape \(3, width\)", x=x, weight=weight.T)
    refused(ops.short_conv, ValueError, r"weight must have shape \(3, width\)", x=x, weight=weight[:, :0])
    refused(ops.short_conv, ValueError, r"bias must have shape \(3,\)", x=x, weight=weight, bias=torch.ones(4))
    state = ops.ConvState(torch.zeros(2, 2, 3))
    refused(ops.short_conv, ValueError, "state must hold the last 3 inputs of 3 channels", x=x, weight=weight, state=state)
    state = ops.ConvState(torch.zeros(1, 3, 3))
    refused(ops.short_conv, ValueError, "state must hold 2", x=x, weight=weight, state=state)
    _, tokens = ops.softmax_attention(**qkv())
    refused(ops.short_conv, TypeError, "state must be a ConvState or None", x=x, weight=weight, state=tokens)


OPS = {
    ops.linear_attention: qkv(),
    ops.power_attention: qkv(),
    ops.softmax_attention: qkv(),
    ops.inline_attention: qkv(),
    ops.delta_rule: qkv() | {"beta": torch.ones(2, 5, 2)},
    ops.linear_scan: {"x": torch.randn(2, 5, 3), "log_decay": torch.zeros(2, 5, 3)},
    ops.short_conv: {"x": torch.randn(2, 5, 3), "weight": torch.randn(3, 2)},
}


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.__name__)
def test_an_unknown_keyword_is_refused_in_the_name_of_the_op(op):
    assert op(**OPS[op], form="auto")
    refused(op, TypeError, rf"^{op.__name__}\(\) got an unexpected keyword argument 'fom'", **OPS[op], fom="auto")
