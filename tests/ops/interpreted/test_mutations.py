"""The laws can fail: kernels with one thing wrong do not pass them."""

import pytest
import triton
import triton.language as tl

from maclaurin.ops import reference, softmax_attention
from maclaurin.ops.gpu import direct_kernels, softmax_kernels, state_kernels
from maclaurin.ops.gpu.sums import Sums
from tests.ops.helpers import assert_close
from tests.ops.interpreted.helpers import FORWARD, Sizes, assert_right, direct

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


@triton.jit
def _one_token_less(x, HI, LO, t, s, count, window, c, DECAY: tl.constexpr, TRANSPOSED: tl.constexpr):
    return windowed_scores(x, HI, LO, t, s, count, window - 1, c, DECAY, TRANSPOSED)


@triton.jit
def _one_block_later(i, T, S, window, BM: tl.constexpr, BN: tl.constexpr):
    return max(i * BM + S - T - window + 1 + BN, 0) // BN


windowed_scores = softmax_kernels._scores


@pytest.mark.parametrize(("name", "wrong"), [("_scores", _one_token_less), ("_first_block", _one_block_later)])
def test_a_wrong_window_is_caught(name, wrong, monkeypatch):
    inputs = Sizes(T=70).draw()
    expected = reference.softmax_attention(*(x.double() for x in inputs), window=20)
    assert_close(softmax_attention(*inputs, backend="triton", window=20)[0], expected, FORWARD)
    monkeypatch.setattr(softmax_kernels, name, wrong)
    with pytest.raises(AssertionError):
        assert_close(softmax_attention(*inputs, backend="triton", window=20)[0], expected, FORWARD)


def test_a_dropped_block_is_caught(monkeypatch):
    whole = Sums.first_blocks
    monkeypatch.setattr(Sums, "first_blocks", lambda *arguments: whole(*arguments) + 1)
    with pytest.raises(AssertionError, match="off by"):
        assert_right(direct(SIZE))
