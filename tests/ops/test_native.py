"""The native backend says what the torch backend says, with every instruction set and any number of threads."""

import pytest
import torch

from maclaurin.ops import native, reference
from tests.ops.helpers import assert_close

pytestmark = pytest.mark.skipif(not native.available(), reason="built without a C++ compiler")

ISAS = ("avx512", "avx2", "portable")


@pytest.fixture(params=ISAS)
def isa(request):
    try:
        with native.using_isa(request.param):
            yield request.param
    except ValueError:
        pytest.skip(f"this CPU has no {request.param}")


@pytest.mark.parametrize("exponential", [False, True])
def test_the_quadratic_form_is_the_reference(isa, exponential):
    q, k, v = torch.randn(2, 70, 4, 20), torch.randn(2, 70, 2, 20), torch.randn(2, 70, 2, 9)
    log_decay = -torch.rand(2, 70, 2)
    y, _ = torch.ops.maclaurin.quadratic(q, k, v, log_decay, 20**-0.5, exponential, True)
    oracle = reference.softmax_attention if exponential else reference.power_attention
    assert_close(y, oracle(*(x.double() for x in (q, k, v, log_decay))), 1e-5)
