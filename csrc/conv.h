// The causal short convolution, y_t = f(bias + Σ_r weight_r x_{t-(width-1)+r}), one pass forward and one backward.
//
// Times below are padded: row u of x is time u - (width-1), so that y_t takes the rows t .. t+width-1, of which the first
// width-1 of all are those `before` the sequence.
#pragma once
#include "arena.h"
#include "pack.h"

namespace maclaurin::MACLAURIN_VARIANT {

constexpr int64_t CONV_TIMES = 64;  // a task's tokens, forward
constexpr int64_t CONV_CHANNELS =
    128;                            // a task's channels, backward: one task sums the gradient of a weight over all tokens
constexpr int64_t CONV_BLOCK = 32;  // tokens at a time, backward: with CONV_CHANNELS they stay in a first-level cache

// Exactly 0 below -87, so that it stays 0 when x multiplies it.
MACLAURIN_INLINE vec sigmoid(vec x) {
    const vec bounded = x < all(-87.0f) ? all(-87.0f) : x;
    return x < all(-87.0f) ? vec{} : all(1) / (exp(-bounded) + 1);
}
MACLAURIN_INLINE vec activate(vec x, bool silu) { return silu ? x * sigmoid(x) : x; }
MACLAURIN_INLINE vec activation_slope(vec x, bool silu) {
    if (!silu) return all(1);
    const vec s = sigmoid(x);
    return s * (x * (1 - s) + 1);
}

// Row u of the padded x; null for a row of zeros.
MACLAURIN_INLINE const float* padded_row(const MaclaurinConv& call, int64_t b, int64_t u) {
    const int64_t t = u - (call.width - 1);
    if (t >= 0) return row(call.x, b, t, 0);
    return call.before.data == nullptr ? nullptr : row(call.before, b, u, 0);
}

// weight [channel][tap] of some channels as [tap][row], and the bias behind it.
inline void pack_weight(float* to, int64_t to_row, const MaclaurinConv& call, int64_t first, int64_t channels) {
    transpose_rows(to, to_row, to_row, call.weight + first * call.width, call.width, channels, call.width, 1);
    float* bias = to + call.width * to_row;
    fill(bias, to_row, 0);
    for (int64_t c = 0; c < channels && call.bias != nullptr; ++c) bias[c] = call.bias[first + c];
}

struct ConvForwardBuffers {
    float *weight, *zeros;
    const float** inputs;  // the rows under the taps

    ConvForwardBuffers(Arena& arena, const MaclaurinConv& call)
        : weight(arena.take((call.width + 1) * round_up(call.C, LANES))),
          zeros(arena.take(round_up(call.C, LANES))),
          inputs(reinterpret_cast<const float**>(arena.take(2 * call.width))) {}
};

inline bool conv_forward(const MaclaurinConv& call) {
    const int64_t blocks = round_up(call.T, CONV_TIMES) / CONV_TIMES, c_row = round_up(call.C, LANES),
                  whole = call.C / LANES * LANES;
    bool failed = false;
    parallel_for(call.B * blocks, call.threads, [&](int64_t task) {
        const FlushSubnormals flush;
        const int64_t b = task / blocks, begin = task % blocks * CONV_TIMES, end = smaller(call.T, begin + CONV_TIMES);
        const bool done = with_buffers<ConvForwardBuffers>(call, [&](const ConvForwardBuffers& buffers) {
            pack_weight(buffers.weight, c_row, call, 0, call.C);
            fill(buffers.zeros, c_row, 0);
            for (int64_t t = begin; t < end; ++t) {
                for (int64_t r = 0; r < call.width; ++r) {
                    const float* input = padded_row(call, b, t + r);
                    buffers.inputs[r] = input == nullptr ? buffers.zeros : input;
                }
                float* y = row(call.y, b, t, 0);
                for (int64_t c = 0; c < whole; c += LANES) {
                    vec total = load(buffers.weight + call.width * c_row + c);
                    for (int64_t r = 0; r < call.width; ++r)
                        total += load(buffers.weight + r * c_row + c) * load(buffers.inputs[r] + c);
                    store(y + c, activate(total, call.silu));
                }
                for (int64_t c = whole; c < call.C; ++c) {
                    float total = buffers.weight[call.width * c_row + c];
                    for (int64_t r = 0; r < call.width; ++r) total += buffers.weight[r * c_row + c] * buffers.inputs[r][c];
                    y[c] = activate(all(total), call.silu)[0];
                }
            }
        });
        if (!done) __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
    });
    return !failed;
}

struct ConvBackwardBuffers {
    float *weight, *dweight;  // [width+1][CONV_CHANNELS], the bias last
    float *x, *dsum, *dx;     // rows of one block; dsum: the gradient of what the activation is applied to

    ConvBackwardBuffers(Arena& arena, const MaclaurinConv& call)
        : weight(arena.take((call.width + 1) * CONV_CHANNELS)),
          dweight(arena.take((call.width + 1) * CONV_CHANNELS)),
          x(arena.take((CONV_BLOCK + 2 * (call.width - 1)) * CONV_CHANNELS)),
          dsum(arena.take((CONV_BLOCK + call.width - 1) * CONV_CHANNELS)),
          dx(arena.take(CONV_BLOCK * CONV_CHANNELS)) {}
};

// One block of padded rows begin .. end-1 of one sequence, for some channels.
inline void conv_backward_block(const MaclaurinConv& call, const ConvBackwardBuffers& buffers, int64_t b, int64_t begin,
                                int64_t end, int64_t first, int64_t channels) {
    constexpr int64_t ROW = CONV_CHANNELS;
    const int64_t width = call.width, early = begin - (width - 1), columns = round_up(channels, LANES);
    for (int64_t u = early; u < end + width - 1; ++u) {
        const float* from = u < 0 || u >= call.T + width - 1 ? nullptr : padded_row(call, b, u);
        float* to = buffers.x + (u - early) * ROW;
        if (from == nullptr) fill(to, ROW, 0);
        else copy_rows(to, ROW, 1, from + first, 0, 1, channels, 1);
    }
    for (int64_t t = early; t < end; ++t) {
        float* to = buffers.dsum + (t - early) * ROW;
        if (t < 0 || t >= call.T) {
            fill(to, ROW, 0);
            continue;
        }
        copy_rows(to, ROW, 1, row(call.dy, b, t, 0) + first, 0, 1, channels, 1);
        for (int64_t c = 0; c < columns && call.silu; c += LANES) {
            vec total = load(buffers.weight + width * ROW + c);
            for (int64_t r = 0; r < width; ++r)
                total += load(buffers.weight + r * ROW + c) * load(buffers.x + (t - early + r) * ROW + c);
            store(to + c, load(to + c) * activation_slope(total, true));
        }
    }
    for (int64_t c = 0; c < columns; c += LANES) {
        const float* dsum = buffers.dsum + (width - 1) * ROW + c;  // of time `begin`
        const float* x = buffers.x + (width - 1) * ROW + c;
        for (int64_t r = 0; r < width; ++r) {
            const vec weight = load(buffers.weight + r * ROW + c);
            vec dweight{};  // of this block alone: one long chain of additions would lose digits
            for (int64_t i = 0; i < end - begin; ++i) {
                dweight += load(dsum + i * ROW) * load(x + (i + r) * ROW);
                float* dx = buffers.dx + i * ROW + c;
                store(dx, (r == 0 ? vec{} : load(dx)) + weight * load(dsum + (i - r) * ROW));
            }
            store(buffers.dweight + r * ROW + c, load(buffers.dweight + r * ROW + c) + dweight);
        }
        vec dbias{};
        for (int64_t i = 0; i < end - begin; ++i) dbias += load(dsum + i * ROW);
        store(buffers.dweight + width * ROW + c, load(buffers.dweight + width * ROW + c) + dbias);
    }
    for (int64_t u = begin; u < end; ++u) {
        const int64_t t = u - (width - 1);
        if (t < 0 && call.dbefore.data == nullptr) continue;
        float* to = (t < 0 ? row(call.dbefore, b, u, 0) : row(call.dx, b, t, 0)) + first;
        std::memcpy(to, buffers.dx + (u - begin) * ROW, channels * sizeof(float));
    }
}

inline bool conv_backward(const MaclaurinConv& call) {
    const int64_t rows = call.T + call.width - 1;
    bool failed = false;
    parallel_for(round_up(call.C, CONV_CHANNELS) / CONV_CHANNELS, call.threads, [&](int64_t task) {
        const FlushSubnormals flush;
        const int64_t first = task * CONV_CHANNELS, channels = smaller(CONV_CHANNELS, call.C - first);
        const bool done = with_buffers<ConvBackwardBuffers>(call, [&](const ConvBackwardBuffers& buffers) {
            pack_weight(buffers.weight, CONV_CHANNELS, call, first, channels);
            fill(buffers.dweight, (call.width + 1) * CONV_CHANNELS, 0);
            for (int64_t b = 0; b < call.B; ++b)
                for (int64_t begin = 0; begin < rows; begin += CONV_BLOCK)
                    conv_backward_block(call, buffers, b, begin, smaller(rows, begin + CONV_BLOCK), first, channels);
            for (int64_t c = 0; c < channels; ++c) {
                for (int64_t r = 0; r < call.width; ++r)
                    call.dweight[(first + c) * call.width + r] = buffers.dweight[r * CONV_CHANNELS + c];
                if (call.dbias != nullptr) call.dbias[first + c] = buffers.dweight[call.width * CONV_CHANNELS + c];
            }
        });
        if (!done) __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
    });
    return !failed;
}

}  // namespace maclaurin::MACLAURIN_VARIANT
