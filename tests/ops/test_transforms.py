"""What PyTorch can do to a function: forward-mode and second derivatives, torch.func. Traces are refused."""

import inspect

import pytest
import torch
from torch.autograd import forward_ad

import maclaurin
from maclaurin import ops
from tests.ops.helpers import ALL, FORMS, Batch, Sizes, distance, every

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.jit.trace itself is
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


def right(got, expected):
    assert got is not None, "the derivative was dropped"
    assert distance(got, expected) < 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@every(ALL)
def test_forward_mode_is_right(op, dtype):
    batch = op.draw(Sizes(B=1, T=8, G=1)).to(dtype)
    directions = directions_of(batch)
    expected = derivative(op, batch, directions)
    for form in FORMS:
        for backend in backends_of(op):
            options = {} if backend is None else {"backend": backend}
            with forward_ad.dual_level():
                dual = {name: forward_ad.make_dual(x, directions[name]) for name, x in batch.tokens.items()}
                y, _ = op(Batch(dual, batch.parameters), form=form, **options)
                right(forward_ad.unpack_dual(y).tangent, expected)


@pytest.mark.parametrize("form", ["auto", "chunked"])
@every(ALL)
def test_torch_func_is_right(op, form):
    """By every tensor alone: under vmap all others are those of all examples."""
    batch = op.draw(Sizes(B=1, T=5, G=1)).to(torch.float64)
    for name, value in batch.all().items():
        x = -value.abs() if name == "log_decay" else value.abs()  # as decays, rates and time steps must be

        def output(x, name=name):
            tokens, parameters = (
                {**group, name: x} if name in group else group for group in (batch.tokens, batch.parameters)
            )
            return op(Batch(tokens, parameters), form=form)[0]

        leaf = x.clone().requires_grad_()
        gradient = torch.autograd.grad(output(leaf).square().sum(), leaf)[0]
        right(torch.func.grad(lambda x: output(x).square().sum())(x), gradient)
        right(torch.func.vmap(output)(torch.stack([x / 2, x]))[1], output(x))
        y, pull = torch.func.vjp(output, x)
        right(pull(2 * y)[0], gradient)
        along = torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x)
        along_y = torch.func.jvp(output, (x,), (along,))[1]
        right((2 * y * along_y).sum(), (gradient * along).sum())
    right(torch.func.jacrev(output)(x), torch.func.jacfwd(output)(x))


@every(ALL)
def test_second_derivatives_are_right(op):
    batch = op.draw(Sizes(B=1, T=5, G=1)).to(torch.float64)
    first = next(iter(batch.tokens))

    def gradient(x, **options):
        y, _ = op(Batch({**batch.tokens, first: x}, batch.parameters), **options)
        return torch.autograd.grad(y.square().sum(), x, create_graph=True)[0]

    exact, h = batch.tokens[first], 1e-6
    along = torch.linspace(-1, 1, exact.numel(), dtype=exact.dtype).view_as(exact)
    ahead, behind = (gradient((exact + step * along).requires_grad_()) for step in (h, -h))
    for form in FORMS:
        x = exact.clone().requires_grad_()
        right(torch.autograd.grad(gradient(x, form=form), x, along)[0], (ahead - behind) / (2 * h))


@pytest.mark.parametrize("op", [ops.power_attention, ops.delta_rule])
def test_a_second_derivative_is_not_dropped_where_the_gradient_of_the_output_is_a_constant(op):
    x, k, v = torch.randn(3, 1, 9, 1, 4, dtype=torch.float64).unbind()
    more = (torch.full((1, 9, 1), 0.5, dtype=torch.float64),) if op is ops.delta_rule else ()

    def total(k, form):
        return op(x, k / 4, v, *more, form=form, chunk_size=4)[0].sum() + k.pow(3).sum()  # a graph that goes on past the op

    found = []
    for form in ("chunked", "recurrent"):
        leaf = k.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(total(leaf, form), leaf, create_graph=True)
        found.append(torch.autograd.grad(gradient, leaf, torch.ones_like(leaf))[0])
    right(found[0], found[1])


def test_a_native_operator_refuses_second_derivatives():
    x = torch.randn(1, 5, 1, 4, requires_grad=True)
    y, _ = ops.power_attention(x, x, x, backend="native")
    gradient = torch.autograd.grad(y.square().sum(), x, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="the native backend has no second derivatives: use backend='torch' for them"):
        torch.autograd.grad(gradient.sum(), x)


def test_vmap_refuses_padding_that_differs_between_its_examples():
    x, mask = torch.randn(2, 1, 4, 2, 3), torch.tensor([[[1, 1, 1, 1]], [[1, 1, 0, 0]]])
    attend = torch.func.vmap(lambda x, mask: ops.power_attention(x, x, x, attention_mask=mask)[0])
    with pytest.raises(ValueError, match=r"attention_mask must be 1 everywhere where it differs .* leave it out"):
        attend(x, mask)
    shared = torch.func.vmap(lambda x: ops.power_attention(x, x, x, attention_mask=mask[1])[0])(x)
    assert distance(shared[0], ops.power_attention(x[0], x[0], x[0], attention_mask=mask[1])[0]) < 1e-5
    assert distance(attend(x, torch.ones_like(mask))[1], ops.power_attention(x[1], x[1], x[1])[0]) < 1e-5


def test_vmap_looks_at_the_decays_of_every_example():
    x, log_decay = torch.randn(2, 1, 4, 2, 3), torch.zeros(2, 1, 4, 2)
    log_decay[1, 0, 2, 1] = 0.5
    with pytest.raises(ValueError, match=r"log_decay must be <= 0 everywhere, got a largest value of 0\.5"):
        torch.func.vmap(lambda x, a: ops.power_attention(x, x, x, a)[0])(x, log_decay)


def test_vmap_keeps_a_nan_from_the_tokens_before_it():
    q, k, v = torch.randn(3, 2, 1, 6, 1, 4).unbind()
    k[1, 0, 3] = float("nan")
    y = torch.func.vmap(lambda q, k, v: ops.power_attention(q, k, v, form="chunked")[0])(q, k, v)
    assert y[0].isfinite().all() and y[1, 0, :3].isfinite().all() and y[1, 0, 3:].isnan().all()


def test_what_is_remembered_outlives_a_transform():
    """Constants made inside of torch.func would belong to it."""
    x = torch.randn(1, 7, 1, 9)  # a size that no other test has
    torch.func.grad(lambda x: ops.power_attention(x, x, x, form="chunked", chunk_size=3)[0].sum())(x)
    y, _ = ops.power_attention(x.double(), x.double(), x.double(), form="chunked", chunk_size=3, backend="torch")
    assert type(y) is torch.Tensor and not torch._C._functorch.is_functorch_wrapped_tensor(y)


def test_a_native_operator_refuses_tangents():
    q = torch.randn(1, 5, 1, 4)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, q)
        with pytest.raises(NotImplementedError, match="no forward-mode derivatives: use backend='torch'"):
            torch.ops.maclaurin.quadratic(dual, q, q, None, 1.0, False, True, 0)
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
