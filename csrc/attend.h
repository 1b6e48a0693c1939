// Queries against a block of keys, fused: the weights of a group exist for one block at a time.
//
// All [token][channel] blocks are padded to whole vectors, q is [channel][query] and times no scale: k carries it.
#pragma once
#include <cmath>

#include "nan.h"
#include "weights.h"

namespace maclaurin::MACLAURIN_VARIANT {

struct KeyBlock {
    const float* k;  // [padded][k_row]
    const float* v;  // [padded][v_row]
    int64_t k_row, v_row, keys, padded;
    bool constant;  // the square of the first channel counts twice
};

// The product of the first channels of a key and LANES queries.
MACLAURIN_INLINE vec first_product(const KeyBlock& block, const float* q, int64_t j, int n) {
    return load(q + n * LANES) * block.k[j * block.k_row];
}

MACLAURIN_INLINE vec squared(const KeyBlock& block, const float* q, int64_t j, int n, vec score) {
    if (!block.constant) return score * score;
    const vec first = first_product(block, q, j, n);
    return score * score + first * first;
}

// Sums over keys for one group of queries. Exponential weights are in units of exp(largest), the largest score so far.
struct Sums {
    float* y;        // [GROUP][v_row]
    float* total;    // [GROUP]
    float* largest;  // [GROUP]

    void start(int64_t v_row) const {
        fill(y, GROUP * v_row, 0);
        fill(total, GROUP, 0);
        fill(largest, GROUP, -3.0e38f);
    }
    // From the sums of another call.
    void resume(int64_t v_row, int64_t V, int64_t count, const float* y_from, int64_t y_time, const float* total_from,
                int64_t total_time) const {
        copy_rows(y, v_row, GROUP, y_from, y_time, count, V, 1);
        fill(total, GROUP, 0);
        for (int64_t i = 0; i < count; ++i) total[i] = total_from[i * total_time];
    }
};

inline void attend_squared(const Sums& sums, const float* q, int64_t K, const KeyBlock& block, const Seen& seen,
                           float* weights) {
    vec total[COLS];
    for (int n = 0; n < COLS; ++n) total[n] = load(sums.total + n * LANES);
    over_scores(block.k, block.k_row, q, K, block.padded, [&](int64_t j, int n, vec score) {
        const vec weight = squared(block, q, j, n, score) * pair(seen, j, n, true);
        total[n] += weight;
        store(weights + j * GROUP + n * LANES, weight);
    });
    for (int n = 0; n < COLS; ++n) store(sums.total + n * LANES, total[n]);
    add_product(sums.y, block.v_row, 1, GROUP, block.v_row, {weights, 1, GROUP}, block.v, block.v_row, block.keys);
}

inline void attend_exponential(const Sums& sums, const float* q, int64_t K, const KeyBlock& block, const Seen& seen,
                               float* weights) {
    vec largest[COLS];
    for (int n = 0; n < COLS; ++n) largest[n] = load(sums.largest + n * LANES);
    over_scores(block.k, block.k_row, q, K, block.padded, [&](int64_t j, int n, vec score) {
        const vec x = score + pair(seen, j, n, false);
        largest[n] = max(x, largest[n]);
        store(weights + j * GROUP + n * LANES, x);
    });
    for (int n = 0; n < COLS; ++n) {
        const vec shrink = exp(load(sums.largest + n * LANES) - largest[n]);
        vec total = load(sums.total + n * LANES) * shrink;
        for (int64_t j = 0; j < block.padded; ++j) {
            const vec weight = exp(load(weights + j * GROUP + n * LANES) - largest[n]);
            total += weight;
            store(weights + j * GROUP + n * LANES, weight);
        }
        store(sums.total + n * LANES, total);
        store(sums.largest + n * LANES, largest[n]);
        for (int l = 0; l < LANES; ++l) {
            if (shrink[l] == 1) continue;
            float* y = sums.y + (n * LANES + l) * block.v_row;
            for (int64_t c = 0; c < block.v_row; c += LANES) store(y + c, load(y + c) * shrink[l]);
        }
    }
    add_product(sums.y, block.v_row, 1, GROUP, block.v_row, {weights, 1, GROUP}, block.v, block.v_row, block.keys);
}

template <bool EXPONENTIAL>
inline void attend(const Sums& sums, const float* q, int64_t K, const KeyBlock& block, const Between& between,
                   SeenBuffers& buffers, float* weights) {
    Seen seen;
    if (!see<EXPONENTIAL>(seen, buffers, between, block.keys, block.padded)) return;
    if (EXPONENTIAL) attend_exponential(sums, q, K, block, seen, weights);
    else attend_squared(sums, q, K, block, seen, weights);
}

// Below this a divisor counts as zero: gradients would overflow. `safe_divide` in maclaurin/ops/arithmetic.py.
constexpr float SMALLEST_DIVISOR = 4.1693e-31f;  // (smallest normal float32) ^ 0.8

MACLAURIN_INLINE float inverse(float total) { return std::fabs(total) < SMALLEST_DIVISOR ? 0 : 1 / total; }

// y / total for the first `count` rows, and what the backward needs to know of the total (null: another task writes it).
// Whether a NaN was written.
template <bool EXPONENTIAL>
inline bool finish(const Sums& sums, int64_t count, int64_t V, int64_t v_row, bool normalize, float* y, int64_t y_time,
                   float* total, int64_t total_time) {
    bool nan = false;
    for (int64_t i = 0; i < count; ++i) {
        const float times = normalize ? inverse(sums.total[i]) : 1;
        nan |= write_row(y + i * y_time, sums.y + i * v_row, V, times);
        if (total != nullptr)
            total[i * total_time] = EXPONENTIAL ? sums.largest[i] + std::log(sums.total[i]) : sums.total[i];
    }
    return nan;
}

}  // namespace maclaurin::MACLAURIN_VARIANT
