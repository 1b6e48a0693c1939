// The one inner loop: a tile of C += A·B, with A's numbers broadcast and B's rows as vectors.
#pragma once
#include "simd.h"

namespace maclaurin::MACLAURIN_VARIANT {

// A matrix whose rows and steps (of the dimension that is summed over) lie at any distance.
struct Broadcast {
    const float* data;
    int64_t row, step;
};

template <int N>
struct Tile {
    vec at[ROWS][N];

    MACLAURIN_INLINE void clear() {
        for (int i = 0; i < ROWS; ++i)
            for (int n = 0; n < N; ++n) at[i][n] = vec{};
    }
    MACLAURIN_INLINE void read(const float* c, int64_t row, float times) {
        for (int i = 0; i < ROWS; ++i)
            for (int n = 0; n < N; ++n) at[i][n] = load(c + i * row + n * LANES) * times;
    }
    MACLAURIN_INLINE void write(float* c, int64_t row) const {
        for (int i = 0; i < ROWS; ++i)
            for (int n = 0; n < N; ++n) store(c + i * row + n * LANES, at[i][n]);
    }
    // at[i] += a b
    MACLAURIN_INLINE void add(int i, const vec (&b)[N], float a) {
        for (int n = 0; n < N; ++n) at[i][n] += b[n] * a;
    }
    // at[i] += Σ_d a[i,d] b[d]
    MACLAURIN_INLINE void add_product(Broadcast a, const float* b, int64_t b_step, int64_t depth) {
        for (int64_t d = 0; d < depth; ++d) {
            vec row[N];
            for (int n = 0; n < N; ++n) row[n] = load(b + d * b_step + n * LANES);
            for (int i = 0; i < ROWS; ++i) {
                const vec x = all(a.data[i * a.row + d * a.step]);
                for (int n = 0; n < N; ++n) at[i][n] += x * row[n];
            }
        }
    }
};

template <int N>
MACLAURIN_INLINE void add_product_tile(float* c, int64_t c_row, float keep, Broadcast a, const float* b, int64_t b_step,
                                       int64_t depth) {
    Tile<N> tile;
    tile.read(c, c_row, keep);
    tile.add_product(a, b, b_step, depth);
    tile.write(c, c_row);
}

// C = keep·C + A·B for `rows` rows, a multiple of ROWS, and `columns`, a multiple of LANES. Not inlined: among the pointers
// of a caller the compiler runs out of registers and moves a row of B to the stack, which costs a third of the speed.
__attribute__((noinline)) inline void add_product(float* c, int64_t c_row, float keep, int64_t rows, int64_t columns,
                                                  Broadcast a, const float* b, int64_t b_step, int64_t depth) {
    for (int64_t i = 0; i < rows; i += ROWS) {
        const Broadcast panel{a.data + i * a.row, a.row, a.step};
        int64_t j = 0;
        for (; j + GROUP <= columns; j += GROUP)
            add_product_tile<COLS>(c + i * c_row + j, c_row, keep, panel, b + j, b_step, depth);
        for (; j < columns; j += LANES) add_product_tile<1>(c + i * c_row + j, c_row, keep, panel, b + j, b_step, depth);
    }
}

}  // namespace maclaurin::MACLAURIN_VARIANT
