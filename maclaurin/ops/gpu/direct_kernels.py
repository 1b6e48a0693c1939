"""Squared scores, every query against every earlier key: y_t = Σ_s (q_t·k_s)²·2^(A_t - A_s) v_s, A being sums of log2 decay.

(q·k)² needs no running maximum, and its decay factors over a tile: 2^(A_t - A_s) = 2^(A_t - A_r)·2^(A_r - A_s) for any r
between s and t, both at most 1. Off the diagonal a tile needs one exponential, not BM·BN: the factors of single tokens to
the end of their block (E) come as a vector, and those of rows are applied once, behind the loop. Key blocks that decay
leaves nothing of are not visited.

The gradient of the decay needs no pass: k·dk = 2 Σ W dW, so it is half of q·dq - k·dk, summed backwards.
"""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator,no-untyped-call"

import triton
import triton.language as tl

from maclaurin.ops.gpu.pieces import (
    against,
    between,
    dot,
    from_position,
    key_head,
    meet_keys,
    meet_queries,
    pair_decay,
    query_head,
    rows_of,
    store_rows,
    vector_of,
)


@triton.jit
def meet(
    q, K, V, E, HI, LO, rows, skt, svt, S, first, whole, last, offset, start, acc, total,
    BM: tl.constexpr, BN: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    DECAY: tl.constexpr, P: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """Queries meet the key blocks first … last-1, of which those before `whole` lie behind all of them.

    acc and total are relative to the position `start` of the first query, and to each row itself when they are returned.
    """
    for j in range(first, whole):
        keys = j * BN + tl.arange(0, BN)
        x = against(q, rows_of(K, keys, skt, S, DK), BM, BN, P, EMULATE)
        w = x * x
        if DECAY:
            w = w * (vector_of(E, keys, S) * between(HI, LO, start, j * BN + BN - 1))[None, :]
        total += tl.sum(w, 1)
        acc = dot(w, rows_of(V, keys, svt, S, DV), acc, P, EMULATE)
    if DECAY:
        own = from_position(HI, LO, rows + offset, start, S)
        acc = acc * own[:, None]
        total = total * own
    for j in range(whole, last):
        keys = j * BN + tl.arange(0, BN)
        x = against(q, rows_of(K, keys, skt, S, DK), BM, BN, P, EMULATE)
        if DECAY:
            w = x * x * pair_decay(HI, LO, rows + offset, keys, S, False)
        else:
            w = tl.where((rows + offset)[:, None] >= keys[None, :], x * x, 0.0)
        total += tl.sum(w, 1)
        acc = dot(w, rows_of(V, keys, svt, S, DV), acc, P, EMULATE)
    return acc, total


@triton.jit
def finish(acc, total, unused, out_scale, Y, syt, TOTAL, rows, T, H, DV: tl.constexpr, NORMALIZE: tl.constexpr):
    """TOTAL is negative where what the state said was left out, and infinite where there is nothing to divide by."""
    if NORMALIZE:
        nothing = total * out_scale < 1e-30  # as in `safe_divide`; a NaN is something
        acc = tl.where(nothing[:, None], 0.0, acc / tl.where(nothing, 1.0, total)[:, None])
        total = tl.where(nothing, float("inf"), total)
        total = tl.where(unused, -total, total)
    else:
        acc = acc * out_scale
    c = tl.arange(0, DV)
    tl.store(Y + rows[:, None] * syt + c[None, :], acc.to(Y.dtype.element_ty), mask=(rows < T)[:, None])
    tl.store(TOTAL + rows * H, total, mask=rows < T)


@triton.jit
def direct_forward(
    Q, K, V, E, HI, LO, FIRST, Y, TOTAL,
    sqb, sqt, sqh, skb, skt, skh, svb, svt, svh, syb, syt, syh,
    T, S, H, G, out_scale,
    DK: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    DECAY: tl.constexpr, NORMALIZE: tl.constexpr, P: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """Y (B,T,H,V) and TOTAL (B,T,H) = Σ (q·k)²·decay. FIRST (B,G,blocks): the first key block that is visited."""
    i = tl.num_programs(0) - 1 - tl.program_id(0)  # the longest first
    b, h, g, bg = query_head(H, G)
    rows = i * BM + tl.arange(0, BM)
    start = i * BM + S - T  # the key position of the first query
    first = 0
    if DECAY:
        first = tl.load(FIRST + bg * tl.num_programs(0) + i)
        E, HI, LO = E + bg * S, HI + bg * S, LO + bg * S
    q = rows_of(Q + b * sqb + h * sqh, rows, sqt, T, DK)
    acc = tl.zeros([BM, DV], dtype=tl.float32)
    total = tl.zeros([BM], dtype=tl.float32)
    acc, total = meet(
        q, K + b * skb + g * skh, V + b * svb + g * svh, E, HI, LO, rows, skt, svt, S,
        first, start // BN, tl.cdiv(min(start + BM, S), BN), S - T, start, acc, total, BM, BN, DK, DV, DECAY, P, EMULATE,
    )  # fmt: skip
    finish(acc, total, rows < 0, out_scale, Y + b * syb + h * syh, syt, TOTAL + b * T * H + h, rows, T, H, DV, NORMALIZE)


@triton.jit
def direct_backward_kv(
    Q, K, V, CF, C, HI, LO, LAST, DY, DELTA, DK_, DV_, HALF,
    sqb, sqt, sqh, skb, skt, skh, svb, svt, svh, syb, syt, syh,
    T, S, H, G, span,
    DK: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    DECAY: tl.constexpr, P: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """dk, dv (B,S,G,·) float32 and HALF (B,G,S) = k·dk/2. LAST: the query block behind the last that a key block reaches.

    C (B,H,T) is what a row's weights are divided by, inverted; CF is C times the decay from the start of the query's block.
    With span > 0 a key meets only the queries of its own chunk of so many tokens (T = S): the rest is the state's.
    """
    j = tl.program_id(0)
    b, g, bg = key_head(G)
    keys = j * BN + tl.arange(0, BN)
    end = min(j * BN + BN, S) - 1
    last = tl.cdiv(T, BM)
    if DECAY:
        HI, LO = HI + bg * S, LO + bg * S
        last = tl.load(LAST + bg * tl.num_programs(0) + j)
    if span > 0:
        last = min(last, tl.cdiv((j * BN // span + 1) * span, BM))
    first = max(j * BN - (S - T), 0) // BM
    diagonal = min(tl.cdiv(max(end + 1 - (S - T), 0), BM), last)
    k = rows_of(K + b * skb + g * skh, keys, skt, S, DK)
    v = rows_of(V + b * svb + g * svh, keys, svt, S, DV)
    dk = tl.zeros([BN, DK], dtype=tl.float32)
    dv = tl.zeros([BN, DV], dtype=tl.float32)
    # queries behind all keys of the block first: relative to its end, their own factor is at most 1
    for n in range((last - diagonal) * (H // G)):
        rows, at, q, dy, x, dw = meet_queries(
            k, v, Q, DY, DELTA, n, diagonal, b, g, sqb, sqt, sqh, syb, syt, syh, T, H, G, BM, BN, DK, DV, P, EMULATE
        )
        c = vector_of(CF + at, rows, T)
        if DECAY:
            c = c * between(HI, LO, (diagonal + n // (H // G)) * BM + S - T, end)
        xc = x * c[None, :]
        dv = dot(x * xc, dy, dv, P, EMULATE)
        dk = dot(xc * dw, q, dk, P, EMULATE)
    if DECAY:
        to_end = tl.exp2((tl.load(HI + end) - vector_of(HI, keys, S)) + (tl.load(LO + end) - vector_of(LO, keys, S)))
        dk = dk * to_end[:, None]
        dv = dv * to_end[:, None]
    for n in range((diagonal - first) * (H // G)):
        rows, at, q, dy, x, dw = meet_queries(
            k, v, Q, DY, DELTA, n, first, b, g, sqb, sqt, sqh, syb, syt, syh, T, H, G, BM, BN, DK, DV, P, EMULATE
        )
        xc = x * vector_of(C + at, rows, T)[None, :]
        if DECAY:
            xc = xc * pair_decay(HI, LO, rows + S - T, keys, S, True)
        else:
            xc = tl.where((rows + S - T)[None, :] >= keys[:, None], xc, 0.0)
        dv = dot(x * xc, dy, dv, P, EMULATE)
        dk = dot(xc * dw, q, dk, P, EMULATE)
    dk = 2.0 * dk
    row = (b * S + keys) * G + g
    store_rows(DK_, row, keys < S, dk, DK)
    store_rows(DV_, row, keys < S, dv, DV)
    tl.store(HALF + bg * S + keys, 0.5 * tl.sum(k.to(tl.float32) * dk, 1), mask=keys < S)


@triton.jit
def direct_backward_q(
    Q, K, V, E, C, HI, LO, FIRST, DY, DELTA, DQ, HALF,
    sqb, sqt, sqh, skb, skt, skh, svb, svt, svh, syb, syt, syh,
    T, S, H, G, span,
    DK: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    DECAY: tl.constexpr, P: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """dq (B,T,H,K) float32 and HALF (B,H,T) = q·dq/2."""
    i = tl.num_programs(0) - 1 - tl.program_id(0)
    b, h, g, bg = query_head(H, G)
    K, V = K + b * skb + g * skh, V + b * svb + g * svh
    rows = i * BM + tl.arange(0, BM)
    start = i * BM + S - T
    first = 0
    if DECAY:
        first = tl.load(FIRST + bg * tl.num_programs(0) + i)
        E, HI, LO = E + bg * S, HI + bg * S, LO + bg * S
    if span > 0:
        first = max(first, start // span * span // BN)
    q = rows_of(Q + b * sqb + h * sqh, rows, sqt, T, DK)
    dy = rows_of(DY + b * syb + h * syh, rows, syt, T, DV)
    delta = vector_of(DELTA + (b * H + h) * T, rows, T)
    dq = tl.zeros([BM, DK], dtype=tl.float32)
    for j in range(first, start // BN):
        keys, k, x, dw = meet_keys(q, dy, delta, K, V, j, skt, svt, S, BM, BN, DK, DV, P, EMULATE)
        dx = x * dw
        if DECAY:
            dx = dx * (vector_of(E, keys, S) * between(HI, LO, start, j * BN + BN - 1))[None, :]
        dq = dot(dx, k, dq, P, EMULATE)
    if DECAY:
        dq = dq * from_position(HI, LO, rows + S - T, start, S)[:, None]
    for j in range(start // BN, tl.cdiv(min(start + BM, S), BN)):
        keys, k, x, dw = meet_keys(q, dy, delta, K, V, j, skt, svt, S, BM, BN, DK, DV, P, EMULATE)
        dx = x * dw
        if DECAY:
            dx = dx * pair_decay(HI, LO, rows + S - T, keys, S, False)
        else:
            dx = tl.where((rows + S - T)[:, None] >= keys[None, :], dx, 0.0)
        dq = dot(dx, k, dq, P, EMULATE)
    dq = dq * (2.0 * vector_of(C + (b * H + h) * T, rows, T))[:, None]
    store_rows(DQ, (b * T + rows) * H + h, rows < T, dq, DK)
    tl.store(HALF + (b * H + h) * T + rows, 0.5 * tl.sum(q.to(tl.float32) * dq, 1), mask=rows < T)
