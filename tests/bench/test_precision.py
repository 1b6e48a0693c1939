"""What the benchmarks of low precision and of bare products measure."""

import pytest
import torch

from maclaurin.bench import precision
from maclaurin.bench.products import products_of, repeat
from maclaurin.machine.kernels import CASES, SHORT
from maclaurin.ops import native


@pytest.mark.skipif(not native.available(), reason="the package was built without a C++ compiler")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op} {case.what}")
def test_low_precision_runs_in_the_kernels_and_loses_no_more_than_plain_torch(case, monkeypatch):
    monkeypatch.setattr(precision, "interleaved", lambda runs, seconds: {name: _Timing() for name in runs})
    for row in precision._measure(case, SHORT):
        decides_anew = case.op in ("scalar_mlp", "mean_filter", "rotate")  # for every call, without a word
        assert row.backend == ("" if decides_anew else "native")
        assert row.error <= 2 * row.of_torch + torch.finfo(torch.float32).eps


class _Timing:
    median = 1.0


def test_the_products_of_a_layer_are_three():
    layer, x = torch.nn.Linear(3, 5, bias=False), torch.randn(7, 3, requires_grad=True)
    products = products_of(lambda: layer(x).sum().backward())
    operands = [[tuple(operand.shape) for operand in arguments] for _, arguments in products]
    assert sorted(sum(a[0] * a[1] * b[1] for a, b in [shapes]) for shapes in operands) == [7 * 3 * 5] * 3
    repeat(products)
