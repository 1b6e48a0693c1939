"""What is particular to the scans: linear memory, second derivatives, hostile decays, and what they refuse."""

import math

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from maclaurin import ops
from maclaurin.ops import reference
from tests.ops.helpers import FORMS, Sizes, assert_close, selective_inputs


def draw(T, C=6, dtype=torch.float64):
    return torch.randn(2, T, C, dtype=dtype), -torch.randn(2, T, C, dtype=dtype).abs()


def loop(x, log_decay):
    h, outputs = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        h = log_decay[:, t].exp() * h + x[:, t]
        outputs.append(h)
    return torch.stack(outputs, dim=1)


def test_the_reference_is_the_loop():
    x, a = draw(12)
    assert_close(reference.linear_scan(x, a), loop(x, a), 1e-14)


@pytest.mark.parametrize("T", [1, 2, 3, 7, 8, 511, 512, 513, 1100])
def test_every_length_in_default_chunks(T):
    x, a = draw(T)
    for form in ("parallel", "chunked"):
        assert_close(ops.linear_scan(x, a, form=form)[0], loop(x, a), 1e-12, form)


def test_channels_may_have_any_shape():
    x, a = draw(9, 24)
    expected, state = ops.linear_scan(x, a)
    y, shaped = ops.linear_scan(x.view(2, 9, 2, 3, 4), a.view(2, 9, 2, 3, 4))
    assert torch.equal(y.flatten(2), expected) and torch.equal(shaped.recurrent.flatten(1), state.recurrent)
    again, _ = ops.linear_scan(x.view(2, 9, 2, 3, 4), a.view(2, 9, 2, 3, 4), state=shaped, form="recurrent")
    assert_close(again.flatten(2), loop(torch.cat([x, x], 1), torch.cat([a, a], 1))[:, 9:], 1e-12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("backend", ["torch", "auto"])
@pytest.mark.parametrize("value", [0.0, -1e-7, -80.0, -1e4, -math.inf])
def test_any_decay_beside_any_other(form, backend, value):
    """Nothing overflows, nothing is lost: to 1e-6 of the float64 loop, and all gradients finite."""
    x, a = draw(70, dtype=torch.float32)
    a[:, ::3] = value
    leaves = [x.requires_grad_(), a.requires_grad_()]
    y, _ = ops.linear_scan(*leaves, form=form, backend=backend, chunk_size=16)
    assert_close(y.detach(), loop(x.double(), a.double()).detach(), 1e-6)
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(y.square().sum(), leaves))


@pytest.mark.parametrize("memory", [10.0, 1e3, 1e4])
@pytest.mark.parametrize("backend", ["torch", "auto"])
def test_a_long_memory_is_as_exact_as_its_decay(memory, backend):
    """A float32 number near 1 is known to 6e-8; over n tokens that makes n times as much, and no more."""
    x, a = torch.randn(1, 32768, 2), torch.full((1, 32768, 2), -1 / memory)
    y, _ = ops.linear_scan(x, a, backend=backend)
    exact, _ = ops.linear_scan(x.double(), a.double())
    assert_close(y, exact, 6e-8 * (memory + 10))


@pytest.mark.parametrize("form", FORMS)
def test_nan_is_never_hidden(form):
    x, a = draw(12)
    a[:, 5] = torch.nan
    y, _ = ops.linear_scan(x, a, form=form, chunk_size=4)
    assert y[:, :5].isfinite().all() and y[:, 5:].isnan().all()


def test_second_derivatives():
    x, a = draw(7, 2)

    def function(x, a, start):
        return ops.linear_scan(x, a, state=ops.ScanState(start), chunk_size=3)[0]

    inputs = [tensor.requires_grad_() for tensor in (x, a, torch.randn(2, 2, dtype=torch.float64))]
    assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("backend", ["torch", "auto"])
def test_what_is_kept_for_the_backward_pass_is_linear_in_time(backend):
    """No more than the inputs, the output, and a memory a chunk: never all T·C·N numbers of the memory."""
    C, N = 32, 16

    def kept(T):
        inputs = selective_inputs(Sizes(B=1, T=T, G=1, K=C, V=N)).to(torch.float32).leaves().all()
        sizes = {}

        def pack(tensor):
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // 4
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            y, _ = ops.selective_scan(**inputs, form="chunked", backend=backend)
        assert y.requires_grad
        return sum(sizes.values())

    few, many = kept(512), kept(2048)
    assert many <= 4.1 * few
    assert many <= 2048 * 4 * (C + N)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (lambda x, a: (x[0], a), {}, r"x must have shape \(batch, time >= 1, channels, ...\), got \(5, 6\)"),
        (lambda x, a: (x, a[..., :3]), {}, r"log_decay must have the shape of x \(2, 5, 6\), got \(2, 5, 3\)"),
        (lambda x, a: (x, -a), {}, "log_decay must be <= 0 everywhere"),
        (lambda x, a: (x, a), {"state": ops.ScanState(torch.zeros(2, 5))}, r"state must be \(6,\) per sequence"),
        (lambda x, a: (x, a), {"chunk_size": 0}, "chunk_size must be at least 1"),
        (lambda x, a: (x, a), {"form": "fast"}, "form must be one of"),
    ],
)
def test_bad_calls_of_the_recurrence(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        ops.linear_scan(*arguments(*draw(5)), **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dt": torch.rand(2, 5, 4)}, r"dt must have the shape of x \(2, 5, 6\)"),
        ({"dt": -torch.rand(2, 5, 6)}, "dt must be >= 0 everywhere"),
        ({"rate": -torch.rand(6, 3)}, "rate must be >= 0 everywhere"),
        ({"rate": torch.rand(5, 3)}, r"rate must have shape \(6, state >= 1\)"),
        ({"b": torch.rand(2, 5, 4)}, r"b must have shape \(2, 5, 3\)"),
        ({"state": ops.ScanState(torch.zeros(2, 3, 6))}, r"state must be \(6, 3\) per sequence"),
    ],
)
def test_bad_calls_of_the_selective_scan(change, message):
    good = {"x": torch.rand(2, 5, 6), "dt": torch.rand(2, 5, 6), "rate": torch.rand(6, 3)}
    good |= {"b": torch.rand(2, 5, 3), "c": torch.rand(2, 5, 3)}
    with pytest.raises(ValueError, match=message):
        ops.selective_scan(**{**good, **change})
