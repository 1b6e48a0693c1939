// A state in two halves of 16 bits. The upper ones are its numbers rounded to bfloat16, and all that a decoding step reads.
// The lower ones are the difference: together they are float32 to the bit, into which tokens are folded, so that rounding
// errors do not add up.
//
// A head is one block: upper halves [rows][columns], lower ones, and, where there are totals, these as float32 [rows]. Rows
// and columns are padded, so that vectors of every instruction set are whole and lie inside cache lines; nobody reads what
// is in the padding, but for what is folded into it. maclaurin/ops/native/halves.py lays it out.
#pragma once
#include "monomials.h"
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace maclaurin::MACLAURIN_VARIANT {

constexpr int64_t HALVES_ROWS = 16, HALVES_COLUMNS = 32;  // multiples of them
constexpr int PAIRS = 2 * LANES;                          // halves that are loaded at a time

typedef uint32_t uvec __attribute__((vector_size(4 * LANES)));
typedef int16_t half_vec __attribute__((vector_size(4 * LANES)));

// Of a head, totals counted as two each.
MACLAURIN_INLINE int64_t halves_size(int64_t K, int64_t V, bool normalize) {
    return round_up(monomial_count(K), HALVES_ROWS) * 2 * (round_up(V, HALVES_COLUMNS) + normalize);
}

struct Halves {
    int64_t columns;
    uint16_t *upper, *lower;
    float* totals;

    // The head of that number in a state of K key and V value channels.
    Halves(uint16_t* data, int64_t K, int64_t V, bool normalize, int64_t head) : columns(round_up(V, HALVES_COLUMNS)) {
        const int64_t count = round_up(monomial_count(K), HALVES_ROWS) * columns;
        upper = data + head * halves_size(K, V, normalize);
        lower = upper + count;
        totals = reinterpret_cast<float*>(lower + count);
    }
};

// Neighbours side by side, of little-endian memory: a shift or a mask takes them apart, into a vector of even columns and
// one of odd columns, quicker than widening. Loaded once, where GCC would load for each of them.
MACLAURIN_INLINE uvec load_pairs(const uint16_t* halves) {
    uvec x;
    std::memcpy(&x, halves, sizeof x);
#if defined(__x86_64__)
    asm("" : "+v"(x));
#endif
    return x;
}
MACLAURIN_INLINE void store_pairs(uint16_t* halves, uvec x) { std::memcpy(halves, &x, sizeof x); }
MACLAURIN_INLINE vec first_of(uvec pairs) { return (vec)(pairs << 16); }
MACLAURIN_INLINE vec second_of(uvec pairs) { return (vec)(pairs & 0xffff0000u); }

// Where a column stands in two vectors that were taken apart.
MACLAURIN_INLINE int64_t place_in_pairs(int64_t column) {
    return column / PAIRS * PAIRS + column % 2 * LANES + column % PAIRS / 2;
}

// Even columns of one and odd columns of the other, 16 bits each. GCC 12 takes three instructions for it.
MACLAURIN_INLINE uvec blend(uvec even, uvec odd) {
#if defined(__AVX512F__)
    return (uvec)_mm512_mask_blend_epi16(0xaaaaaaaa, (__m512i)even, (__m512i)odd);
#elif defined(__AVX2__)
    return (uvec)_mm256_blend_epi16((__m256i)even, (__m256i)odd, 0xaa);
#else
    return (even & 0xffffu) | (odd & 0xffff0000u);
#endif
}

// All ones where a lower half has the sign that its upper half was rounded up for.
MACLAURIN_INLINE half_vec rounded_up(uvec lower) { return (half_vec)lower >> 15; }

// The numbers of PAIRS columns.
MACLAURIN_INLINE void join(vec& first, vec& second, const uint16_t* upper, const uint16_t* lower) {
    const uvec above = load_pairs(upper), below = load_pairs(lower);
    const uvec bits = (uvec)((half_vec)above + rounded_up(below));
    first = (vec)blend(below, bits << 16);
    second = (vec)blend(below >> 16, bits);
}

MACLAURIN_INLINE void split(uint16_t* upper, uint16_t* lower, vec first, vec second) {
    const uvec below = blend((uvec)first, (uvec)second << 16);
    const half_vec above = (half_vec)blend((uvec)first >> 16, (uvec)second), largest_nan = (above | int16_t(0x8000)) == -1;
    store_pairs(upper, (uvec)(above - (rounded_up(below) & ~largest_nan)));  // or it would become a zero
    store_pairs(lower, below);
}

}  // namespace maclaurin::MACLAURIN_VARIANT
