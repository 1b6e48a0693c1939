// The state of first-order attention: S [key channel][value channel], and z [key channel], the column that sums the keys.
#pragma once
#include "linear_block.h"

namespace maclaurin::MACLAURIN_VARIANT {

struct LinearState {
    float *s, *z;
    int64_t k_row, v_row;

    LinearState(Arena& arena, const LinearShape& shape)
        : s(arena.take(shape.k_row * shape.v_row)),
          z(arena.take(shape.k_row)),
          k_row(shape.k_row),
          v_row(shape.v_row) {}

    // One of several, in memory of `floats` each.
    LinearState(float* begin, const LinearShape& shape)
        : s(begin), z(begin + shape.k_row * shape.v_row), k_row(shape.k_row), v_row(shape.v_row) {}

    static int64_t floats(const LinearShape& shape) { return shape.k_row * shape.v_row + shape.k_row; }

    // From (K, V or V+1) as the caller has it; from nothing, zeros.
    void read(const float* state, const LinearShape& shape) const {
        fill(z, k_row, 0);
        if (state == nullptr) return fill(s, k_row * v_row, 0);
        copy_rows(s, v_row, k_row, state, shape.W, shape.K, shape.V, 1);
        for (int64_t c = 0; c < shape.K && shape.W > shape.V; ++c) z[c] = state[c * shape.W + shape.V];
    }

    void write(float* state, const LinearShape& shape) const {
        for (int64_t c = 0; c < shape.K; ++c) {
            for (int64_t w = 0; w < shape.V; ++w) *state++ = s[c * v_row + w];
            if (shape.W > shape.V) *state++ = z[c];
        }
    }

    // S_c = keep_c S_c + Σ_t x_tc y_t and z_c = keep_c z_c + Σ_t x_tc w_t; w = null stands for ones. The sum of a block is
    // its own and is added once: added token by token, a long state would be rounded as often as there are tokens.
    void add(const float* keep, const float* x, const float* y, const float* w, int64_t count) const {
        over_tiles(k_row, v_row, [&](int64_t i, int64_t j, auto vectors) {
            constexpr int N = decltype(vectors)::value;
            Tile<N> tile;
            tile.clear();
            tile.add_product({x + i, 1, k_row}, y + j, v_row, count);
            for (int r = 0; r < ROWS; ++r)
                for (int n = 0; n < N; ++n) tile.at[r][n] += load(s + (i + r) * v_row + j + n * LANES) * keep[i + r];
            tile.write(s + i * v_row + j, v_row);
        });
        for (int64_t c = 0; c < k_row; c += LANES) {
            vec total{};
            for (int64_t t = 0; t < count; ++t) total += load(x + t * k_row + c) * (w == nullptr ? 1 : w[t]);
            store(z + c, load(z + c) * load(keep + c) + total);
        }
    }
};

}  // namespace maclaurin::MACLAURIN_VARIANT
