"""Products by oneDNN are those of torch: numbers, gradients of both orders, flops; and whoever looks on sees torch's own."""

import time

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from maclaurin.ops import products

ROWS, INPUTS, OUTPUTS = 130, 96, 144

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN")


@pytest.fixture(autouse=True)
def by_onednn(monkeypatch):
    monkeypatch.setattr(products, "mkl_falls_back", lambda: True)


def operands(dtype=torch.float32):
    torch.manual_seed(0)
    shapes = (2, ROWS // 2, INPUTS), (OUTPUTS, INPUTS), (OUTPUTS,)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


LAYOUTS = {
    "dense": lambda x: x,
    "rows apart": lambda x: torch.cat([x, x], dim=-1)[..., : x.shape[-1]],
    "transposed": lambda x: x.mT.contiguous().mT,
    "one row for all": lambda x: x[:, :1].expand(x.shape),
}


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_outputs_and_gradients_are_those_of_torch(layout, with_bias):
    x, weight, bias = operands()
    given = [LAYOUTS[layout](x.detach()).requires_grad_(), weight, *([bias] if with_bias else [])]
    dy = LAYOUTS[layout](torch.randn(*x.shape[:-1], OUTPUTS))
    exact = [t.detach().double().requires_grad_() for t in given]
    expected = F.linear(*exact)
    got = products.linear(*given)
    assert type(got.grad_fn).__name__ == "_ProductBackward"
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-4)
    found = torch.autograd.grad(got, given, dy)
    for gradient, of_torch in zip(found, torch.autograd.grad(expected, exact, dy.double()), strict=True):
        torch.testing.assert_close(gradient.double(), of_torch, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(("inputs", "outputs"), [(16, 144), (144, 16), (64, 64)])
def test_gradients_of_wide_and_of_high_weights(inputs, outputs):
    """The narrower factor is the one that is transposed, and the result turned over if need be: dense either way."""
    torch.manual_seed(0)
    x, weight = torch.randn(480, inputs), torch.randn(outputs, inputs, requires_grad=True)
    dy = torch.randn(480, outputs)
    (gradient,) = torch.autograd.grad(products.linear(x, weight), weight, dy)
    torch.testing.assert_close(gradient.double(), dy.double().T @ x.double(), rtol=1e-5, atol=1e-3)
    assert gradient.is_contiguous()


def test_gaps_between_rows_cost_no_more_than_a_copy():
    """oneDNN takes a thousand times as long for such weights; gradients of layers whose outputs are joined are such."""
    rows, columns = torch.randn(512, 512), torch.randn(512, 256)
    apart = [LAYOUTS["rows apart"](x) for x in (rows, columns)]

    def seconds(dy, x):
        begun = time.process_time()
        gradient = products._of_columns(products._by_onednn, dy, x)
        taken = time.process_time() - begun
        torch.testing.assert_close(gradient, dy.T @ x, rtol=1e-5, atol=1e-3)
        return taken

    dense = min(seconds(rows, columns) for _ in range(5))
    assert min(seconds(*apart) for _ in range(3)) < 50 * dense
    assert min(seconds(columns, apart[0]) for _ in range(3)) < 50 * dense


def test_second_derivatives_are_those_of_torch():
    def norm_of_gradients(linear):
        x, weight, bias = given = operands()
        loss = linear(x, weight, bias).square().sum()
        return torch.autograd.grad(sum(g.square().sum() for g in torch.autograd.grad(loss, given, create_graph=True)), given)

    for found, expected in zip(norm_of_gradients(products.linear), norm_of_gradients(F.linear), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * expected.abs().max().item())


def test_only_the_gradients_that_are_asked_for():
    x, weight, bias = operands()
    products.linear(x.detach(), weight, bias.detach()).sum().backward()
    assert weight.grad is not None and x.grad is None and bias.grad is None


def test_numbers_that_are_none_stay_where_they_are():
    x, weight, bias = (t.detach() for t in operands())
    x[0, 3, 5] = torch.nan
    x[1, 7, 2] = torch.inf
    got = products.linear(x, weight, bias)
    assert got[0, 3].isnan().all() and not got[1, 7].isfinite().any()
    kept = torch.ones(2, ROWS // 2, dtype=torch.bool)
    kept[0, 3] = kept[1, 7] = False
    assert got[kept].isfinite().all()


def test_flops_are_counted():
    def flops(linear):
        x, weight, bias = operands()
        with FlopCounterMode(display=False) as counter:
            linear(x, weight, bias).sum().backward()
        return counter.get_total_flops()

    assert flops(products.linear) == flops(F.linear) == 6 * ROWS * INPUTS * OUTPUTS


def plainly(x, weight, bias):
    return products.linear(x, weight, bias)


def in_autocast(x, weight, bias):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return products.linear(x, weight, bias)


def with_torchs_switch_off(x, weight, bias):
    with torch.backends.mkldnn.flags(enabled=False):
        return products.linear(x, weight, bias)


def in_float64(x, weight, bias):
    return products.linear(x.double(), weight.double(), bias.double())


def of_few_rows(x, weight, bias):
    return products.linear(x[:1, :4], weight, bias)


@pytest.mark.parametrize("call", [in_autocast, with_torchs_switch_off, in_float64, of_few_rows])
def test_where_torchs_own_product_runs(call):
    of_onednn = "_ProductBackward"
    assert type(plainly(*operands()).grad_fn).__name__ == of_onednn
    assert type(call(*operands()).grad_fn).__name__ != of_onednn


@pytest.mark.parametrize(("rows", "by_onednn"), [(2, False), (3, True), (15, True)])
def test_few_rows_of_large_weights(rows, by_onednn):
    torch.manual_seed(0)
    x, weight = torch.randn(rows, 1024, requires_grad=True), torch.randn(512, 1024, requires_grad=True)
    got, expected = products.linear(x, weight), F.linear(x.double(), weight.double())
    assert (type(got.grad_fn).__name__ == "_ProductBackward") is by_onednn
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-3)
    for gradient, of_torch in zip(*(torch.autograd.grad(y.sum(), (x, weight)) for y in (got, expected)), strict=True):
        torch.testing.assert_close(gradient, of_torch, rtol=1e-5, atol=1e-3)


def test_transforms_see_torchs_own_product():
    x, weight, bias = (t.detach() for t in operands())
    by_row = torch.func.vmap(products.linear, in_dims=(0, None, None))(x, weight, bias)
    torch.testing.assert_close(by_row, F.linear(x, weight, bias), rtol=1e-4, atol=1e-4)
    _, tangent = torch.func.jvp(lambda x: products.linear(x, weight, bias), (x,), (x,))
    torch.testing.assert_close(tangent, F.linear(x, weight), rtol=1e-4, atol=1e-4)


def layer_of(weight, bias):
    layer = torch.nn.Linear(INPUTS, OUTPUTS)
    layer.weight, layer.bias = torch.nn.Parameter(weight.detach()), torch.nn.Parameter(bias.detach())
    return layer


def test_a_plain_layer_runs_as_its_product():
    x, weight, bias = operands()
    assert type(products.of_layer(layer_of(weight, bias), x).grad_fn).__name__ == "_ProductBackward"


@pytest.mark.parametrize("hook", ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"])
def test_hooks_of_a_layer_are_called(hook):
    x, weight, bias = operands()
    layer, calls = layer_of(weight, bias), []
    getattr(layer, hook)(lambda *_: calls.append(hook))
    products.of_layer(layer, x).sum().backward()
    assert calls == [hook]


def test_a_layer_that_was_given_another_forward_keeps_it():
    x, weight, bias = operands()
    layer = layer_of(weight, bias)
    layer.forward = lambda x: x
    assert products.of_layer(layer, x) is x
    assert products.of_layer(torch.nn.Identity(), x) is x


def test_layers_of_other_models_run_as_the_product_under_their_own_names():
    x, weight, bias = operands()
    model, calls = torch.nn.Sequential(layer_of(weight, bias), torch.nn.ReLU()), []
    model[0].register_forward_hook(lambda *_: calls.append("hook"))
    names, expected = list(model.state_dict()), model(x)
    assert products.with_faster_products(model) is model
    got = model(x)
    assert type(got.grad_fn.next_functions[0][0]).__name__ == "_ProductBackward"
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-4)
    assert list(model.state_dict()) == names and isinstance(model[0], torch.nn.Linear) and len(calls) == 2
