// Tokens out of the caller's strided tensors into small dense blocks, padded with zeros to whole tiles, and back.
#pragma once
#include <utility>

#include "maclaurin.h"
#include "simd.h"

namespace maclaurin::MACLAURIN_VARIANT {

MACLAURIN_INLINE int64_t round_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }
MACLAURIN_INLINE int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }
MACLAURIN_INLINE int64_t larger(int64_t x, int64_t y) { return x > y ? x : y; }

MACLAURIN_INLINE float* row(const MaclaurinTensor& tensor, int64_t b, int64_t t, int64_t h) {
    return tensor.data + b * tensor.batch + t * tensor.time + h * tensor.head;
}

MACLAURIN_INLINE void fill(float* to, int64_t count, float value) {
    for (int64_t i = 0; i < count; ++i) to[i] = value;
}

// Some channels of a token: a whole vector, or what is left at the end.
struct WholeVector {
    MACLAURIN_INLINE vec read(const float* p) const { return load(p); }
    MACLAURIN_INLINE void write(float* p, vec x) const { store(p, x); }
};
struct PartOfVector {
    int64_t count;
    MACLAURIN_INLINE vec read(const float* p) const {
        vec x{};
        std::memcpy(&x, p, count * sizeof(float));
        return x;
    }
    MACLAURIN_INLINE void write(float* p, vec x) const { std::memcpy(p, &x, count * sizeof(float)); }
};

// use(c, vector) for the channels from `first` to `end`.
template <class Use>
MACLAURIN_INLINE void over_vectors(int64_t first, int64_t end, const Use& use) {
    int64_t c = first;
    for (; c + LANES <= end; c += LANES) use(c, WholeVector{});
    if (c < end) use(c, PartOfVector{end - c});
}

// to[i,c] = from[i,c] · times for i < rows, c < columns; the rest of padded_rows x to_row is zero.
inline void copy_rows(float* to, int64_t to_row, int64_t padded_rows, const float* from, int64_t from_row, int64_t rows,
                      int64_t columns, float times) {
    for (int64_t i = 0; i < rows; ++i) {
        int64_t c = 0;
        for (; c + LANES <= columns; c += LANES) store(to + i * to_row + c, load(from + i * from_row + c) * times);
        for (; c < columns; ++c) to[i * to_row + c] = from[i * from_row + c] * times;
        fill(to + i * to_row + c, to_row - c, 0);
    }
    fill(to + rows * to_row, (padded_rows - rows) * to_row, 0);
}

template <int HALF, int... L>
MACLAURIN_INLINE void swap_halves(vec& upper, vec& lower, std::integer_sequence<int, L...>) {
#if defined(__clang__)
    const vec first = __builtin_shufflevector(upper, lower, ((L & HALF) ? LANES + L - HALF : L)...);
    lower = __builtin_shufflevector(upper, lower, ((L & HALF) ? LANES + L : L + HALF)...);
#else
    const vec first = __builtin_shuffle(upper, lower, ivec{((L & HALF) ? LANES + L - HALF : L)...});
    lower = __builtin_shuffle(upper, lower, ivec{((L & HALF) ? LANES + L : L + HALF)...});
#endif
    upper = first;
}

// A LANES x LANES block in registers: transpose the blocks of half the size, then exchange the two off the diagonal.
template <int HALF>
MACLAURIN_INLINE void transpose_square(vec (&x)[LANES]) {
    if constexpr (HALF > 1) transpose_square<HALF / 2>(x);
    for (int i = 0; i < LANES; ++i)
        if ((i & HALF) == 0) swap_halves<HALF>(x[i], x[i + HALF], std::make_integer_sequence<int, LANES>{});
}

// to[c,i] = from[i,c] · times for i < rows, c < columns; columns rows .. padded_rows of `to` are zero.
inline void transpose_rows(float* to, int64_t to_row, int64_t padded_rows, const float* from, int64_t from_row, int64_t rows,
                           int64_t columns, float times) {
    const int64_t whole_rows = rows / LANES * LANES, whole_columns = columns / LANES * LANES;
    for (int64_t i = 0; i < whole_rows; i += LANES)
        for (int64_t c = 0; c < whole_columns; c += LANES) {
            vec square[LANES];
            for (int l = 0; l < LANES; ++l) square[l] = load(from + (i + l) * from_row + c) * times;
            transpose_square<LANES / 2>(square);
            for (int l = 0; l < LANES; ++l) store(to + (c + l) * to_row + i, square[l]);
        }
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t c = i < whole_rows ? whole_columns : 0; c < columns; ++c)
            to[c * to_row + i] = from[i * from_row + c] * times;
    for (int64_t c = 0; c < columns && rows < padded_rows; ++c) fill(to + c * to_row + rows, padded_rows - rows, 0);
}

}  // namespace maclaurin::MACLAURIN_VARIANT
