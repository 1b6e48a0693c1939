// The selective scan h_t = exp(-dt_t rate) h_{t-1} + (dt_t x_t) b_tᵀ, y_t = h_t c_t. A task keeps the state of its channels
// in a first-level cache, as [state dimension][channel]. The gradient walks back over blocks of tokens, each computed again
// from the state at its start.
#pragma once
#include "arena.h"
#include "scan.h"

namespace maclaurin::MACLAURIN_VARIANT {

constexpr int64_t SELECTIVE_BLOCK = 16;  // tokens whose states and decays are kept at a time, backward

// Some channels of (C,N) or (B,C,N) as [N][SCAN_CHANNELS], zero where absent; and back.
inline void read_state(float* to, const float* from, int64_t N, int64_t count, float times) {
    if (from == nullptr) return fill(to, N * SCAN_CHANNELS, 0);
    transpose_rows(to, SCAN_CHANNELS, SCAN_CHANNELS, from, N, count, N, times);
}
inline void write_state(float* to, const float* from, int64_t N, int64_t count, float times) {
    if (to != nullptr) transpose_rows(to, N, N, from, SCAN_CHANNELS, N, count, times);
}
MACLAURIN_INLINE const float* state_of(const MaclaurinSelective& call, const float* state, int64_t b, int64_t first) {
    return state == nullptr ? nullptr : state + (b * call.C + first) * call.N;
}
MACLAURIN_INLINE float* state_of(const MaclaurinSelective& call, float* state, int64_t b, int64_t first) {
    return state == nullptr ? nullptr : state + (b * call.C + first) * call.N;
}

struct SelectiveForwardBuffers {
    float *rate, *h;  // rate: with a minus sign

    SelectiveForwardBuffers(Arena& arena, const MaclaurinSelective& call)
        : rate(arena.take(call.N * SCAN_CHANNELS)), h(arena.take(call.N * SCAN_CHANNELS)) {}
};

// dt and dt·x of one token.
template <bool WHOLE>
MACLAURIN_INLINE void load_input(const MaclaurinSelective& call, int64_t b, int64_t t, int64_t first, int64_t count,
                                 vec (&dt)[SCAN_VECTORS], vec (&u)[SCAN_VECTORS]) {
    load_channels<WHOLE>(u, row(call.x, b, t, 0) + first, count);
    load_channels<WHOLE>(dt, row(call.dt, b, t, 0) + first, count);
    for (int v = 0; v < SCAN_VECTORS; ++v) u[v] *= dt[v];
}

template <bool WHOLE>
inline void selective_forward_channels(const MaclaurinSelective& call, const SelectiveForwardBuffers& buffers, int64_t b,
                                       int64_t first, int64_t count) {
    vec dt[SCAN_VECTORS], u[SCAN_VECTORS];
    for (int64_t t = 0; t < call.T; ++t) {
        load_input<WHOLE>(call, b, t, first, count, dt, u);
        const float *b_row = row(call.b, b, t, 0), *c_row = row(call.c, b, t, 0);
        vec y[SCAN_VECTORS] = {};
        for (int64_t n = 0; n < call.N; ++n) {
            const float *rate = buffers.rate + n * SCAN_CHANNELS, in = b_row[n], out = c_row[n];
            float* state = buffers.h + n * SCAN_CHANNELS;
            for (int v = 0; v < SCAN_VECTORS; ++v) {
                const vec h = factor(dt[v] * load(rate + v * LANES)) * load(state + v * LANES) + u[v] * in;
                store(state + v * LANES, h);
                y[v] += h * out;
            }
        }
        store_channels<WHOLE>(row(call.y, b, t, 0) + first, y, count);
    }
}

inline bool selective_forward(const MaclaurinSelective& call) {
    bool failed = false;
    over_channels(call, [&](int64_t b, int64_t, int64_t first, int64_t count) {
        const bool done = with_buffers<SelectiveForwardBuffers>(call, [&](const SelectiveForwardBuffers& buffers) {
            read_state(buffers.rate, call.rate + first * call.N, call.N, count, -1);
            read_state(buffers.h, state_of(call, call.start, b, first), call.N, count, 1);
            if (count == SCAN_CHANNELS) selective_forward_channels<true>(call, buffers, b, first, count);
            else selective_forward_channels<false>(call, buffers, b, first, count);
            write_state(state_of(call, call.new_state, b, first), buffers.h, call.N, count, 1);
        });
        if (!done) __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
    });
    return !failed;
}

struct SelectiveBackwardBuffers {
    int64_t size;                       // of one state
    float *rate, *drate, *block_drate;  // with a minus sign
    float* starts;                      // the state at the start of every block
    float *h, *decay;                   // of the tokens of a block, h one more
    float* g;                           // the gradient of the state
    float *db, *dc, *sums;              // of one token: a vector for each state dimension, and their sums

    SelectiveBackwardBuffers(Arena& arena, const MaclaurinSelective& call)
        : size(call.N * SCAN_CHANNELS),
          rate(arena.take(size)),
          drate(arena.take(size)),
          block_drate(arena.take(size)),
          starts(arena.take(round_up(call.T, SELECTIVE_BLOCK) / SELECTIVE_BLOCK * size)),
          h(arena.take((SELECTIVE_BLOCK + 1) * size)),
          decay(arena.take(SELECTIVE_BLOCK * size)),
          g(arena.take(size)),
          db(arena.take(round_up(call.N, LANES) * LANES)),
          dc(arena.take(round_up(call.N, LANES) * LANES)),
          sums(arena.take(round_up(call.N, LANES))) {}
};

// The states and decays of tokens begin .. end-1, from buffers.h on.
template <bool WHOLE>
inline void selective_block(const MaclaurinSelective& call, const SelectiveBackwardBuffers& buffers, int64_t b,
                            int64_t begin, int64_t end, int64_t first, int64_t count) {
    vec dt[SCAN_VECTORS], u[SCAN_VECTORS];
    for (int64_t t = begin; t < end; ++t) {
        load_input<WHOLE>(call, b, t, first, count, dt, u);
        const float* b_row = row(call.b, b, t, 0);
        const int64_t at = (t - begin) * buffers.size;
        for (int64_t n = 0; n < call.N; ++n)
            for (int v = 0; v < SCAN_VECTORS; ++v) {
                const int64_t i = n * SCAN_CHANNELS + v * LANES;
                const vec decay = factor(dt[v] * load(buffers.rate + i));
                store(buffers.decay + at + i, decay);
                store(buffers.h + at + buffers.size + i, decay * load(buffers.h + at + i) + u[v] * b_row[n]);
            }
    }
}

// to[n] = the sum of the vector n.
inline void sum_lanes(float* to, const float* sums, int64_t N) {
    for (int64_t n = 0; n < N; n += LANES) {
        vec square[LANES];
        for (int l = 0; l < LANES; ++l) square[l] = load(sums + (n + l) * LANES);
        transpose_square<LANES / 2>(square);
        vec total{};
        for (int l = 0; l < LANES; ++l) total += square[l];
        store(to + n, total);
    }
}

template <bool WHOLE>
inline void selective_backward_block(const MaclaurinSelective& call, const SelectiveBackwardBuffers& buffers, int64_t b,
                                     int64_t group, int64_t begin, int64_t end, int64_t first, int64_t count) {
    vec dt[SCAN_VECTORS], x[SCAN_VECTORS], dy[SCAN_VECTORS];
    fill(buffers.block_drate, buffers.size, 0);
    for (int64_t t = end - 1; t >= begin; --t) {
        load_channels<WHOLE>(x, row(call.x, b, t, 0) + first, count);
        load_channels<WHOLE>(dt, row(call.dt, b, t, 0) + first, count);
        load_channels<WHOLE>(dy, row(call.dy, b, t, 0) + first, count);
        const float *b_row = row(call.b, b, t, 0), *c_row = row(call.c, b, t, 0);
        const float *before = buffers.h + (t - begin) * buffers.size, *after = before + buffers.size;
        const float* decay = buffers.decay + (t - begin) * buffers.size;
        vec du[SCAN_VECTORS] = {}, ddt[SCAN_VECTORS] = {};
        for (int64_t n = 0; n < call.N; ++n) {
            vec db{}, dc{};
            for (int v = 0; v < SCAN_VECTORS; ++v) {
                const int64_t i = n * SCAN_CHANNELS + v * LANES;
                const vec g = load(buffers.g + i) + dy[v] * c_row[n];
                const vec reaching = g * load(decay + i), dlog = reaching * load(before + i);
                dc += dy[v] * load(after + i);
                db += g * (dt[v] * x[v]);
                du[v] += g * b_row[n];
                ddt[v] += dlog * load(buffers.rate + i);
                store(buffers.block_drate + i, load(buffers.block_drate + i) + dlog * dt[v]);
                store(buffers.g + i, reaching);
            }
            store(buffers.db + n * LANES, db);
            store(buffers.dc + n * LANES, dc);
        }
        for (int v = 0; v < SCAN_VECTORS; ++v) {
            ddt[v] += du[v] * x[v];
            du[v] *= dt[v];
        }
        store_channels<WHOLE>(row(call.dx, b, t, 0) + first, du, count);
        store_channels<WHOLE>(row(call.ddt, b, t, 0) + first, ddt, count);
        sum_lanes(buffers.sums, buffers.db, call.N);
        std::memcpy(row(call.db, b, t, group), buffers.sums, call.N * sizeof(float));
        sum_lanes(buffers.sums, buffers.dc, call.N);
        std::memcpy(row(call.dc, b, t, group), buffers.sums, call.N * sizeof(float));
    }
    // block by block: one long chain of additions would lose digits
    for (int64_t i = 0; i < buffers.size; i += LANES)
        store(buffers.drate + i, load(buffers.drate + i) + load(buffers.block_drate + i));
}

template <bool WHOLE>
inline void selective_backward_channels(const MaclaurinSelective& call, const SelectiveBackwardBuffers& buffers, int64_t b,
                                        int64_t group, int64_t first, int64_t count) {
    const int64_t blocks = round_up(call.T, SELECTIVE_BLOCK) / SELECTIVE_BLOCK, bytes = buffers.size * sizeof(float);
    for (int64_t block = 0; block < blocks; ++block) {
        std::memcpy(buffers.starts + block * buffers.size, buffers.h, bytes);
        const int64_t begin = block * SELECTIVE_BLOCK, end = smaller(call.T, begin + SELECTIVE_BLOCK);
        selective_block<WHOLE>(call, buffers, b, begin, end, first, count);
        if (block + 1 < blocks) std::memcpy(buffers.h, buffers.h + (end - begin) * buffers.size, bytes);
    }
    for (int64_t block = blocks - 1; block >= 0; --block) {
        const int64_t begin = block * SELECTIVE_BLOCK, end = smaller(call.T, begin + SELECTIVE_BLOCK);
        if (block + 1 < blocks) {  // the last one is still there
            std::memcpy(buffers.h, buffers.starts + block * buffers.size, bytes);
            selective_block<WHOLE>(call, buffers, b, begin, end, first, count);
        }
        selective_backward_block<WHOLE>(call, buffers, b, group, begin, end, first, count);
    }
}

inline bool selective_backward(const MaclaurinSelective& call) {
    bool failed = false;
    over_channels(call, [&](int64_t b, int64_t group, int64_t first, int64_t count) {
        const bool done = with_buffers<SelectiveBackwardBuffers>(call, [&](const SelectiveBackwardBuffers& buffers) {
            read_state(buffers.rate, call.rate + first * call.N, call.N, count, -1);
            read_state(buffers.h, state_of(call, call.start, b, first), call.N, count, 1);
            read_state(buffers.g, state_of(call, call.dnew_state, b, first), call.N, count, 1);
            fill(buffers.drate, buffers.size, 0);
            fill(buffers.db, round_up(call.N, LANES) * LANES, 0);
            fill(buffers.dc, round_up(call.N, LANES) * LANES, 0);
            if (count == SCAN_CHANNELS) selective_backward_channels<true>(call, buffers, b, group, first, count);
            else selective_backward_channels<false>(call, buffers, b, group, first, count);
            write_state(state_of(call, call.drate, b, first), buffers.drate, call.N, count, -1);
            write_state(state_of(call, call.dstart, b, first), buffers.g, call.N, count, 1);
        });
        if (!done) __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
    });
    return !failed;
}

}  // namespace maclaurin::MACLAURIN_VARIANT
