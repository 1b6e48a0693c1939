// One new token of first-order attention: one pass over the state, which may be written where it is read.
//     S = d S + k vᵀ,      y = qᵀ S
#pragma once
#include "attend.h"
#include "linear_state.h"
#include "shapes.h"

namespace maclaurin::MACLAURIN_VARIANT {

constexpr int64_t LINEAR_STEP_ROWS = 4;  // of the state at a time: a sum is read and written once for all of them

struct LinearStepBuffers {
    float *q, *k, *keep;  // [R][k_row], [k_row], [k_row]
    float *v, *y;         // [w_row], [R][w_row]: where outputs are normalised, one behind the values, and the divisor
    int64_t k_row, w_row;

    LinearStepBuffers(Arena& arena, const MaclaurinLinear& call)
        : k_row(round_up(call.K, LANES)), w_row(round_up(call.V + 1, LANES)) {
        const int64_t R = call.H / call.G;
        q = arena.take(R * k_row);
        k = arena.take(k_row);
        keep = arena.take(k_row);
        v = arena.take(w_row);
        y = arena.take(R * w_row);
    }
};

inline void pack_linear_step(const MaclaurinLinear& call, const LinearStepBuffers& at, int64_t b, int64_t g) {
    const int64_t R = call.H / call.G;
    copy_rows(at.q, at.k_row, R, row(call.q, b, 0, g * R), call.q.head, R, call.K, call.q_scale);
    copy_rows(at.k, at.k_row, 1, row(call.k, b, 0, g), 0, 1, call.K, call.k_scale);
    copy_rows(at.v, at.w_row, 1, row(call.v, b, 0, g), 0, 1, call.V, 1);
    if (call.normalize) at.v[call.V] = 1;
    const float* decay = call.log_decay.data == nullptr ? nullptr : row(call.log_decay, b, 0, g);
    for (int64_t c = 0; c < at.k_row; ++c)
        at.keep[c] = decay == nullptr ? 0 : call.per_channel ? decay[smaller(c, call.K - 1)] : decay[0];
    for (int64_t c = 0; c < at.k_row; c += LANES) store(at.keep + c, factor(load(at.keep + c)));
    fill(at.y, R * at.w_row, 0);
}

// N rows of a head's state from channel c on, and what they add to the sums of all of its queries.
template <int64_t N>
MACLAURIN_INLINE void linear_step_rows(const LinearStepBuffers& at, const float* from, float* to, int64_t W, int64_t R,
                                       int64_t c) {
    from += c * W;
    if (to != nullptr) to += c * W;
    int64_t w = 0;
    for (; w + LANES <= W; w += LANES) {
        vec s[N];
        for (int64_t n = 0; n < N; ++n) {
            s[n] = load(from + n * W + w) * at.keep[c + n] + load(at.v + w) * at.k[c + n];
            if (to != nullptr) store(to + n * W + w, s[n]);
        }
        for (int64_t r = 0; r < R; ++r) {
            vec sum = load(at.y + r * at.w_row + w);
            for (int64_t n = 0; n < N; ++n) sum += s[n] * at.q[r * at.k_row + c + n];
            store(at.y + r * at.w_row + w, sum);
        }
    }
    for (; w < W; ++w)
        for (int64_t n = 0; n < N; ++n) {
            const float s = from[n * W + w] * at.keep[c + n] + at.v[w] * at.k[c + n];
            if (to != nullptr) to[n * W + w] = s;
            for (int64_t r = 0; r < R; ++r) at.y[r * at.w_row + w] += s * at.q[r * at.k_row + c + n];
        }
}

inline void linear_step_of_head(const MaclaurinLinear& call, const LinearStepBuffers& at, int64_t b, int64_t g) {
    const LinearShape shape(call.K, call.V, call.normalize);
    const int64_t R = call.H / call.G, head = b * call.G + g;
    pack_linear_step(call, at, b, g);
    const float* from = call.state + head * call.state_head;
    float* to = call.new_state == nullptr ? nullptr : call.new_state + head * shape.state_size();
    int64_t c = 0;
    for (; c + LINEAR_STEP_ROWS <= call.K; c += LINEAR_STEP_ROWS)
        linear_step_rows<LINEAR_STEP_ROWS>(at, from, to, shape.W, R, c);
    for (; c < call.K; ++c) linear_step_rows<1>(at, from, to, shape.W, R, c);
    for (int64_t r = 0; r < R; ++r) {
        const float* y = at.y + r * at.w_row;
        if (call.normalize) *row(call.total, b, 0, g * R + r) = y[call.V];
        write_row(row(call.y, b, 0, g * R + r), y, call.V, call.normalize ? inverse(y[call.V]) : 1);
    }
}

inline bool linear_step(const MaclaurinLinear& call) {
    return over_heads(call, [&](int64_t b, int64_t g) {
        return with_buffers<LinearStepBuffers>(
            call, [&](const LinearStepBuffers& buffers) { linear_step_of_head(call, buffers, b, g); });
    });
}

}  // namespace maclaurin::MACLAURIN_VARIANT
