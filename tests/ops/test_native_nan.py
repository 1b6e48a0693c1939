"""The look for a NaN that keeps every call causal finds one wherever it stands, and nothing else."""

import math

import pytest
import torch

from maclaurin.ops import native
from maclaurin.ops.arithmetic import has_nan
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
