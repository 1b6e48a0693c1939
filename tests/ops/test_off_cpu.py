"""The torch backend where a launch costs more than a chunk: the same numbers, few launches, and no look at the numbers."""

import re

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from maclaurin import available_mixers, build_mixer
from maclaurin.ops import (
    delta_batched,
    delta_chunked,
    delta_rule,
    linear,
    linear_attention,
    linear_scan,
    power_attention,
    power_batched,
    power_chunked,
    selective_scan,
    softmax_attention,
)
from maclaurin.ops.chunks import Plan
from maclaurin.ops.features import Kernel
from tests.mixers.test_bidirectional import WITHOUT, every_bidirectional_mixer
from tests.ops.helpers import ALL, FORMS, Sizes, assert_close, every

LENGTH = 8192
# what launches nothing
VIEWS = frozenset(
    re.findall(
        r"\w+",
        """
        alias as_strided detach diagonal empty empty_like empty_strided expand lift_fresh narrow new_empty
        permute promote_types reshape select slice split split_with_sizes squeeze t transpose unbind unflatten unsqueeze view
        _reshape_alias _unsafe_view
        """,
    )
)


class Launches(TorchDispatchMode):
    """How many operators ran that are more than a view. None of them may copy a number to the host."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        name = function.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "item", "nonzero"), f"{name} waits for the device"
        self.count += name not in VIEWS
        return function(*arguments, **(options or {}))


CALLS = {
    "second order": lambda q, k, v, a: power_attention(q, k, v, a, return_state=False),
    "second order with its state": lambda q, k, v, a: power_attention(q, k, v, a),
    "orders 0 to 2": lambda q, k, v, a: power_attention(q, k, v, a, order=(0, 1, 2)),
    "first order": lambda q, k, v, a: linear_attention(q, k, v, a),
    "first order by channel": lambda q, k, v, a: linear_attention(q, k, v, a[..., None].expand_as(k)),
    "softmax with decay": lambda q, k, v, a: softmax_attention(q, k, v, a),
    "delta rule": lambda q, k, v, a: delta_rule(q, k, v, a, a),
    "delta rule of second order": lambda q, k, v, a: delta_rule(q, k, v, a, a, order=2),
    "elementwise recurrence": lambda q, k, v, a: linear_scan(q, k),
    "selective scan": lambda q, k, v, a: selective_scan(q.flatten(2), k.flatten(2), v[0, :16].flatten(1).T, a, a),
    "a window with decay": lambda q, k, v, a: softmax_attention(q, k, v, a, window=256),
    "orders 0 to 2 of whole sequences with decay": lambda q, k, v, a: power_attention(
        q, k, v, a, order=(0, 1, 2), causal=False
    ),
    "second order of whole sequences": lambda q, k, v, a: power_attention(q, k, v, causal=False),
    "second order of whole sequences with decay": lambda q, k, v, a: power_attention(q, k, v, a, causal=False),
    "first order by channel of whole sequences": lambda q, k, v, a: linear_attention(
        q, k, v, a[..., None].expand_as(k), causal=False
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_few_launches_and_no_look_at_the_numbers(name):
    q, k, v = (torch.empty(1, LENGTH, 16, 64, device="meta", requires_grad=True) for _ in range(3))
    a = torch.empty(1, LENGTH, 16, device="meta", requires_grad=True)
    assert_few_launches(lambda: CALLS[name](q, k, v, a))


def assert_few_launches(call):
    with Launches() as forward:
        y, _ = call()
    with Launches() as backward:
        y.backward(torch.empty_like(y))
    assert forward.count <= 200, f"{forward.count} launches forward"
    assert backward.count <= 600, f"{backward.count} launches backward"


@pytest.mark.parametrize("name", available_mixers())
def test_every_mixer_has_few_launches_and_looks_at_no_number(name):
    mixer = build_mixer(name, d_model=1024, num_heads=16).to("meta")
    x = torch.empty(1, LENGTH, 1024, device="meta", requires_grad=True)
    assert_few_launches(lambda: mixer(x))


@every_bidirectional_mixer
def test_every_mixer_of_whole_sequences_has_few_launches_and_looks_at_no_number(name):
    mixer = build_mixer(name, d_model=1024, num_heads=16, causal=False, **WITHOUT.get(name, {})).to("meta")
    x = torch.empty(1, LENGTH, 1024, device="meta", requires_grad=True)
    assert_few_launches(lambda: mixer(x))


def heads(T=37, S=45, decay=True, orders=(2,), start=True):
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    kernel = Kernel.of(orders if len(orders) > 1 else orders[0])
    q, k, v = normal(3, 2, T, 4), normal(3, S, 4), torch.cat([normal(3, S, 3), torch.ones(3, S, 1).double()], -1)
    state = normal(3, kernel.feature_count(4), 4) if start else None
    weights = normal(3, len(orders)).abs() if len(orders) > 1 else None
    return kernel, [q, k, v, -normal(3, S).abs() if decay else None, state, weights]


@pytest.mark.parametrize("folded", [0, 40, 45])
@pytest.mark.parametrize("options", [{}, {"decay": False, "start": False}, {"orders": (0, 1, 2)}, {"orders": (3,)}], ids=str)
def test_all_chunks_at_once_are_one_after_the_other(folded, options):
    kernel, inputs = heads(**options)
    found = []
    for run in ("at once", "in turn"):
        leaves = [None if x is None else x.clone().requires_grad_() for x in inputs]
        guarded = kernel.even and leaves[5] is None
        if run == "at once":
            y, state = power_batched.chunked(leaves, Plan(kernel, 8, folded, guarded))
        else:
            y, state = power_chunked.chunked(leaves, Plan(kernel, 8, folded, guarded))
        loss = (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum() + (0 if state is None else (state**2).sum())
        gradients = torch.autograd.grad(loss, [x for x in leaves if x is not None], allow_unused=True)
        found.append([y, state, *gradients])
    for actual, expected in zip(*found, strict=True):
        assert (actual is None) == (expected is None)
        if expected is not None:
            assert_close(actual, expected, 1e-11)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("decay", [True, False])
@pytest.mark.parametrize("folded", [0, 37])
def test_the_delta_rule_at_once_is_the_one_in_turn(order, decay, folded, monkeypatch):
    """Outputs, state and all gradients, for chunks that do not divide the length."""
    monkeypatch.setattr(delta_batched, "CHUNK", 1)
    generator = torch.Generator().manual_seed(0)
    kernel = Kernel.of(order)
    shapes = [(3, 2, 37, 4), (3, 37, 4), (3, 37, 3), (3, 37), (3, 37), (3, kernel.feature_count(4), 3)]
    q, k, v, beta, a, start = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes)
    inputs = [q, k / k.norm(dim=-1, keepdim=True), v, beta.sigmoid(), -a.abs() if decay else None, start]
    found = []
    for run in (delta_batched.chunked, delta_chunked.chunked):
        leaves = [None if x is None else x.clone().requires_grad_() for x in inputs]
        y, state = run(leaves, Plan(kernel, 8, folded))
        loss = (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum() + (0 if state is None else (state**2).sum())
        found.append([y, state, *torch.autograd.grad(loss, [x for x in leaves if x is not None])])
    for actual, expected in zip(*found, strict=True):
        assert (actual is None) == (expected is None)
        if expected is not None:
            assert_close(actual, expected, 1e-10)


def test_all_chunks_of_a_decay_per_channel_are_one_after_the_other():
    _, (q, k, v, _, _, _) = heads(T=45)
    a = -torch.rand(3, 45, 4, dtype=torch.float64)
    state = torch.randn(3, 4, 4, dtype=torch.float64)
    y, end = linear._all_chunks(q, k, v, a, state, 8)
    z, expected = linear._per_channel(q, k, v, a, state, 8, True)
    assert_close(y, z, 1e-12)
    assert_close(end, expected, 1e-12)


@every(ALL)
def test_every_op_knows_its_shapes_on_the_meta_device(op):
    batch = op.draw(Sizes()).to(torch.float32)
    on_meta = batch.map(lambda x: x.to("meta"))
    for form in FORMS:
        y, state = op(batch, form=form)
        z, shapes = op(on_meta, form=form)
        assert z.is_meta and z.shape == y.shape and z.dtype == y.dtype
        assert {k: v.shape for k, v in shapes.tensors().items()} == {k: v.shape for k, v in state.tensors().items()}


@pytest.mark.parametrize("name", available_mixers())
def test_every_mixer_knows_its_shapes_on_the_meta_device(name):
    mixer = build_mixer(name, d_model=32, num_heads=2).to("meta")
    x = torch.empty(2, 9, 32, device="meta", requires_grad=True)
    y, state = mixer(x)
    y.sum().backward()
    assert y.is_meta and y.shape == x.shape and x.grad.shape == x.shape
    y, _ = mixer(x[:, :1], state)
    assert y.shape == (2, 1, 32)


@every_bidirectional_mixer
def test_every_mixer_of_whole_sequences_knows_its_shapes_on_the_meta_device(name):
    mixer = build_mixer(name, d_model=32, num_heads=2, causal=False, **WITHOUT.get(name, {})).to("meta")
    x = torch.empty(2, 9, 32, device="meta", requires_grad=True)
    y, _ = mixer(x)
    y.sum().backward()
    assert y.is_meta and y.shape == x.shape and x.grad.shape == x.shape


def test_groups_of_heads_are_computed_as_one(monkeypatch):
    """Seven heads in groups of at most three, beside all of them."""
    kernel, inputs = heads(orders=(0, 1, 2))
    inputs = [x.repeat(3, *(1,) * (x.dim() - 1))[:7] for x in inputs]
    plan = Plan(kernel, 8, 40, False)
    y, state = power_batched.chunked(inputs, plan)
    monkeypatch.setattr(power_batched, "EXPANSION_BYTES", 3 * kernel.feature_count(4) * 45 * 2 * 8)
    z, other = power_batched.chunked(inputs, plan)
    assert_close(z, y, 1e-12)
    assert_close(other, state, 1e-12)
