// The gradient of attend.h, block by block: the weights are computed again, never stored.
//
// Squared:      w = s² D,              ds = 2 s D (dy·v + dtotal)    with dy divided by the total, dtotal = -(dy·y) / total
// Exponential:  w = exp(s + D - lse),  ds = w (dy·v + dtotal)        with dtotal = -dy·y
#pragma once
#include "attend.h"
#include "shapes.h"

namespace maclaurin::MACLAURIN_VARIANT {

// A group of queries and the gradients of its sums.
struct QueryGroup {
    float *q, *q_channels;    // [GROUP][k_row], [K][GROUP]
    float *dy, *dy_channels;  // [GROUP][v_row], [V][GROUP]: of the sums, before the division
    float *dtotal, *lse;      // [GROUP]
    float* dq;                // [GROUP][k_row]

    QueryGroup(Arena& arena, const Shape& shape)
        : q(arena.take(GROUP * shape.k_row)),
          q_channels(arena.take(GROUP * shape.K)),
          dy(arena.take(GROUP * shape.v_row)),
          dy_channels(arena.take(GROUP * shape.V)),
          dtotal(arena.take(GROUP)),
          lse(arena.take(GROUP)),
          dq(arena.take(GROUP * shape.k_row)) {}

    template <bool EXPONENTIAL>
    void pack(const MaclaurinAttention& call, const Shape& shape, int64_t b, int64_t h, int64_t t, int64_t count) const {
        copy_rows(q, shape.k_row, GROUP, row(call.q, b, t, h), call.q.time, count, shape.K, 1);
        transpose_rows(q_channels, GROUP, GROUP, q, shape.k_row, GROUP, shape.K, 1);
        gradients<EXPONENTIAL>(call, shape, dy, dtotal, b, h, t, count);
        transpose_rows(dy_channels, GROUP, GROUP, dy, shape.v_row, GROUP, shape.V, 1);
        fill(lse, GROUP, 0);
        for (int64_t i = 0; EXPONENTIAL && i < count; ++i) lse[i] = *row(call.total, b, t + i, h);
        fill(dq, GROUP * shape.k_row, 0);
    }

    // The gradients by a group's sums: rows of values [GROUP][v_row], and the total [GROUP].
    template <bool EXPONENTIAL>
    static void gradients(const MaclaurinAttention& call, const Shape& shape, float* dy, float* dtotal, int64_t b, int64_t h,
                          int64_t t, int64_t count) {
        fill(dtotal, GROUP, 0);
        for (int64_t i = 0; i < count; ++i) {
            const float *of_y = row(call.dy, b, t + i, h), *y = row(call.y, b, t + i, h);
            const bool divided = !EXPONENTIAL && call.normalize;
            const float total = divided ? *row(call.total, b, t + i, h) : 1;
            const float times = inverse(one_call(call) ? std::fabs(total) : total);
            copy_rows(dy + i * shape.v_row, shape.v_row, 1, of_y, 0, 1, shape.V, times);
            if (!EXPONENTIAL && !call.normalize) continue;
            float along = 0;
            for (int64_t c = 0; c < shape.V; ++c) along += dy[i * shape.v_row + c] * y[c];
            dtotal[i] = -along;
        }
        fill(dy + count * shape.v_row, (GROUP - count) * shape.v_row, 0);
    }
};

// Where the gradients of a block of keys are summed: [padded][k_row], [padded][v_row], and by the sum of the log decays
// at each key (null unless the scores are exponential and decay).
struct KeyGradients {
    float *dk, *dv;
    double* d_sums;
};

enum class Wanted { QUERIES, KEYS_AND_VALUES, ALL };

template <bool EXPONENTIAL, Wanted WANTED>
inline void attend_backward(const QueryGroup& group, int64_t count, const Shape& shape, const KeyBlock& block,
                            const KeyGradients& to, const Between& between, SeenBuffers& buffers, float* weights,
                            float* dscores) {
    Seen seen;
    if (!see<EXPONENTIAL>(seen, buffers, between, block.keys, block.padded)) return;
    over_scores(block.k, block.k_row, group.q_channels, shape.K, block.padded, [&](int64_t j, int n, vec score) {
        const int64_t at = j * GROUP + n * LANES;
        if (EXPONENTIAL) {
            store(weights + at, exp(score + (pair(seen, j, n, false) - load(group.lse + n * LANES))));
        } else {
            const vec seen_by = pair(seen, j, n, true), decayed = score * seen_by;
            store(weights + at, squared(block, group.q_channels, j, n, score) * seen_by);
            store(dscores + at, decayed + decayed);
        }
    });
    const float* slope = EXPONENTIAL ? weights : dscores;
    vec d_first[COLS] = {};  // of the queries' constants
    for (int64_t j = 0; j < block.padded; j += ROWS) {
        Tile<COLS> dw;
        for (int i = 0; i < ROWS; ++i)
            for (int n = 0; n < COLS; ++n) dw.at[i][n] = load(group.dtotal + n * LANES);
        dw.add_product({block.v + j * block.v_row, block.v_row, 1}, group.dy_channels, GROUP, shape.V);
        for (int i = 0; i < ROWS; ++i)
            for (int n = 0; n < COLS; ++n) {
                const int64_t at = (j + i) * GROUP + n * LANES;
                store(dscores + at, dw.at[i][n] * load(slope + at));
            }
        for (int i = 0; !EXPONENTIAL && block.constant && i < ROWS; ++i) {
            vec d_key{};
            for (int n = 0; n < COLS; ++n) {
                const vec d_product =
                    2.0f * first_product(block, group.q_channels, j + i, n) * pair(seen, j + i, n, true) * dw.at[i][n];
                d_key += d_product * load(group.q_channels + n * LANES);
                d_first[n] += d_product * block.k[(j + i) * block.k_row];
            }
            if (WANTED != Wanted::QUERIES) to.dk[(j + i) * shape.k_row] += sum(d_key);
        }
    }
    for (int64_t i = 0; WANTED != Wanted::KEYS_AND_VALUES && !EXPONENTIAL && block.constant && i < GROUP; ++i)
        group.dq[i * shape.k_row] += d_first[i / LANES][i % LANES];
    if (WANTED != Wanted::QUERIES) {
        add_product(to.dv, shape.v_row, 1, block.padded, shape.v_row, {weights, GROUP, 1}, group.dy, shape.v_row, count);
        add_product(to.dk, shape.k_row, 1, block.padded, shape.k_row, {dscores, GROUP, 1}, group.q, shape.k_row, count);
    }
    if (WANTED != Wanted::KEYS_AND_VALUES)
        add_product(group.dq, shape.k_row, 1, GROUP, shape.k_row, {dscores, 1, GROUP}, block.k, block.k_row, block.keys);
    for (int64_t j = 0; to.d_sums != nullptr && j < block.keys; ++j) {
        vec total{};
        for (int n = 0; n < GROUP; n += LANES) total += load(dscores + j * GROUP + n);
        to.d_sums[j] -= sum(total);
    }
}

}  // namespace maclaurin::MACLAURIN_VARIANT
