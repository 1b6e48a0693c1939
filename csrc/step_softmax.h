// One new token of softmax attention: scores of all keys, their largest, and the averages of the values.
#pragma once
#include "step_keys.h"

namespace maclaurin::MACLAURIN_VARIANT {

struct StepSoftmaxBuffers {
    float *q, *sums;        // [k_row] and [v_row]
    float *left, *weights;  // [keys]: the log decay from a key to the query; scores, then weights

    StepSoftmaxBuffers(Arena& arena, const MaclaurinAttention& call)
        : q(arena.take(round_up(call.K, LANES))),
          sums(arena.take(round_up(call.V, LANES))),
          left(arena.take(round_up(call.S, LANES))),
          weights(arena.take(round_up(call.S, LANES))) {}
};

// Sums in float64, from the last key back; -inf behind the last key.
inline void pack_log_left(float* left, const MaclaurinAttention& call, int64_t b, int64_t g) {
    fill(left, call.S, 0);
    fill(left + call.S, round_up(call.S, LANES) - call.S, -__builtin_inff());
    double sum = 0;
    for (int64_t j = call.S - 1; j >= 0 && call.log_decay.data != nullptr; --j) {
        left[j] = static_cast<float>(sum);
        const double a = *row(call.log_decay, b, j, g);
        sum += a < SMALLEST_LOG_DECAY_OF_SCORES ? SMALLEST_LOG_DECAY_OF_SCORES : a;
    }
}

inline void softmax_of_query(const MaclaurinAttention& call, const StepSoftmaxBuffers& at, int64_t b, int64_t g, int64_t h) {
    const int64_t padded = round_up(call.S, LANES);
    copy_rows(at.q, round_up(call.K, LANES), 1, row(call.q, b, 0, h), call.K, 1, call.K, call.scale);
    vec largest = all(-3.0e38f);
    for (int64_t j = 0; j < padded; j += LANES) {
        const vec score = step_scores(at.q, row(call.k, b, j, g), call.k.time, call.K, smaller(LANES, call.S - j));
        const vec x = score + load(at.left + j);
        largest = max(x, largest);
        store(at.weights + j, x);
    }
    float most = largest[0];
    for (int64_t l = 1; l < LANES; ++l) most = largest[l] > most ? largest[l] : most;
    vec total{};
    for (int64_t j = 0; j < padded; j += LANES) {
        const vec weight = exp(load(at.weights + j) - most);
        total += weight;
        store(at.weights + j, weight);
    }
    fill(at.sums, round_up(call.V, LANES), 0);
    step_weighted(at.sums, at.weights, call, b, g, 0, call.S);
    const float times = inverse(sum(total));
    float* y = row(call.y, b, 0, h);
    for (int64_t c = 0; c < call.V; ++c) y[c] = at.sums[c] * times;
}

inline bool step_softmax(const MaclaurinAttention& call) {
    return over_heads(call, [&](int64_t b, int64_t g) {
        return with_buffers<StepSoftmaxBuffers>(call, [&](const StepSoftmaxBuffers& at) {
            const int64_t R = call.H / call.G;
            pack_log_left(at.left, call, b, g);
            for (int64_t r = 0; r < R; ++r) softmax_of_query(call, at, b, g, g * R + r);
        });
    });
}

}  // namespace maclaurin::MACLAURIN_VARIANT
