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
def against(a, b, M: tl.constexpr, N: tl.constexpr, P: tl.constexpr, EMULATE: tl.constexpr):
    """a bᵀ (M, N)"""
    return dot(a, tl.trans(b), tl.zeros([M, N], dtype=tl.float32), P, EMULATE)


@triton.jit
def query_head(H, G):
    """Batch, head, key-value head, and batch and key-value head in one, of a program whose second index counts heads."""
    bh = tl.program_id(1)
    b = (bh // H).to(tl.int64)
    h = bh % H
    g = h // (H // G)
    return b, h, g, b * G + g


@triton.jit
def key_head(G):
    """Batch, key-value head, and both in one, of a program whose second index counts key-value heads."""
    bg = tl.program_id(1)
    return (bg // G).to(tl.int64), bg % G, bg.to(tl.int64)


@triton.jit
def rows_of(X, rows, stride, count, D: tl.constexpr):
    """X[rows, 0:D]; zeros where a row is not below count."""
    c = tl.arange(0, D)
    return tl.load(X + rows[:, None] * stride + c[None, :], mask=(rows < count)[:, None], other=0.0)


@triton.jit
def store_rows(X, at, real, x, D: tl.constexpr):
    """X[at, 0:D] = x, of a dense X; `real` says which rows there are."""
    tl.store(X + at[:, None] * D + tl.arange(0, D)[None, :], x, mask=real[:, None])


@triton.jit
def vector_of(X, at, count):
    return tl.load(X + at, mask=at < count, other=0.0)


@triton.jit
def meet_keys(
    q, dy, delta, K, V, j, skt, svt, S,
    BM: tl.constexpr, BN: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, P: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """Queries and the j-th block of keys: its positions, k, q·k, and the gradient by weights, dy·v - delta."""
    keys = j * BN + tl.arange(0, BN)
    k = rows_of(K, keys, skt, S, DK)
    v = rows_of(V, keys, svt, S, DV)
    x = against(q, k, BM, BN, P, EMULATE)
    return keys, k, x, against(dy, v, BM, BN, P, EMULATE) - delta[:, None]


@triton.jit
def meet_queries(
    k, v, Q, DY, DELTA, n, first, b, g, sqb, sqt, sqh, syb, syt, syh, T, H, G,
    BM: tl.constexpr, BN: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, P: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """Keys and the n-th block of queries from block `first` on, the heads of a group taken in turn.

    Its positions, where its head begins in (B,H,T), q, dy, and transposed k·q and the gradient by weights, v·dy - delta: so
    that no product of a product is transposed in registers, which is wrong code on Hopper (fla issue 640).
    """
    h = g * (H // G) + n % (H // G)
    rows = (first + n // (H // G)) * BM + tl.arange(0, BM)
    at = (b * H + h) * T
    q = rows_of(Q + b * sqb + h * sqh, rows, sqt, T, DK)
    dy = rows_of(DY + b * syb + h * syh, rows, syt, T, DV)
    x = against(k, q, BN, BM, P, EMULATE)
    return rows, at, q, dy, x, against(v, dy, BN, BM, P, EMULATE) - vector_of(DELTA + at, rows, T)[None, :]


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
