"""What stands between two mixers, in one native call, is what PyTorch computes in float64."""

import pytest
import torch
from torch.nn.functional import rms_norm, silu

from maclaurin.ops import native
from maclaurin.ops.native.mlp import BetweenMixers
from tests.ops.native_helpers import ISAS

pytestmark = pytest.mark.skipif(not native.available(), reason="needs the native library")
EPSILON, NEXT_EPSILON = 1e-5, 1e-3


def weights_of(D, E):
    shapes = [(D,), (E, D), (E, D), (D, E), (D,)]
    return [torch.randn(shape) / shape[-1] ** 0.5 if len(shape) == 2 else torch.rand(shape) + 0.5 for shape in shapes]


def expected(x, added, weights):
    norm, gate, up, down, next_norm = (w.double() for w in weights)
    y = x.double() + added.double()
    n = rms_norm(y, norm.shape, norm, EPSILON)
    y = y + (silu(n @ gate.T) * (n @ up.T)) @ down.T
    return y, rms_norm(y, norm.shape, next_norm, NEXT_EPSILON)


@pytest.fixture(params=ISAS)
def isa(request):
    with native.using_isa(request.param):
        yield


@pytest.mark.parametrize(("B", "D", "E"), [(1, 16, 16), (3, 32, 80), (16, 128, 256), (17, 48, 16), (65, 64, 176)])
def test_it_is_what_pytorch_computes(isa, B, D, E):
    torch.manual_seed(B)
    weights = weights_of(D, E)
    between = BetweenMixers(weights, EPSILON, NEXT_EPSILON)
    x, added = torch.randn(B, 1, D), torch.randn(B, 1, D) * 3
    for own, oracle in zip(between(x, added), expected(x, added, weights), strict=True):
        torch.testing.assert_close(own.double(), oracle, rtol=1e-5, atol=1e-5)


def test_a_token_does_not_depend_on_those_beside_it(isa):
    torch.manual_seed(0)
    between = BetweenMixers(weights_of(64, 96), EPSILON, NEXT_EPSILON)
    x, added = torch.randn(37, 1, 64), torch.randn(37, 1, 64)
    together = between(x, added)
    for begin, end in ((0, 1), (5, 22), (36, 37)):
        for alone, one in zip(between(x[begin:end], added[begin:end]), together, strict=True):
            assert torch.equal(alone, one[begin:end])


def test_a_token_that_is_not_finite_stays_alone(isa):
    between = BetweenMixers(weights_of(32, 32), EPSILON, NEXT_EPSILON)
    x = torch.randn(9, 1, 32)
    x[4, 0, 7] = torch.nan
    for found in between(x, torch.zeros_like(x)):
        assert found[4].isnan().any()
        assert found[[*range(4), *range(5, 9)]].isfinite().all()


def test_several_threads_compute_the_same():
    between = BetweenMixers(weights_of(128, 256), EPSILON, NEXT_EPSILON)
    x, added, threads = torch.randn(20, 1, 128), torch.randn(20, 1, 128), torch.get_num_threads()
    try:
        found = []
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(between(x, added))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


def test_what_does_not_fit_is_refused():
    weights = weights_of(32, 48)
    for wrong in (weights_of(24, 48), [x.double() for x in weights], [weights[0][:16], *weights[1:]]):
        with pytest.raises(ValueError, match="multiples of 16 channels"):
            BetweenMixers(wrong, EPSILON, NEXT_EPSILON)
    between = BetweenMixers(weights, EPSILON, NEXT_EPSILON)
    x = torch.zeros(2, 1, 32)
    for other in (x[:1], x.double(), torch.zeros(2, 2, 32)):
        with pytest.raises(ValueError, match=r"must have the shape \(B, 1, 32\)"):
            between(x, other)
