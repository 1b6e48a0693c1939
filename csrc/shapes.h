// The sizes of one call in whole tiles, and the parts of its inputs that a head's task works on.
#pragma once
#include "arena.h"
#include "decay.h"

namespace maclaurin::MACLAURIN_VARIANT {

struct Shape {
    int64_t K, V, k_row, v_row;  // channels, and the lengths of their rows in whole vectors

    Shape(int64_t K, int64_t V) : K(K), V(V), k_row(round_up(K, LANES)), v_row(round_up(V, LANES)) {}
};

// One task for each key-value head, on all threads; the task returns false where memory ran out.
template <class OneHead>
bool over_heads(const MaclaurinAttention& call, const OneHead& one_head) {
    bool failed = false;
    parallel_for(call.B * call.G, call.threads, [&](int64_t n) {
        const FlushSubnormals flush;
        if (!one_head(n / call.G, n % call.G)) __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
    });
    return !failed;
}

// Keys and values in rows: k [tokens][k_row] times the scale, v [tokens][v_row]. Rows up to `padded` are zero.
inline void pack_keys(float* k, float* v, const MaclaurinAttention& call, const Shape& shape, int64_t b, int64_t g, int64_t begin,
                      int64_t keys, int64_t padded) {
    copy_rows(k, shape.k_row, padded, row(call.k, b, begin, g), call.k.time, keys, call.K, call.scale);
    copy_rows(v, shape.v_row, padded, row(call.v, b, begin, g), call.v.time, keys, call.V, 1);
}

MACLAURIN_INLINE double dot(const float* x, const float* y, int64_t count) {
    double total = 0;
    for (int64_t i = 0; i < count; ++i) total += static_cast<double>(x[i]) * y[i];
    return total;
}

// The gradient by the sums of log decay, d_sums [S], becomes the one by the log decays: token u is in all sums from u on.
// Neighbouring terms cancel, hence float64. A clamped decay has no gradient.
inline void finish_decay(const MaclaurinAttention& call, int64_t b, int64_t g, const double* d_sums, double smallest) {
    double total = 0;
    for (int64_t s = call.S - 1; s >= 0; --s) {
        total += d_sums[s];
        const float a = *row(call.log_decay, b, s, g);
        *row(call.dlog_decay, b, s, g) = static_cast<float>(total) * (a > smallest ? 1.0f : 0.0f);
    }
}

}  // namespace maclaurin::MACLAURIN_VARIANT
