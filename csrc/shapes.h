// The sizes of one call in whole tiles, and the parts of its inputs that a head's task works on.
#pragma once
#include "arena.h"
#include "decay.h"

namespace maclaurin::MACLAURIN_VARIANT {

struct Shape {
    int64_t K, V, k_row, v_row;  // channels, and the lengths of their rows in whole vectors

    Shape(int64_t K, int64_t V) : K(K), V(V), k_row(round_up(K, LANES)), v_row(round_up(V, LANES)) {}
};

// Whether a call has all pairs of its queries.
inline bool one_call(const MaclaurinAttention& call) {
    return call.way == MACLAURIN_CAUSAL || call.way == MACLAURIN_ALL;
}

// One task for each key-value head, on all threads; the task returns false where memory ran out.
template <class Call, class OneHead>
bool over_heads(const Call& call, const OneHead& one_head) {
    bool failed = false;
    parallel_for(call.B * call.G, call.threads, [&](int64_t n) {
        const FlushSubnormals flush;
        if (!one_head(n / call.G, n % call.G)) __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
    });
    return !failed;
}

// Keys and values in rows: k [tokens][k_row] times the scale, v [tokens][v_row]. Rows up to `padded` are zero.
inline void pack_keys(float* k, float* v, const MaclaurinAttention& call, const Shape& shape, int64_t b, int64_t g,
                      int64_t begin, int64_t keys, int64_t padded) {
    copy_rows(k, shape.k_row, padded, row(call.k, b, begin, g), call.k.time, keys, call.K, call.scale);
    copy_rows(v, shape.v_row, padded, row(call.v, b, begin, g), call.v.time, keys, call.V, 1);
}

}  // namespace maclaurin::MACLAURIN_VARIANT
