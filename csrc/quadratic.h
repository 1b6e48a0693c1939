// The quadratic form: every query meets every earlier key. No T x T matrix exists, only blocks of it.
#pragma once
#include "attend.h"
#include "pool.h"

namespace maclaurin::MACLAURIN_VARIANT {

constexpr int64_t QUERIES = 4 * GROUP;  // queries a task: each block of keys is copied once for all of them

// The sums of log decay of every key-value head, (B, G, S); null where there is no decay or no memory for them.
inline double* all_sums(const MaclaurinAttention& call, bool& failed) {
    if (call.log_decay.data == nullptr) return nullptr;
    double* sums = static_cast<double*>(__builtin_malloc(sizeof(double) * call.B * call.G * call.S));
    failed = sums == nullptr;
    if (failed) return nullptr;
    const double smallest = call.exponential ? SMALLEST_LOG_DECAY_OF_SCORES : SMALLEST_LOG_DECAY;
    parallel_for(call.B * call.G, call.threads, [&](int64_t n) {
        const int64_t b = n / call.G, g = n % call.G;
        cumulative(sums + n * call.S, row(call.log_decay, b, 0, g), call.log_decay.time, call.S, smallest);
    });
    return sums;
}

template <bool EXPONENTIAL>
bool quadratic_block(const MaclaurinAttention& call, const double* sums_of_head, int64_t b, int64_t h, int64_t start) {
    const FlushSubnormals flush;
    const int64_t g = h / (call.H / call.G), K = call.K, v_row = round_up(call.V, LANES), offset = call.S - call.T;
    const int64_t queries = smaller(QUERIES, call.T - start), groups = round_up(queries, GROUP) / GROUP;
    float* q = scratch(QUERIES * (K + v_row + 2) + KEYS * (K + v_row + GROUP));
    if (q == nullptr) return false;
    float *y = q + QUERIES * K, *total = y + QUERIES * v_row, *largest = total + QUERIES;
    float *k = largest + QUERIES, *v = k + KEYS * K, *weights = v + KEYS * v_row;
    SeenBuffers buffers;

    const auto group_sums = [&](int64_t i) { return Sums{y + i * GROUP * v_row, total + i * GROUP, largest + i * GROUP}; };
    for (int64_t i = 0; i < groups; ++i) {
        const int64_t count = smaller(GROUP, queries - i * GROUP);
        transpose_rows(q + i * GROUP * K, GROUP, GROUP, row(call.q, b, start + i * GROUP, h), call.q.time, count, K, 1);
        group_sums(i).start(v_row);
    }
    for (int64_t begin = 0; begin < offset + start + queries; begin += KEYS) {
        const int64_t keys = smaller(KEYS, offset + start + queries - begin), padded = round_up(keys, ROWS);
        copy_rows(k, K, padded, row(call.k, b, begin, g), call.k.time, keys, K, call.scale);
        copy_rows(v, v_row, padded, row(call.v, b, begin, g), call.v.time, keys, call.V, 1);
        for (int64_t i = 0; i < groups; ++i) {
            const int64_t first = offset + start + i * GROUP, count = smaller(GROUP, queries - i * GROUP);
            // keys after the last query of the group are left out
            const int64_t met = smaller(keys, first + count - begin);
            if (met <= 0) continue;
            const KeyBlock block{k, v, K, v_row, met, round_up(met, ROWS)};
            attend<EXPONENTIAL>(group_sums(i), q + i * GROUP * K, K, block, {sums_of_head, first, count, begin}, buffers, weights);
        }
    }
    for (int64_t i = 0; i < groups; ++i) {
        const int64_t t = start + i * GROUP, count = smaller(GROUP, queries - i * GROUP);
        finish<EXPONENTIAL>(group_sums(i), count, call.V, v_row, call.normalize, row(call.y, b, t, h), call.y.time,
                            row(call.total, b, t, h), call.total.time);
    }
    return true;
}

inline bool quadratic_forward(const MaclaurinAttention& call) {
    bool failed = false;
    double* sums = all_sums(call, failed);
    if (failed) return false;
    const int64_t blocks = round_up(call.T, QUERIES) / QUERIES, tasks = call.B * call.H * blocks;
    parallel_for(tasks, call.threads, [&](int64_t task) {
        // the last queries first: they meet the most keys, and short tasks fill the gaps at the end
        const int64_t start = (blocks - 1 - task / (call.B * call.H)) * QUERIES, n = task % (call.B * call.H);
        const int64_t b = n / call.H, h = n % call.H, g = h / (call.H / call.G);
        const double* of_head = sums == nullptr ? nullptr : sums + (b * call.G + g) * call.S;
        const bool done = call.exponential ? quadratic_block<true>(call, of_head, b, h, start)
                                           : quadratic_block<false>(call, of_head, b, h, start);
        if (!done) __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
    });
    __builtin_free(sums);
    return !failed;
}

}  // namespace maclaurin::MACLAURIN_VARIANT
