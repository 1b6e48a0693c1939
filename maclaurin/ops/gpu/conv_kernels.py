"""Short causal convolutions per channel: taps summed in registers, with the activation behind them."""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator,no-untyped-call"

import triton
import triton.language as tl


@triton.jit
def _taps(
    X, WEIGHT, BIAS, t, c, real, channels, C, W: tl.constexpr, HAS_BIAS: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr
):
    """bias + Σ_r weight[:, r] x_{t+r} (BT, BC), x having the W-1 inputs before the first token in front."""
    acc = tl.zeros([BT, BC], dtype=tl.float32)
    if HAS_BIAS:
        acc += tl.load(BIAS + c, mask=channels, other=0.0).to(tl.float32)[None, :]
    for r in tl.static_range(W):
        x = tl.load(X + (t + r)[:, None] * C + c[None, :], mask=real, other=0.0).to(tl.float32)
        acc += x * tl.load(WEIGHT + c * W + r, mask=channels, other=0.0).to(tl.float32)[None, :]
    return acc


@triton.jit
def _place(T, C, BT: tl.constexpr, BC: tl.constexpr):
    """Batch, tokens and channels of a program, and which of its numbers there are."""
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    return tl.program_id(2).to(tl.int64), t, c, (t < T)[:, None] & (c < C)[None, :]


@triton.jit
def conv_forward(
    X, WEIGHT, BIAS, Y, T, C,
    W: tl.constexpr, HAS_BIAS: tl.constexpr, SILU: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """X (B,T+W-1,C), WEIGHT (C,W), Y (B,T,C)."""
    b, t, c, real = _place(T, C, BT, BC)
    y = _taps(X + b * (T + W - 1) * C, WEIGHT, BIAS, t, c, real, c < C, C, W, HAS_BIAS, BT, BC)
    if SILU:
        y = y * tl.sigmoid(y)
    tl.store(Y + b * T * C + t[:, None] * C + c[None, :], y.to(Y.dtype.element_ty), mask=real)


@triton.jit
def conv_backward(
    X, WEIGHT, BIAS, DY, DZ, SUMS, T, C,
    W: tl.constexpr, HAS_BIAS: tl.constexpr, SILU: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """DZ (B,T,C): the gradient before the activation; SUMS (B, blocks, W+1, C): those of the taps, then of the bias."""
    b, t, c, real = _place(T, C, BT, BC)
    X += b * (T + W - 1) * C
    place = b * T * C + t[:, None] * C + c[None, :]
    dz = tl.load(DY + place, mask=real, other=0.0).to(tl.float32)
    if SILU:
        y = _taps(X, WEIGHT, BIAS, t, c, real, c < C, C, W, HAS_BIAS, BT, BC)
        gate = tl.sigmoid(y)
        dz = dz * gate * (1.0 + y * (1.0 - gate))
    tl.store(DZ + place, dz, mask=real)
    sums = SUMS + (b * tl.num_programs(0) + tl.program_id(0)) * (W + 1) * C + c
    for r in tl.static_range(W):
        x = tl.load(X + (t + r)[:, None] * C + c[None, :], mask=real, other=0.0).to(tl.float32)
        tl.store(sums + r * C, tl.sum(x * dz, 0), mask=c < C)
    tl.store(sums + W * C, tl.sum(dz, 0), mask=c < C)
