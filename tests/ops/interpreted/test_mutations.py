"""The laws can fail: kernels with one thing wrong do not pass them."""

import pytest
import triton
import triton.language as tl

from maclaurin.ops.gpu import direct_kernels, state_kernels
from maclaurin.ops.gpu.sums import Sums
from tests.ops.interpreted.helpers import Sizes, assert_right, direct

SIZE = Sizes(T=70)


@triton.jit
def _one_key_too_few(HI, LO, t, s, count, TRANSPOSED: tl.constexpr):
    weight = direct_pair_decay(HI, LO, t, s, count, TRANSPOSED)
    if TRANSPOSED:
        return tl.where(t[None, :] > s[:, None], weight, 0.0)
    return tl.where(t[:, None] > s[None, :], weight, 0.0)


@triton.jit
def _slightly_too_large(a, b, P: tl.constexpr, EMULATE: tl.constexpr):
    return a.to(tl.float32) * b.to(tl.float32) * 1.001


direct_pair_decay = direct_kernels.pair_decay


def test_a_mask_that_is_off_by_one_is_caught(monkeypatch):
    monkeypatch.setattr(direct_kernels, "pair_decay", _one_key_too_few)
    with pytest.raises(AssertionError, match="off by"):
        assert_right(direct(SIZE))


def test_a_wrong_factor_is_caught(monkeypatch):
    monkeypatch.setattr(state_kernels, "times", _slightly_too_large)
    with pytest.raises(AssertionError, match="off by"):
        assert_right(SIZE)


def test_a_dropped_block_is_caught(monkeypatch):
    whole = Sums.first_blocks
    monkeypatch.setattr(Sums, "first_blocks", lambda *arguments: whole(*arguments) + 1)
    with pytest.raises(AssertionError, match="off by"):
        assert_right(direct(SIZE))
