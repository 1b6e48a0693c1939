"""The look for a NaN that keeps every call causal finds one wherever it stands, and nothing else."""

import math

import pytest
import torch

from maclaurin.ops import linear_attention, native, power_attention, softmax_attention
from maclaurin.ops.arithmetic import has_nan
from maclaurin.ops.native import library
from maclaurin.ops.native.nan import any_nan
from tests.ops.native_helpers import ISAS

FINITE = [0.0, -0.0, 1e-45, -1e-40, 3.4e38, -3.4e38, math.inf, -math.inf]
NAN_BITS = [0x7F800001, 0x7FC00000, 0x7FFFFFFF, -1, -0x7FFFFF]  # signalling and quiet ones, of both signs


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("count", [1, 15, 16, 17, 4095, 4096, 4097, 9000])
def test_one_nan_is_found_wherever_it_stands(isa, count):
    with native.using_isa(isa):
        for place in {0, count // 2, count - 1}:
            for bits in NAN_BITS:
                x = torch.tensor(FINITE).repeat(-(-count // len(FINITE)))[:count].view(1, count, 1, 1).clone()
                assert any_nan(x) is False
                x.view(torch.int32).flatten()[place] = bits
                assert any_nan(x) is True


@pytest.mark.skipif(not ISAS, reason="built without a C++ compiler")
def test_what_lies_beside_a_view_is_not_looked_at():
    x = torch.zeros(2, 6, 4, 3)
    x[:, 0] = x[:, -1] = math.nan
    assert any_nan(x[:, 1:-1]) is None and not has_nan(x[:, 1:-1])
    assert any_nan(x[:1, 1:-1]) is False
    assert any_nan(x.transpose(1, 2)) is True


@pytest.mark.skipif(not ISAS, reason="built without a C++ compiler")
def test_torch_is_asked_where_the_kernel_cannot_look():
    x = torch.tensor([[1.0, math.nan]])
    for other in (x.double(), x.bfloat16(), torch.nn.Parameter(x)):
        assert any_nan(other) is None and has_nan(other)
    under_vmap = []
    torch.func.vmap(lambda row: under_vmap.append(any_nan(row)) or row)(x)
    assert under_vmap == [None]


CALLS = {
    "squares": lambda *tokens: power_attention(*tokens, form="parallel"),
    "squares through a state": lambda *tokens: power_attention(*tokens, form="chunked"),
    "softmax": softmax_attention,
    "first order": linear_attention,
}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("shape", [(1, 5, 1, 3), (2, 70, 2, 17), (1, 300, 3, 16)])
def test_kernels_see_a_nan_that_they_write(isa, call, shape, monkeypatch):
    """Without one, nobody reads the output again; with one, wherever it is, the outputs before it have none."""
    B, T, H, K = shape
    q, k, v = (torch.randn(B, T, H, K) for _ in range(3))
    tokens = (q, k, v, -torch.rand(B, T, H))
    with native.using_isa(isa):
        with monkeypatch.context() as patch:
            patch.setattr(library, "any_nan", None)
            patch.setattr("maclaurin.ops.arithmetic.numbers", lambda y: pytest.fail("the output was read again"))
            y, _ = CALLS[call](*tokens)
            assert y.isfinite().all()
        for place in {1, T // 2, T - 1}:
            for channel in {0, K - 1}:
                v.copy_(torch.randn_like(v))
                v[-1, place, -1, channel] = math.nan
                y, _ = CALLS[call](*tokens)
                assert y[-1, place, -1, channel].isnan() and not y[:, :place].isnan().any()


@pytest.mark.skipif(not ISAS, reason="built without a C++ compiler")
def test_what_a_kernel_said_of_one_tensor_holds_for_no_other():
    y, _ = linear_attention(*(torch.randn(1, 9, 2, 4) for _ in range(3)))
    other = y.clone()
    other[0, 3, 1, 2] = math.nan
    assert any_nan(y) is False and any_nan(other) is True
