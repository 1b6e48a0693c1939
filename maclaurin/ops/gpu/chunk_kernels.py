"""Squared scores through the states before every chunk, and within the chunk directly; and the gradients by what is read.

Within a chunk the gradients are those of `direct_kernels.py` with a span; the kernels here add what goes through the states.
"""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator,no-untyped-call"

import triton
import triton.language as tl

from maclaurin.ops.gpu.direct_kernels import finish, meet
from maclaurin.ops.gpu.pieces import between, dot, key_head, query_head, rows_of, vector_of
from maclaurin.ops.gpu.state_kernels import EXTRA, bilinear, read_moments, read_state, state_at


@triton.jit
def _before_chunk(
    Q, sqt, rows, T, STATE, gram, moments, MU, guard,
    DK: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr, NORMALIZE: tl.constexpr, CENTRED: tl.constexpr,
    P: tl.constexpr, PZ: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """What queries read from the state before their chunk: sums, divisors, and where these are not above rounding.

    What the divisor says below the rounding error of its largest terms is not used.
    """
    ck = tl.arange(0, DK)
    x = rows_of(Q, rows, sqt, T, DK)
    x32 = x.to(tl.float32)
    acc = tl.zeros([BM, DV], dtype=tl.float32)
    total = tl.zeros([BM], dtype=tl.float32)
    unused = rows < 0
    along = tl.zeros([BM], dtype=tl.float32)
    if CENTRED:
        along = tl.sum(x32 * tl.load(MU + ck)[None, :], 1)
    if NORMALIZE:  # before there is anything else to keep in registers
        total = tl.sum(read_moments(x, gram, BM, DK, DK, PZ, EMULATE) * x32, 1)
        size = tl.sum(x32 * x32, 1) * tl.sum(tl.load(gram + ck * (DK + 1)), 0)
        if CENTRED:
            mean = along * along * tl.load(gram + (DK + 1) * DK)
            total += 2.0 * along * tl.sum(x32 * tl.load(gram + DK * DK + ck)[None, :], 1) + mean
            size += mean
        unused = total <= guard * size
        total = tl.where(unused, 0.0, total)
    if CENTRED:
        acc = (2.0 * along)[:, None] * read_moments(x, moments, BM, DK, DV, P, EMULATE)
        acc += (along * along)[:, None] * tl.load(moments + DK * DV + tl.arange(0, DV))[None, :]
    acc = read_state(Q, sqt, rows, T, STATE, acc, DK, DV, BM, P, EMULATE)
    return tl.where(unused[:, None], 0.0, acc), total, unused


@triton.jit
def chunk_forward(
    Q, K, V, E, HI, LO, STATES, GRAMS, MOMENTS, MU, Y, TOTAL,
    sqb, sqt, sqh, skb, skt, skh, svb, svt, svh, syb, syt, syh,
    T, H, G, chunk, chunks, out_scale, guard,
    DK: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    DECAY: tl.constexpr, NORMALIZE: tl.constexpr, HAS_START: tl.constexpr, CENTRED: tl.constexpr,
    P: tl.constexpr, PZ: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """The state before the chunk, then the chunk itself. BM and BN divide the chunk.

    GRAMS (B,G,chunks,K+2,K) are the moments of k̃ k̃ᵀ, MOMENTS (B,G,chunks,K+2,V) those of k̃ vᵀ, MU (B,G,K) the mean.
    """
    b, h, g, bg = query_head(H, G)
    Q += b * sqb + h * sqh
    if DECAY:
        E, HI, LO = E + bg * T, HI + bg * T, LO + bg * T
    start = tl.program_id(0) * BM
    rows = start + tl.arange(0, BM)
    c = start // chunk
    begin = c * chunk
    at = bg * chunks + c
    acc = tl.zeros([BM, DV], dtype=tl.float32)
    total = tl.zeros([BM], dtype=tl.float32)
    unused = rows < 0
    if HAS_START or c > 0:
        gram, moments = GRAMS + at * (DK + EXTRA) * DK, MOMENTS + at * (DK + EXTRA) * DV
        acc, total, unused = _before_chunk(
            Q, sqt, rows, T, state_at(STATES, at, DK, DV), gram, moments, MU + bg * DK, guard,
            DK, DV, BM, NORMALIZE, CENTRED, P, PZ, EMULATE,
        )  # fmt: skip
        if DECAY:
            to_block = tl.exp2(tl.load(HI + start) + tl.load(LO + start))
            if begin > 0:
                to_block = between(HI, LO, start, begin - 1)
            acc = acc * to_block
            total = total * to_block
    q = rows_of(Q, rows, sqt, T, DK)
    acc, total = meet(
        q, K + b * skb + g * skh, V + b * svb + g * svh, E, HI, LO, rows, skt, svt, T,
        begin // BN, start // BN, tl.cdiv(min(start + BM, T), BN), 0, start, acc, total, BM, BN, DK, DV, DECAY, P, EMULATE,
    )  # fmt: skip
    finish(acc, total, unused, out_scale, Y + b * syb + h * syh, syt, TOTAL + b * T * H + h, rows, T, H, DV, NORMALIZE)


@triton.jit
def _add(place, real, x):
    tl.store(place, tl.load(place, mask=real, other=0.0) + x, mask=real)


@triton.jit
def _add_rows(X, at, real, x, D: tl.constexpr):
    _add(X + at[:, None] * D + tl.arange(0, D)[None, :], real[:, None], x)


@triton.jit
def chunk_backward_q(
    Q, U, C, WEIGHT, STATES, GRAMS, MOMENTS, MU, DQ, HALF,
    sqb, sqt, sqh, sub, sut, suh,
    T, H, G, chunk, chunks,
    DK: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr,
    DECAY: tl.constexpr, NORMALIZE: tl.constexpr, HAS_START: tl.constexpr, CENTRED: tl.constexpr,
    P: tl.constexpr, PZ: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """Adds to dq what the state gives: U (B,T,H,V) = dy/total, C (B,H,T) = -delta/total. HALF += q·(what was added)/2.

    Halved, the gradient of (q·k̃)² ⊗ u + … is S̃ u q + (q·μ) M u + ((q·M u) + (q·μ)(c·u)) μ, and the divisor's is the same.
    """
    b, h, _, bg = query_head(H, G)
    c = tl.program_id(0) * BM // chunk
    if HAS_START or c > 0:
        Q += b * sqb + h * sqh
        U += b * sub + h * suh
        rows = tl.program_id(0) * BM + tl.arange(0, BM)
        at = bg * chunks + c
        ck = tl.arange(0, DK)
        dq = tl.zeros([BM, DK], dtype=tl.float32)
        x = rows_of(Q, rows, sqt, T, DK)
        x32 = x.to(tl.float32)
        gram = GRAMS + at * (DK + EXTRA) * DK
        if CENTRED:
            mu = tl.load(MU + bg * DK + ck)
            along = tl.sum(x32 * mu[None, :], 1)
            moments = MOMENTS + at * (DK + EXTRA) * DV
            cv = tl.arange(0, DV)
            u = rows_of(U, rows, sut, T, DV)
            m = tl.load(moments + cv[:, None] + ck[None, :] * DV)
            read = dot(u, m, tl.zeros([BM, DK], dtype=tl.float32), P, EMULATE)  # M u
            sums = tl.sum(u.to(tl.float32) * tl.load(moments + DK * DV + cv)[None, :], 1)
            by_mean = tl.sum(x32 * read, 1) + along * sums
            if NORMALIZE:
                weight = vector_of(C + (b * H + h) * T, rows, T)
                first = tl.load(gram + DK * DK + ck)
                read += weight[:, None] * first[None, :]
                by_mean += weight * (tl.sum(x32 * first[None, :], 1) + along * tl.load(gram + (DK + 1) * DK))
            dq += along[:, None] * read + by_mean[:, None] * mu[None, :]
        if NORMALIZE:
            weight_z = vector_of(C + (b * H + h) * T, rows, T)
            dq += read_moments(x, gram, BM, DK, DK, PZ, EMULATE) * weight_z[:, None]
        dq = bilinear(Q, sqt, U, sut, rows, T, state_at(STATES, at, DK, DV), dq, DK, DV, BM, P, EMULATE)
        dq = 2.0 * dq
        if DECAY:
            dq = dq * vector_of(WEIGHT + bg * T, rows, T)[:, None]
        _add_rows(DQ, (b * T + rows) * H + h, rows < T, dq, DK)
        _add(HALF + (b * H + h) * T + rows, rows < T, 0.5 * tl.sum(rows_of(Q, rows, sqt, T, DK).to(tl.float32) * dq, 1))


@triton.jit
def chunk_backward_k(
    K, V, WEIGHT, DSTATES, DGRAMS, DK_, HALF,
    skb, skt, skh, svb, svt, svh,
    T, G, chunk, chunks,
    DK: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr,
    DECAY: tl.constexpr, NORMALIZE: tl.constexpr, HAS_END: tl.constexpr,
    P: tl.constexpr, PZ: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """Adds to dk what the gradient of the state behind the chunk gives."""
    b, g, bg = key_head(G)
    c = tl.program_id(0) * BM // chunk
    if HAS_END or c < chunks - 1:
        K += b * skb + g * skh
        rows = tl.program_id(0) * BM + tl.arange(0, BM)
        at = bg * chunks + c
        dk = tl.zeros([BM, DK], dtype=tl.float32)
        if NORMALIZE:
            x = rows_of(K, rows, skt, T, DK)
            dk = read_moments(x, DGRAMS + at * (DK + EXTRA) * DK, BM, DK, DK, PZ, EMULATE)
        dk = bilinear(K, skt, V + b * svb + g * svh, svt, rows, T, state_at(DSTATES, at, DK, DV), dk, DK, DV, BM, P, EMULATE)
        dk = 2.0 * dk
        if DECAY:
            dk = dk * vector_of(WEIGHT + bg * T, rows, T)[:, None]
        _add_rows(DK_, (b * T + rows) * G + g, rows < T, dk, DK)
        _add(HALF + bg * T + rows, rows < T, 0.5 * tl.sum(rows_of(K, rows, skt, T, DK).to(tl.float32) * dk, 1))


@triton.jit
def chunk_backward_v(
    K, WEIGHT, DSTATES, DV_,
    skb, skt, skh,
    T, G, chunk, chunks,
    DK: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr,
    DECAY: tl.constexpr, HAS_END: tl.constexpr, P: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """Adds to dv what the gradient of the state behind the chunk gives."""
    b, g, bg = key_head(G)
    c = tl.program_id(0) * BM // chunk
    if HAS_END or c < chunks - 1:
        rows = tl.program_id(0) * BM + tl.arange(0, BM)
        at = bg * chunks + c
        dv = tl.zeros([BM, DV], dtype=tl.float32)
        dv = read_state(K + b * skb + g * skh, skt, rows, T, state_at(DSTATES, at, DK, DV), dv, DK, DV, BM, P, EMULATE)
        if DECAY:
            dv = dv * vector_of(WEIGHT + bg * T, rows, T)[:, None]
        _add_rows(DV_, (b * T + rows) * G + g, rows < T, dv, DV)
