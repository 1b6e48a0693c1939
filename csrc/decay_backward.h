// The gradient of the log decays.
//
// A pair of a query i and a key j depends on the decay of u exactly if j < u <= i, and so does the returned state, as if
// it were read at its end. With D_t the sum of w dw over the pairs of query t, less the sum over those of key t,
//
//     da_u = Σ_{t>=u} D_t + <S_end, dS_end>
#pragma once
#include "state.h"

namespace maclaurin::MACLAURIN_VARIANT {

MACLAURIN_INLINE double dot(const float* x, const float* y, int64_t count) {
    double total = 0;
    for (int64_t i = 0; i < count; ++i) total += static_cast<double>(x[i]) * y[i];
    return total;
}

// differences(t) is D_t. Neighbouring terms cancel, hence float64. A clamped decay has no gradient.
template <class Differences>
inline void finish_decay(const MaclaurinAttention& call, int64_t b, int64_t g, double smallest,
                         const Differences& differences) {
    double total = 0;
    for (int64_t s = call.S - 1; s >= 0; --s) {
        total += differences(s);
        const float a = *row(call.log_decay, b, s, g);
        *row(call.dlog_decay, b, s, g) = static_cast<float>(total) * (a > smallest ? 1.0f : 0.0f);
    }
}

// Squared scores are homogeneous: the sum of w dw over the pairs of a query is q·dq / 2, of a key k·dk / 2. Where rows are
// normalised, and one call has all of their pairs, the former is zero. So this needs nothing but the finished gradients.
inline void finish_decay_of_squares(const MaclaurinAttention& call, int64_t b, int64_t g) {
    const int64_t R = call.H / call.G, offset = call.S - call.T, size = state_size(call), n = b * call.G + g;
    const bool of_queries = !call.normalize || call.way != MACLAURIN_CAUSAL;
    finish_decay(call, b, g, SMALLEST_LOG_DECAY, [&](int64_t s) {
        double difference = -0.5 * dot(row(call.k, b, s, g), row(call.dk, b, s, g), call.K);
        for (int64_t h = g * R; h < (g + 1) * R && s >= offset && of_queries; ++h)
            difference += 0.5 * dot(row(call.q, b, s - offset, h), row(call.dq, b, s - offset, h), call.K);
        if (s + 1 == call.folded && call.dnew_state != nullptr)
            difference += dot(call.new_state + n * size, call.dnew_state + n * size, size);
        return difference;
    });
}

}  // namespace maclaurin::MACLAURIN_VARIANT
