"""One decoding step: the recurrent state is read once, split over many programs, and met with the buffered tokens."""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator,no-untyped-call"

import triton
import triton.language as tl

from maclaurin.ops.gpu.pieces import vector_of


@triton.jit
def step_read(
    Q, STATE, FIRST, SECOND, PARTS,
    sqb, sqh, F, W, G,
    WIDE: tl.constexpr, BF: tl.constexpr, FEATURES: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """PARTS (B·G, splits, R, WIDE): φ(q)ᵀ state over the features of one split, for the R query heads of a group.

    STATE is (B,G,F,W) in the packed order of `symmetric_power`, float32, W = V or V+1; FIRST, SECOND (F,): which channels.
    """
    split = tl.program_id(0)
    bg = tl.program_id(1).to(tl.int64)
    w = tl.arange(0, WIDE)
    STATE += bg * F * W
    for r in tl.static_range(R):
        acc = tl.zeros([WIDE], dtype=tl.float32)
        q = Q + bg // G * sqb + (bg % G * R + r) * sqh
        for f0 in range(0, FEATURES, BF):
            f = split * FEATURES + f0 + tl.arange(0, BF)
            p = tl.load(FIRST + f, mask=f < F, other=0).to(tl.int32)
            s = tl.load(SECOND + f, mask=f < F, other=0).to(tl.int32)
            root = tl.where(p == s, 1.0, 1.4142135623730951)
            phi = tl.load(q + p).to(tl.float32) * tl.load(q + s).to(tl.float32) * root
            phi = tl.where(f < F, phi, 0.0)
            m = tl.load(STATE + f[:, None] * W + w[None, :], mask=(f < F)[:, None] & (w < W)[None, :], other=0.0)
            acc += tl.sum(m.to(tl.float32) * phi[:, None], 0)
        tl.store(PARTS + ((bg * tl.num_programs(0) + split) * R + r) * WIDE + w, acc)


@triton.jit
def step_join(
    Q, K, V, HI, LO, PARTS, SIZE, Y, TOTAL,
    sqb, sqh, skb, skt, skh, svb, svt, svh,
    S, H, G, DK, DV, splits, scale2, guard,
    BK: tl.constexpr, BV: tl.constexpr, WIDE: tl.constexpr, BS: tl.constexpr,
    DECAY: tl.constexpr, NORMALIZE: tl.constexpr,
):  # fmt: skip
    """The buffered tokens, the new one last, met directly, and the parts that were read from the recurrent state.

    SIZE (B,G): Σ decay·|k|² over the tokens in the state, scaled: below the rounding error of its terms nothing is used.
    """
    bh = tl.program_id(0)
    b = (bh // H).to(tl.int64)
    h = bh % H
    R = H // G
    g = h // R
    bg = b * G + g
    ck = tl.arange(0, BK)
    cv = tl.arange(0, BV)
    q = tl.load(Q + b * sqb + h * sqh + ck, mask=ck < DK, other=0.0).to(tl.float32)
    acc = tl.zeros([BV], dtype=tl.float32)
    total = tl.sum(acc, 0)
    for s0 in range(0, S, BS):
        s = s0 + tl.arange(0, BS)
        real = (s < S)[:, None]
        k = tl.load(K + b * skb + g * skh + s[:, None] * skt + ck[None, :], mask=real & (ck < DK)[None, :], other=0.0)
        v = tl.load(V + b * svb + g * svh + s[:, None] * svt + cv[None, :], mask=real & (cv < DV)[None, :], other=0.0)
        x = tl.sum(k.to(tl.float32) * q[None, :], 1)
        w = x * x * scale2
        if DECAY:
            end = bg * S + S - 1
            hi = tl.load(HI + end) - vector_of(HI + bg * S, s, S)
            w = w * tl.exp2(hi + (tl.load(LO + end) - vector_of(LO + bg * S, s, S)))
        total += tl.sum(w, 0)
        acc += tl.sum(v.to(tl.float32) * w[:, None], 0)
    read = tl.zeros([BV], dtype=tl.float32)
    read_total = tl.sum(read, 0)
    for n in range(splits):
        part = PARTS + ((bg * splits + n) * R + h % R) * WIDE
        read += tl.load(part + cv, mask=cv < DV, other=0.0)
        if NORMALIZE:
            read_total += tl.load(part + DV)
    unused = read_total < 0.0
    if NORMALIZE:
        unused = read_total <= guard * tl.sum(q * q, 0) * tl.load(SIZE + bg)
        read = tl.where(unused, 0.0, read)
        read_total = tl.where(unused, 0.0, read_total)
    if DECAY:
        across = tl.exp2(tl.load(HI + bg * S + S - 1) + tl.load(LO + bg * S + S - 1))  # the sums begin at the state
        read = read * across
        read_total = read_total * across
    acc += read
    total += read_total
    if NORMALIZE:
        nothing = total < 1e-30
        acc = tl.where(nothing, 0.0, acc / tl.where(nothing, 1.0, total))
        total = tl.where(nothing, float("inf"), total) / scale2
        total = tl.where(unused, -total, total)
    tl.store(Y + bh.to(tl.int64) * DV + cv, acc.to(Y.dtype.element_ty), mask=cv < DV)
    tl.store(TOTAL + bh, total)
