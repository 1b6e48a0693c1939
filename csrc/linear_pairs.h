// The weights of the pairs within a block, Σ_c q_ic k_jc · (decay between them in channel c), and their gradients.
#pragma once
#include "linear_block.h"

namespace maclaurin::MACLAURIN_VARIANT {

// weights [key][query] from q [channel][query] and k [key][k_row]: with one decay per head, products and then factors.
inline void weigh(float* weights, const float* q, const float* k, const LinearShape& shape, const BlockDecay<false>& decay,
                  int64_t count, float*) {
    constexpr int64_t ROW = BLOCK<false>;
    over_pairs<ROW>(weights, count, [&](int64_t i, int64_t j, auto vectors) {
        constexpr int N = decltype(vectors)::value;
        Tile<N> tile;
        tile.clear();
        tile.add_product({k + i * shape.k_row, shape.k_row, 1}, q + j, ROW, shape.K);
        for (int r = 0; r < ROWS; ++r)
            for (int n = 0; n < N; ++n) tile.at[r][n] *= load(decay.pairs + (i + r) * ROW + j + n * LANES);
        tile.write(weights + i * ROW + j, ROW);
    });
}

// With one decay per channel. For LANES queries at a time, from the last key to the first, q times the decay so far; a query
// enters when its own key is reached. `carried` [K][LANES] keeps it from one block of LANES keys to the one before.
inline void weigh(float* weights, const float* q, const float* k, const LinearShape& shape, const BlockDecay<true>& decay,
                  int64_t count, float* carried) {
    constexpr int64_t ROW = BLOCK<true>;
    const ivec lane = lane_numbers();
    const int64_t blocks = round_up(count, LANES) / LANES;
    for (int64_t n = 0; n < blocks; ++n)
        for (int64_t m = blocks - 1; m >= 0; --m) {
            float* to = weights + m * LANES * ROW + n * LANES;
            vec sums[LANES] = {};
            for (int64_t c = 0; c < shape.K && m <= n; ++c) {
                const float *k_c = k + m * LANES * shape.k_row + c, *factor_c = decay.each + m * LANES * shape.k_row + c;
                const vec own = load(q + c * ROW + n * LANES);
                vec seen{};
                if (m < n) seen = load(carried + c * LANES) * factor_c[LANES * shape.k_row];
#pragma GCC unroll 16
                for (int l = LANES - 1; l >= 0; --l) {
                    if (l < LANES - 1) seen *= factor_c[(l + 1) * shape.k_row];
                    if (m == n) seen = lane == ivec{} + l ? own : seen;
                    sums[l] += seen * k_c[l * shape.k_row];
                }
                store(carried + c * LANES, seen);
            }
            for (int l = 0; l < LANES; ++l) store(to + l * ROW, sums[l]);
        }
}

// The gradients of the weights, [key][query]: dy_i·v_j + dtotal_i, with dy [value channel][query]; times the decay if it is
// one per head. The diagonal, where there is no decay, goes to `own` and is zero in the matrix.
template <bool PER_CHANNEL>
inline void weigh_backward(float* dweights, float* own, const float* dy, const float* dtotal, const float* v,
                           const LinearShape& shape, const BlockDecay<PER_CHANNEL>& decay, int64_t count) {
    constexpr int64_t ROW = BLOCK<PER_CHANNEL>;
    over_pairs<ROW>(dweights, count, [&](int64_t i, int64_t j, auto vectors) {
        constexpr int N = decltype(vectors)::value;
        Tile<N> tile;
        for (int r = 0; r < ROWS; ++r)
            for (int n = 0; n < N; ++n) tile.at[r][n] = load(dtotal + j + n * LANES);
        tile.add_product({v + i * shape.v_row, shape.v_row, 1}, dy + j, ROW, shape.V);
        if constexpr (!PER_CHANNEL)
            for (int r = 0; r < ROWS; ++r)
                for (int n = 0; n < N; ++n) tile.at[r][n] *= load(decay.pairs + (i + r) * ROW + j + n * LANES);
        tile.write(dweights + i * ROW + j, ROW);
    });
    for (int64_t i = 0; i < count; ++i) {
        own[i] = dweights[i * ROW + i];
        dweights[i * ROW + i] = 0;
    }
}

// dq_i += Σ_{j<i} dweights_ji k_j, decayed.
inline void add_to_dq(float* dq, const float* dweights, const float* k, const LinearShape& shape, const BlockDecay<false>&,
                      int64_t count) {
    constexpr int64_t ROW = BLOCK<false>;
    over_tiles(round_up(count, ROWS), shape.k_row, [&](int64_t i, int64_t j, auto vectors) {
        add_product_tile<decltype(vectors)::value>(dq + i * shape.k_row + j, shape.k_row, 1, {dweights + i, 1, ROW}, k + j,
                                                   shape.k_row, smaller(count, i + ROWS));
    });
}

inline void add_to_dq(float* dq, const float* dweights, const float* k, const LinearShape& shape,
                      const BlockDecay<true>& decay, int64_t count) {
    constexpr int64_t ROW = BLOCK<true>;
    for (int64_t c = 0; c < shape.k_row; c += LANES)
        for (int64_t i = 1; i < count; ++i) {
            vec gradient{};
            for (int64_t j = 0; j < i; ++j)
                gradient = gradient * decay.at(decay.each, j, c) + load(k + j * shape.k_row + c) * dweights[j * ROW + i];
            float* to = dq + i * shape.k_row + c;
            store(to, load(to) + gradient * decay.at(decay.each, i, c));
        }
}

// dk_j += Σ_{i>j} dweights_ji q_i, decayed.
inline void add_to_dk(float* dk, const float* dweights, const float* q, const LinearShape& shape, const BlockDecay<false>&,
                      int64_t count) {
    constexpr int64_t ROW = BLOCK<false>;
    over_tiles(round_up(count, ROWS), shape.k_row, [&](int64_t j, int64_t c, auto vectors) {
        add_product_tile<decltype(vectors)::value>(dk + j * shape.k_row + c, shape.k_row, 1,
                                                   {dweights + j * ROW + j, ROW, 1}, q + j * shape.k_row + c, shape.k_row,
                                                   count - j);
    });
}

inline void add_to_dk(float* dk, const float* dweights, const float* q, const LinearShape& shape,
                      const BlockDecay<true>& decay, int64_t count) {
    constexpr int64_t ROW = BLOCK<true>;
    for (int64_t c = 0; c < shape.k_row; c += LANES)
        for (int64_t j = 0; j + 1 < count; ++j) {
            vec gradient{};
            for (int64_t i = count - 1; i > j; --i)
                gradient = (gradient + load(q + i * shape.k_row + c) * dweights[j * ROW + i]) * decay.at(decay.each, i, c);
            float* to = dk + j * shape.k_row + c;
            store(to, load(to) + gradient);
        }
}

}  // namespace maclaurin::MACLAURIN_VARIANT
