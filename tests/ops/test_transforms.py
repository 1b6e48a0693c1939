"""What PyTorch can do to a function: forward-mode and second derivatives, torch.func, traces. Right numbers or a refusal."""

import inspect

import pytest
import torch
from torch.autograd import forward_ad

import maclaurin
from maclaurin import ops
from tests.ops.helpers import ALL, FORMS, Batch, Sizes, distance, every

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.jit.trace itself is
REFUSALS = (NotImplementedError, RuntimeError)
BACKENDS = ("auto", "torch")


def derivative(op, batch, directions, h=1e-6):
    """Along the directions, by central differences in float64."""

    def moved(step):
        tokens = {name: x.double() + step * h * directions[name].double() for name, x in batch.tokens.items()}
        return op(Batch(tokens, {name: x.double() for name, x in batch.parameters.items()}), form="parallel")[0]

    return (moved(1) - moved(-1)) / (2 * h)


def directions_of(batch):
    """Towards zero: a decay stays one."""
    return {name: -x for name, x in batch.tokens.items()}


def backends_of(op):
    return BACKENDS if "backend" in inspect.signature(op.function).parameters else (None,)


def right_or_refused(found, expected):
    try:
        got = found()
    except REFUSALS as refusal:
        if "data pointer" in str(refusal):  # a kernel must not meet what is no plain tensor
            raise
        return
    assert got is not None, "the derivative was dropped"
    assert distance(got, expected) < 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@every(ALL)
def test_forward_mode_is_right_or_refused(op, dtype):
    batch = op.draw(Sizes(B=1, T=8, G=1)).to(dtype)
    directions = directions_of(batch)
    expected = derivative(op, batch, directions)
    for form in FORMS:
        for backend in backends_of(op):
            options = {} if backend is None else {"backend": backend}

            def tangent(form=form, options=options):
                with forward_ad.dual_level():
                    dual = {name: forward_ad.make_dual(x, directions[name]) for name, x in batch.tokens.items()}
                    y, _ = op(Batch(dual, batch.parameters), form=form, **options)
                    return forward_ad.unpack_dual(y).tangent

            right_or_refused(tangent, expected)


@every(ALL)
def test_torch_func_is_right_or_refused(op):
    batch = op.draw(Sizes(B=1, T=8, G=1)).to(torch.float32)
    first = next(iter(batch.tokens))
    leaf = batch.tokens[first].clone().requires_grad_()

    def output(x):
        return op(Batch({**batch.tokens, first: x}, batch.parameters))[0]

    gradient = torch.autograd.grad(output(leaf).square().sum(), leaf)[0]
    x = leaf.detach()
    right_or_refused(lambda: torch.func.grad(lambda x: output(x).square().sum())(x), gradient)
    right_or_refused(lambda: torch.func.vmap(output)(torch.stack([x, x]))[1], output(x))
    along = {name: torch.zeros_like(value) for name, value in batch.tokens.items()}
    along[first] = torch.linspace(-1, 1, x.numel()).view_as(x)
    right_or_refused(lambda: torch.func.jvp(output, (x,), (along[first],))[1], derivative(op, batch, along))


@pytest.mark.parametrize("backend", ["auto", "torch"])
@every(ALL)
def test_second_derivatives_are_right_or_refused(op, backend):
    if backend not in backends_of(op):
        return
    batch = op.draw(Sizes(B=1, T=5, G=1)).to(torch.float32)
    first = next(iter(batch.tokens))

    def gradient(x, dtype, **options):
        tokens = {name: value.to(dtype) for name, value in {**batch.tokens, first: x}.items()}
        y, _ = op(Batch(tokens, batch.to(dtype).parameters), **options)
        return torch.autograd.grad(y.square().sum(), x, create_graph=True)[0]

    def second():
        x = batch.tokens[first].clone().requires_grad_()
        return torch.autograd.grad(gradient(x, torch.float32, backend=backend, form="parallel").sum(), x)[0]

    exact, h = batch.tokens[first].double(), 1e-6
    along = torch.zeros_like(exact)
    for index in range(exact.numel()):
        step = torch.zeros_like(exact)
        step.view(-1)[index] = h
        ahead, behind = (gradient((exact + s * step).requires_grad_(), torch.float64).sum() for s in (1, -1))
        along.view(-1)[index] = ((ahead - behind) / (2 * h)).detach()
    right_or_refused(second, along)


def test_a_native_operator_refuses_tangents():
    q = torch.randn(1, 5, 1, 4)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, q)
        with pytest.raises(NotImplementedError, match="no forward-mode derivatives: use backend='torch'"):
            torch.ops.maclaurin.quadratic(dual, q, q, None, 1.0, False, True)
        with pytest.raises(ValueError, match="backend='native' needs a call without forward-mode"):
            ops.power_attention(dual, q, q, backend="native")


def test_a_decoding_step_keeps_its_tangent():
    q, k, v = (torch.randn(1, 6, 1, 4) for _ in range(3))
    _, state = ops.power_attention(q, k, v, fold_at=100)
    now = [x[:, :1] for x in (q, k, v)]
    with forward_ad.dual_level():
        y, _ = ops.power_attention(forward_ad.make_dual(now[0], now[0]), *now[1:], state=state, fold_at=100)
        tangent = forward_ad.unpack_dual(y).tangent
    # all weights are of second order in q: its length does not matter
    assert tangent is not None
    assert tangent.abs().max() < 1e-5


@every(ALL)
def test_a_trace_is_refused(op):
    batch = op.draw(Sizes(B=1, T=4, G=1)).to(torch.float32)
    first = next(iter(batch.tokens))
    with pytest.raises(RuntimeError, match=r"torch\.jit\.trace cannot record .* use torch\.export or torch\.compile"):
        torch.jit.trace(
            lambda x: op(Batch({**batch.tokens, first: x}, batch.parameters))[0], batch.tokens[first], check_trace=False
        )


def test_a_trace_of_a_mixer_is_refused():
    mixer = maclaurin.build_mixer("2mamba", 16, 2)
    with pytest.raises(RuntimeError, match=r"torch\.jit\.trace cannot record"):
        torch.jit.trace(mixer, torch.randn(1, 4, 16), check_trace=False, strict=False)


def test_a_symbolic_trace_is_refused():
    mixer = maclaurin.build_mixer("2mamba", 16, 2)
    with pytest.raises(TypeError, match="x must be a tensor, got Proxy"):
        torch.fx.symbolic_trace(mixer, concrete_args={"state": None, "attention_mask": None, "cu_seqlens": None})
