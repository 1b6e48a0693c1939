"""What the Triton kernels share: products of a chosen precision, rows of tensors, decays between positions.

Sums of log2 decay come as two float32, hi + lo: hi_t - hi_s is rounded once, and lo brings back what hi lost, so that a sum
over the whole sequence is as good as one in float64.
"""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator,no-untyped-call"

import triton
import triton.language as tl


@triton.jit
def dot(a, b, acc, P: tl.constexpr, EMULATE: tl.constexpr):
    """acc + a b. P: "bf16" and "bf16x" round both operands; "tf32", "tf32x3", "ieee" say how float32 is multiplied."""
    if P == "bf16" or P == "bf16x":
        a = a.to(tl.bfloat16)
        b = b.to(tl.bfloat16)
        if EMULATE:  # the interpreter multiplies the bits of bfloat16 (triton issue 11584)
            a = a.to(tl.float32)
            b = b.to(tl.float32)
        return tl.dot(a, b, acc)
    else:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision=P)


@triton.jit
def times(a, b, P: tl.constexpr, EMULATE: tl.constexpr):
    """a·b as an operand of `dot`. A product of two bfloat16 is exact in float32, so it may be rounded now or there.

    "bf16" multiplies in bfloat16, which GPUs before Hopper have no instruction for; "bf16x" leaves the rounding to `dot`.
    """
    if P == "bf16":
        a = a.to(tl.bfloat16)
        b = b.to(tl.bfloat16)
        if EMULATE:
            return (a.to(tl.float32) * b.to(tl.float32)).to(tl.bfloat16).to(tl.float32)
        return a * b
    else:
        return a.to(tl.float32) * b.to(tl.float32)


@triton.jit
def rows_of(X, rows, stride, count, D: tl.constexpr):
    """X[rows, 0:D]; zeros where a row is not below count."""
    c = tl.arange(0, D)
    return tl.load(X + rows[:, None] * stride + c[None, :], mask=(rows < count)[:, None], other=0.0)


@triton.jit
def vector_of(X, at, count):
    return tl.load(X + at, mask=at < count, other=0.0)


@triton.jit
def between(HI, LO, t, s):
    """2^(A_t - A_s), two positions."""
    return tl.exp2((tl.load(HI + t) - tl.load(HI + s)) + (tl.load(LO + t) - tl.load(LO + s)))


@triton.jit
def from_position(HI, LO, t, s, count):
    """2^(A_t - A_s) for positions t, and one s before them."""
    return tl.exp2((vector_of(HI, t, count) - tl.load(HI + s)) + (vector_of(LO, t, count) - tl.load(LO + s)))


@triton.jit
def pair_decay(HI, LO, t, s, count, TRANSPOSED: tl.constexpr):
    """2^(A_t - A_s) for every pair (t, s), or (s, t), and 0 where s > t."""
    if TRANSPOSED:
        hi = vector_of(HI, t, count)[None, :] - vector_of(HI, s, count)[:, None]
        lo = vector_of(LO, t, count)[None, :] - vector_of(LO, s, count)[:, None]
        seen = t[None, :] >= s[:, None]
    else:
        hi = vector_of(HI, t, count)[:, None] - vector_of(HI, s, count)[None, :]
        lo = vector_of(LO, t, count)[:, None] - vector_of(LO, s, count)[None, :]
        seen = t[:, None] >= s[None, :]
    return tl.where(seen, tl.exp2(tl.minimum(hi + lo, 0.0)), 0.0)
