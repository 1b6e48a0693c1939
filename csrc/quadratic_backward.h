// The backward of the quadratic form: one task per key-value head, because all of its queries add to the same keys.
#pragma once
#include "attend_backward.h"
#include "decay_backward.h"
#include "quadratic_forward.h"

namespace maclaurin::MACLAURIN_VARIANT {

constexpr int64_t GROUPS = QUERIES / GROUP;

struct QuadraticBackwardSizes {
    Shape shape;
    int64_t S;
};

struct QuadraticBackwardBuffers {
    QueryGroup groups[GROUPS];
    float *k, *v, *weights, *dscores;
    float *dk, *dv;  // of all keys
    double* d_sums;

    QuadraticBackwardBuffers(Arena& arena, const QuadraticBackwardSizes& sizes)
        : groups{{arena, sizes.shape}, {arena, sizes.shape}, {arena, sizes.shape}, {arena, sizes.shape}},
          k(arena.take(KEYS * sizes.shape.k_row)),
          v(arena.take(KEYS * sizes.shape.v_row)),
          weights(arena.take(KEYS * GROUP)),
          dscores(arena.take(KEYS * GROUP)),
          dk(arena.take(round_up(sizes.S, KEYS) * sizes.shape.k_row)),
          dv(arena.take(round_up(sizes.S, KEYS) * sizes.shape.v_row)),
          d_sums(reinterpret_cast<double*>(arena.take(2 * sizes.S))) {}
};
static_assert(GROUPS == 4, "the buffers above are written out for four groups");

template <bool EXPONENTIAL>
void quadratic_gradients(const MaclaurinAttention& call, const Shape& shape, const QuadraticBackwardBuffers& buffers,
                         const double* decay_sums, int64_t b, int64_t h, int64_t start) {
    const int64_t g = h / (call.H / call.G), queries = smaller(QUERIES, call.T - start);
    const int64_t position = call.S - call.T + start, end = position + queries;
    SeenBuffers seen;
    for (int64_t i = 0; i < queries; i += GROUP)
        buffers.groups[i / GROUP].pack<EXPONENTIAL>(call, shape, b, h, start + i, smaller(GROUP, queries - i));
    for (int64_t begin = 0; begin < end; begin += KEYS) {
        const int64_t keys = smaller(KEYS, end - begin);
        pack_keys(buffers.k, buffers.v, call, shape, b, g, begin, keys, round_up(keys, ROWS));
        const KeyGradients to{buffers.dk + begin * shape.k_row, buffers.dv + begin * shape.v_row,
                              EXPONENTIAL && decay_sums != nullptr ? buffers.d_sums + begin : nullptr};
        for (int64_t i = 0; i < queries; i += GROUP) {
            const int64_t count = smaller(GROUP, queries - i), met = smaller(keys, position + i + count - begin);
            if (met <= 0) continue;
            const KeyBlock block{buffers.k, buffers.v, shape.k_row, shape.v_row, met, round_up(met, ROWS),
                                 call.constant != 0};
            attend_backward<EXPONENTIAL, Wanted::ALL>(buffers.groups[i / GROUP], count, shape, block, to,
                                                      {decay_sums, position + i, count, begin}, seen, buffers.weights,
                                                      buffers.dscores);
        }
    }
    for (int64_t i = 0; i < queries; ++i) {
        const float* dq = buffers.groups[i / GROUP].dq + i % GROUP * shape.k_row;
        copy_rows(row(call.dq, b, start + i, h), shape.K, 1, dq, 0, 1, shape.K, 1);
    }
}

inline bool quadratic_backward(const MaclaurinAttention& call) {
    const QuadraticBackwardSizes sizes{Shape(call.K, call.V), call.S};
    const Shape& shape = sizes.shape;
    const AllSums sums(call);
    if (sums.failed()) return false;
    return over_heads(call, [&](int64_t b, int64_t g) {
        return with_buffers<QuadraticBackwardBuffers>(sizes, [&](const QuadraticBackwardBuffers& buffers) {
            const double* decay_sums = sums.of_head(b, g);
            const int64_t R = call.H / call.G;
            fill(buffers.dk, round_up(call.S, KEYS) * shape.k_row, 0);
            fill(buffers.dv, round_up(call.S, KEYS) * shape.v_row, 0);
            for (int64_t s = 0; s < call.S; ++s) buffers.d_sums[s] = 0;
            for (int64_t h = g * R; h < (g + 1) * R; ++h)
                for (int64_t start = 0; start < call.T; start += QUERIES) {
                    if (call.exponential) quadratic_gradients<true>(call, shape, buffers, decay_sums, b, h, start);
                    else quadratic_gradients<false>(call, shape, buffers, decay_sums, b, h, start);
                }
            for (int64_t s = 0; s < call.S; ++s) {
                copy_rows(row(call.dk, b, s, g), shape.K, 1, buffers.dk + s * shape.k_row, 0, 1, shape.K, call.scale);
                copy_rows(row(call.dv, b, s, g), shape.V, 1, buffers.dv + s * shape.v_row, 0, 1, shape.V, 1);
            }
            if (decay_sums == nullptr) return;
            // the sum of w dw over the pairs of a query is zero for exponential scores, because rows are normalised
            if (call.exponential)
                finish_decay(call, b, g, SMALLEST_LOG_DECAY_OF_SCORES, [&](int64_t s) { return buffers.d_sums[s]; });
            else finish_decay_of_squares(call, b, g);
        });
    });
}

}  // namespace maclaurin::MACLAURIN_VARIANT
