"""Softmax with a decay as a bias on the scores, in a sliding window: a running maximum, no matrix in memory.

Scores are in units of log2: c·q_t·k_s + A_t - A_s with c = scale·log2(e). What a row keeps is the log2 of the sum of its
weights, from which the backward has them again. A query sees itself and window-1 tokens before it; blocks outside of that
are not visited.
"""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator,no-untyped-call"

import triton
import triton.language as tl

from maclaurin.ops.gpu.pieces import (
    against,
    dot,
    key_head,
    meet_keys,
    meet_queries,
    query_head,
    rows_of,
    store_rows,
    vector_of,
)


@triton.jit
def _scores(x, HI, LO, t, s, count, window, c, DECAY: tl.constexpr, TRANSPOSED: tl.constexpr):
    """Products q·k -> scores in log2, -inf where a key comes after the query, lies before its window or is none."""
    x = x * c
    if TRANSPOSED:
        lag = t[None, :] - s[:, None]
        seen = (lag >= 0) & (lag < window) & (s < count)[:, None]
        if DECAY:
            x += vector_of(HI, t, count)[None, :] - vector_of(HI, s, count)[:, None]
            x += vector_of(LO, t, count)[None, :] - vector_of(LO, s, count)[:, None]
    else:
        lag = t[:, None] - s[None, :]
        seen = (lag >= 0) & (lag < window) & (s < count)[None, :]
        if DECAY:
            x += vector_of(HI, t, count)[:, None] - vector_of(HI, s, count)[None, :]
            x += vector_of(LO, t, count)[:, None] - vector_of(LO, s, count)[None, :]
    return tl.where(seen, x, float("-inf"))


@triton.jit
def _first_block(i, T, S, window, BM: tl.constexpr, BN: tl.constexpr):
    """The first key block that a query of block i sees."""
    return max(i * BM + S - T - window + 1, 0) // BN


@triton.jit
def softmax_forward(
    Q, K, V, HI, LO, Y, TOTAL,
    sqb, sqt, sqh, skb, skt, skh, svb, svt, svh, syb, syt, syh,
    T, S, H, G, window, c,
    DK: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    DECAY: tl.constexpr, P: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """Y (B,T,H,V), and TOTAL (B,T,H): the log2 of the sums of weights."""
    i = tl.num_programs(0) - 1 - tl.program_id(0)
    b, h, g, bg = query_head(H, G)
    rows = i * BM + tl.arange(0, BM)
    q = rows_of(Q + b * sqb + h * sqh, rows, sqt, T, DK)
    if DECAY:
        HI, LO = HI + bg * S, LO + bg * S
    acc = tl.zeros([BM, DV], dtype=tl.float32)
    total = tl.zeros([BM], dtype=tl.float32)
    highest = tl.zeros([BM], dtype=tl.float32) + float("-inf")
    for j in range(_first_block(i, T, S, window, BM, BN), tl.cdiv(min(i * BM + BM + S - T, S), BN)):
        keys = j * BN + tl.arange(0, BN)
        k = rows_of(K + b * skb + g * skh, keys, skt, S, DK)
        x = against(q, k, BM, BN, P, EMULATE)
        x = _scores(x, HI, LO, rows + S - T, keys, S, window, c, DECAY, False)
        now = tl.maximum(highest, tl.max(x, 1))
        shift = tl.where(now == float("-inf"), 0.0, now)  # a row whose window begins in a later block
        before = tl.exp2(highest - shift)
        w = tl.exp2(x - shift[:, None])
        total = total * before + tl.sum(w, 1)
        acc = dot(w, rows_of(V + b * svb + g * svh, keys, svt, S, DV), acc * before[:, None], P, EMULATE)
        highest = now
    c_v = tl.arange(0, DV)
    place = Y + b * syb + h * syh + rows[:, None] * syt + c_v[None, :]
    tl.store(place, (acc / total[:, None]).to(Y.dtype.element_ty), mask=(rows < T)[:, None])
    tl.store(TOTAL + b * T * H + h + rows * H, highest + tl.log2(total), mask=rows < T)


@triton.jit
def softmax_backward_kv(
    Q, K, V, HI, LO, LOGS, DY, DELTA, DK_, DV_, SUMS,
    sqb, sqt, sqh, skb, skt, skh, svb, svt, svh, syb, syt, syh,
    T, S, H, G, window, c, scale,
    DK: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    DECAY: tl.constexpr, P: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """dk, dv (B,S,G,·) float32, and SUMS (B,G,S): the gradients by all scores of a key, which are those of the decay."""
    j = tl.program_id(0)
    b, g, bg = key_head(G)
    if DECAY:
        HI, LO = HI + bg * S, LO + bg * S
    keys = j * BN + tl.arange(0, BN)
    k = rows_of(K + b * skb + g * skh, keys, skt, S, DK)
    v = rows_of(V + b * svb + g * svh, keys, svt, S, DV)
    dk = tl.zeros([BN, DK], dtype=tl.float32)
    dv = tl.zeros([BN, DV], dtype=tl.float32)
    sums = tl.zeros([BN], dtype=tl.float32)
    first = max(j * BN - (S - T), 0) // BM
    last = tl.cdiv(min(T, max(min(j * BN + BN, S) - 1 + window - (S - T), 0)), BM)
    for n in range((last - first) * (H // G)):
        rows, at, q, dy, x, dw = meet_queries(
            k, v, Q, DY, DELTA, n, first, b, g, sqb, sqt, sqh, syb, syt, syh, T, H, G, BM, BN, DK, DV, P, EMULATE
        )
        logs = tl.load(LOGS + at + rows, mask=rows < T, other=float("inf"))
        w = tl.exp2(_scores(x, HI, LO, rows + S - T, keys, S, window, c, DECAY, True) - logs[None, :])
        dv = dot(w, dy, dv, P, EMULATE)
        dx = w * dw
        sums += tl.sum(dx, 1)
        dk = dot(dx, q, dk, P, EMULATE)
    row = (b * S + keys) * G + g
    store_rows(DK_, row, keys < S, dk * scale, DK)
    store_rows(DV_, row, keys < S, dv, DV)
    tl.store(SUMS + bg * S + keys, sums, mask=keys < S)


@triton.jit
def softmax_backward_q(
    Q, K, V, HI, LO, LOGS, DY, DELTA, DQ, SUMS,
    sqb, sqt, sqh, skb, skt, skh, svb, svt, svh, syb, syt, syh,
    T, S, H, G, window, c, scale,
    DK: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    DECAY: tl.constexpr, P: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """dq (B,T,H,K) float32, and SUMS (B,H,T): the gradients by all scores of a query, zero but for rounding."""
    i = tl.num_programs(0) - 1 - tl.program_id(0)
    b, h, g, bg = query_head(H, G)
    K, V = K + b * skb + g * skh, V + b * svb + g * svh
    if DECAY:
        HI, LO = HI + bg * S, LO + bg * S
    rows = i * BM + tl.arange(0, BM)
    q = rows_of(Q + b * sqb + h * sqh, rows, sqt, T, DK)
    dy = rows_of(DY + b * syb + h * syh, rows, syt, T, DV)
    delta = vector_of(DELTA + (b * H + h) * T, rows, T)
    logs = tl.load(LOGS + (b * H + h) * T + rows, mask=rows < T, other=float("inf"))
    dq = tl.zeros([BM, DK], dtype=tl.float32)
    sums = tl.zeros([BM], dtype=tl.float32)
    for j in range(_first_block(i, T, S, window, BM, BN), tl.cdiv(min(i * BM + BM + S - T, S), BN)):
        keys, k, x, dw = meet_keys(q, dy, delta, K, V, j, skt, svt, S, BM, BN, DK, DV, P, EMULATE)
        w = tl.exp2(_scores(x, HI, LO, rows + S - T, keys, S, window, c, DECAY, False) - logs[:, None])
        dx = w * dw
        sums += tl.sum(dx, 1)
        dq = dot(dx, k, dq, P, EMULATE)
    store_rows(DQ, (b * T + rows) * H + h, rows < T, dq * scale, DK)
    tl.store(SUMS + (b * H + h) * T + rows, sums, mask=rows < T)
