"""The states before every chunk, and what is read from them.

A state of squared scores is S = Σ decay·k kᵀ ⊗ v. It is kept as pairs (I, J), I <= J, of blocks of 16 channels: 256 products
each, formed as outer products of two register tiles. Pairs off the diagonal count twice, those on it hold every product
twice: no √2, no mask, no gather. The divisor is qᵀ Z q with Z = Σ decay·k kᵀ, so there is no column of ones.

Products of low precision lose what cancels. Where keys have a common mean μ that is most of φ(q)·S, so the kernels hold
centred keys k̃ = k - μ, and beside S̃ the lower moments that make it whole, which is exact for any μ:

    (q·k)² = (q·k̃)² + 2 (q·μ)(q·k̃) + (q·μ)²,     M = Σ decay·k̃ vᵀ,     c = Σ decay·v
"""

# mypy: disable-error-code="no-untyped-def,misc,untyped-decorator,no-untyped-call"

import triton
import triton.language as tl

from maclaurin.ops.gpu.pieces import dot, times

TILE = tl.constexpr(16)
EXTRA = tl.constexpr(2)  # rows of moments behind those of the channels: Σ decay·w, and Σ decay


@triton.jit
def _pair(p, NB: tl.constexpr):
    """The blocks I <= J of pair p = 0, 1, …, NB(NB+1)/2 - 1, row by row."""
    first = 0
    second = p
    for row in tl.static_range(NB - 1):
        over = (first == row) & (second >= NB)
        second = tl.where(over, second - NB + row + 1, second)
        first = tl.where(over, first + 1, first)
    return first, second


@triton.jit
def state_at(STATES, at, DK: tl.constexpr, DV: tl.constexpr):
    """The `at`-th of the states (pairs,256,V)."""
    NB: tl.constexpr = DK // TILE
    return STATES + at * (NB * (NB + 1) // 2 * 256 * DV)


@triton.jit
def state_walk(
    X, W, WEIGHT, ACROSS, START, STATES, END,
    sxb, sxt, sxh, swb, swt, swh,
    S, H, G, chunk, chunks,
    DK: tl.constexpr, DV: tl.constexpr, BT: tl.constexpr, IB: tl.constexpr, R: tl.constexpr,
    DECAY: tl.constexpr, BACKWARD: tl.constexpr, HAS_START: tl.constexpr, HAS_END: tl.constexpr,
    P: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """STATES (B,G,chunks,pairs,256,V): Σ decay x xᵀ ⊗ w for one pair of blocks, which stays in registers along the sequence.

    Forwards (X = k, W = v) the state before each chunk; backwards (X = q, W = dy/total) the gradient of the state behind
    each chunk, where the query heads of a group add up. WEIGHT (B,G,S): the decay of a token to the end of its chunk, or
    from the start of it; ACROSS (B,G,chunks): of the whole chunk. A program takes IB of the 16 channels of block I.
    """
    NB: tl.constexpr = DK // TILE
    NP: tl.constexpr = NB * (NB + 1) // 2
    ROWS: tl.constexpr = IB * 16
    PARTS: tl.constexpr = 16 // IB
    p = tl.program_id(0) // PARTS
    part = tl.program_id(0) % PARTS
    bg = tl.program_id(1)
    b = (bg // G).to(tl.int64)
    g = bg % G
    first, second = _pair(p, NB)
    cv = tl.arange(0, DV)
    ci = first * 16 + part * IB + tl.arange(0, IB)
    cj = second * 16 + tl.arange(0, 16)
    tile = (part * ROWS + tl.arange(0, ROWS))[:, None] * DV + cv[None, :]
    acc = tl.zeros([ROWS, DV], dtype=tl.float32)
    if HAS_START:
        acc += tl.load(START + (bg * NP + p).to(tl.int64) * 256 * DV + tile)
    for n in range(chunks):
        c = chunks - 1 - n if BACKWARD else n
        at = (bg.to(tl.int64) * chunks + c) * NP + p
        tl.store(STATES + at * 256 * DV + tile, acc.to(STATES.dtype.element_ty))
        if DECAY:
            acc = acc * tl.load(ACROSS + bg * chunks + c)
        steps = tl.cdiv(min(chunk, S - c * chunk), BT)
        for m in range(steps * R):
            h = g * R + m % R
            t = c * chunk + m // R * BT + tl.arange(0, BT)
            real = t < min(c * chunk + chunk, S)
            x_h = X + b * sxb + h * sxh + t[None, :] * sxt
            xi = tl.load(x_h + ci[:, None], mask=real[None, :], other=0.0)
            xj = tl.load(x_h + cj[:, None], mask=real[None, :], other=0.0)
            w = tl.load(W + b * swb + h * swh + t[:, None] * swt + cv[None, :], mask=real[:, None], other=0.0)
            if DECAY:
                xi = xi.to(tl.float32) * tl.load(WEIGHT + bg.to(tl.int64) * S + t, mask=real, other=0.0)[None, :]
            features = times(xi[:, None, :], xj[None, :, :], P, EMULATE).reshape(ROWS, BT)
            acc = dot(features, w, acc, P, EMULATE)
    if HAS_END:
        tl.store(END + (bg * NP + p).to(tl.int64) * 256 * DV + tile, acc)


@triton.jit
def moments_of_chunk(
    X, W, WEIGHT, C, MOMENTS,
    sxb, sxt, sxh, swb, swt, swh,
    S, H, G, chunk,
    DK: tl.constexpr, DV: tl.constexpr, BT: tl.constexpr, R: tl.constexpr, HAS_C: tl.constexpr,
    P: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """MOMENTS (B,G,chunks,K+2,V) of the tokens of each chunk: Σ weight·x wᵀ, then Σ weight·w and Σ weight."""
    c = tl.program_id(0)
    bg = tl.program_id(1)
    b = (bg // G).to(tl.int64)
    g = bg % G
    ck = tl.arange(0, DK)
    cv = tl.arange(0, DV)
    acc = tl.zeros([DK, DV], dtype=tl.float32)
    sums = tl.zeros([DV], dtype=tl.float32)
    count = tl.sum(sums, 0)
    steps = tl.cdiv(min(chunk, S - c * chunk), BT)
    for m in range(steps * R):
        h = g * R + m % R
        t = c * chunk + m // R * BT + tl.arange(0, BT)
        real = t < min(c * chunk + chunk, S)
        x = tl.load(X + b * sxb + h * sxh + t[:, None] * sxt + ck[None, :], mask=real[:, None], other=0.0)
        w = tl.load(W + b * swb + h * swh + t[:, None] * swt + cv[None, :], mask=real[:, None], other=0.0)
        weight = tl.load(WEIGHT + bg.to(tl.int64) * S + t, mask=real, other=0.0)
        if HAS_C:
            weight = weight * tl.load(C + (b * H + h) * S + t, mask=real, other=0.0)
        acc = dot(tl.trans(x.to(tl.float32) * weight[:, None]), w, acc, P, EMULATE)
        sums += tl.sum(w.to(tl.float32) * weight[:, None], 0)
        count += tl.sum(weight, 0)
    out = MOMENTS + (bg.to(tl.int64) * tl.num_programs(0) + c) * (DK + EXTRA) * DV
    tl.store(out + ck[:, None] * DV + cv[None, :], acc)
    tl.store(out + DK * DV + cv, sums)
    tl.store(out + (DK + 1) * DV + cv, tl.zeros([DV], dtype=tl.float32) + count)


@triton.jit
def moments_walk(
    MOMENTS, ACROSS, START, END, chunks, N,
    BLOCK: tl.constexpr, BACKWARD: tl.constexpr, HAS_START: tl.constexpr,
):  # fmt: skip
    """In place: what each chunk adds -> what stands before it (behind it, backwards); END (B,G,N) what is left at last."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < N
    bg = tl.program_id(1).to(tl.int64)
    acc = tl.zeros([BLOCK], dtype=tl.float32)
    if HAS_START:
        acc += tl.load(START + bg * N + at, mask=inside, other=0.0)
    for n in range(chunks):
        c = chunks - 1 - n if BACKWARD else n
        place = MOMENTS + (bg * chunks + c) * N + at
        added = tl.load(place, mask=inside, other=0.0)
        tl.store(place, acc, mask=inside)
        acc = acc * tl.load(ACROSS + bg * chunks + c) + added
    tl.store(END + bg * N + at, acc, mask=inside)


@triton.jit
def read_state(
    X, sxt, rows, count, STATE, acc,
    DK: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr, P: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """acc += m(x)ᵀ S: 128 features at a time, eight channels of block I by the sixteen of block J."""
    NB: tl.constexpr = DK // TILE
    NP: tl.constexpr = NB * (NB + 1) // 2
    c8 = tl.arange(0, 8)
    c16 = tl.arange(0, 16)
    f = tl.arange(0, 128)
    cv = tl.arange(0, DV)
    row = X + rows[:, None] * sxt
    real = (rows < count)[:, None]
    for step in range(NP * 2):
        first, second = _pair(step // 2, NB)
        x8 = tl.load(row + (first * 16 + step % 2 * 8 + c8)[None, :], mask=real, other=0.0)
        x16 = tl.load(row + (second * 16 + c16)[None, :], mask=real, other=0.0)
        x8 = x8 * tl.where(first == second, 1.0, 2.0).to(x8.dtype)  # exact in any dtype
        features = times(x8[:, :, None], x16[:, None, :], P, EMULATE).reshape(BM, 128)
        s = tl.load(STATE + step * 128 * DV + f[:, None] * DV + cv[None, :])
        acc = dot(features, s, acc, P, EMULATE)
    return acc


@triton.jit
def read_moments(x, MOMENTS, BM: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, P: tl.constexpr, EMULATE: tl.constexpr):
    """xᵀ Σ decay·x wᵀ (BM, DV)"""
    a = tl.arange(0, DK)
    c = tl.arange(0, DV)
    z = tl.load(MOMENTS + a[:, None] * DV + c[None, :])
    return dot(x, z, tl.zeros([BM, DV], dtype=tl.float32), P, EMULATE)


@triton.jit
def bilinear(
    X, sxt, U, sut, rows, count, STATE, acc,
    DK: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr, P: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """acc_a += Σ_{i,w} x_i u_w S_{a,i,w} over all a and i: what the gradient by x of m(x)ᵀ S u is, halved.

    The products x_i u_w take the place of features, so nothing is contracted behind the multiplication.
    """
    NB: tl.constexpr = DK // TILE
    a = tl.arange(0, DK)
    c8 = tl.arange(0, 8)
    c16 = tl.arange(0, 16)
    f = tl.arange(0, 128)
    for step in range((DK // 8) * (DV // 16)):
        i0 = step // (DV // 16) * 8
        w0 = step % (DV // 16) * 16
        x8 = tl.load(X + rows[:, None] * sxt + (i0 + c8)[None, :], mask=(rows < count)[:, None], other=0.0)
        u16 = tl.load(U + rows[:, None] * sut + (w0 + c16)[None, :], mask=(rows < count)[:, None], other=0.0)
        products = times(x8[:, :, None], u16[:, None, :], P, EMULATE).reshape(BM, 128)
        # S_{a,i,w} lies in the pair (block of i, block of a) or, where a's block comes first, transposed in the other one
        block = i0 // 16
        low = tl.minimum(block, a // 16)
        pair = low * NB - low * (low - 1) // 2 + tl.maximum(block, a // 16) - low
        i = (i0 % 16 + f // 16)[:, None]
        inside = tl.where((block <= a // 16)[None, :], i * 16 + (a % 16)[None, :], (a % 16 * 16)[None, :] + i)
        s = tl.load(STATE + (pair[None, :] * 256 + inside) * DV + (w0 + f % 16)[:, None])
        acc = dot(products, s, acc, P, EMULATE)
    return acc
