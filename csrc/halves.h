// A state in two halves of 16 bits. The upper ones are its numbers rounded to bfloat16, and all that a decoding step reads.
// The lower ones are the difference: together they are float32 to the bit, into which tokens are folded, so that rounding
// errors do not add up.
#pragma once
#include "maclaurin.h"
#include "simd.h"
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace maclaurin::MACLAURIN_VARIANT {

typedef uint32_t uvec __attribute__((vector_size(4 * LANES)));
typedef uint16_t half_vec __attribute__((vector_size(2 * LANES)));

MACLAURIN_INLINE half_vec load_bits(const uint16_t* p) {
    half_vec x;
    std::memcpy(&x, p, sizeof x);
    return x;
}
MACLAURIN_INLINE void store_bits(uint16_t* p, half_vec x) { std::memcpy(p, &x, sizeof x); }

// GCC 12 takes several instructions for what the processor does in one or two, and its header warns where there is no mask.
MACLAURIN_INLINE uvec widened(half_vec x) {
#if defined(__AVX512F__)
    return (uvec)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)x);
#elif defined(__AVX2__)
    return (uvec)_mm256_cvtepu16_epi32((__m128i)x);
#else
    return __builtin_convertvector(x, uvec);
#endif
}
MACLAURIN_INLINE uvec widened_signed(half_vec x) {
#if defined(__AVX512F__)
    return (uvec)_mm512_maskz_cvtepi16_epi32(0xffff, (__m256i)x);
#elif defined(__AVX2__)
    return (uvec)_mm256_cvtepi16_epi32((__m128i)x);
#else
    return widened(x ^ 0x8000) - 0x8000u;
#endif
}
// The lower 16 bits of each.
MACLAURIN_INLINE half_vec narrowed(uvec x) {
#if defined(__AVX512F__)
    return (half_vec)_mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)x);
#elif defined(__AVX2__)
    const __m256i lower = (__m256i)(x & 0xffffu), both = _mm256_packus_epi32(lower, lower);
    return (half_vec)_mm256_castsi256_si128(_mm256_permute4x64_epi64(both, 0x08));
#else
    return __builtin_convertvector(x, half_vec);
#endif
}

// Two upper halves side by side, of little-endian memory: a shift or a mask is quicker than widening. Loaded once: rows cross
// cache lines, and GCC would load anew for each of them.
MACLAURIN_INLINE uvec load_pairs(const uint16_t* upper) {
    uvec x;
    std::memcpy(&x, upper, sizeof x);
#if defined(__x86_64__)
    asm("" : "+v"(x));
#endif
    return x;
}
MACLAURIN_INLINE vec first_of(uvec pairs) { return (vec)(pairs << 16); }
MACLAURIN_INLINE vec second_of(uvec pairs) { return (vec)(pairs & 0xffff0000u); }

// One number, whichever way it is kept.
MACLAURIN_INLINE float number(float x) { return x; }
MACLAURIN_INLINE float number(uint16_t upper) {
    const uint32_t bits = static_cast<uint32_t>(upper) << 16;
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

MACLAURIN_INLINE vec join(half_vec upper, half_vec lower) {
    return (vec)((widened(upper) << 16) + widened_signed(lower));
}

MACLAURIN_INLINE void split(half_vec& upper, half_vec& lower, vec x) {
    const uvec bits = (uvec)(x == x ? x : all(__builtin_nanf("")));  // some NaN would be rounded to zero
    const uvec rounded = (bits + 0x8000u) >> 16;
    upper = narrowed(rounded);
    lower = narrowed(bits - (rounded << 16));
}

// `count` numbers; what does not fill a vector goes through a copy.
inline void join(float* x, const MaclaurinHalves& halves, int64_t offset, int64_t count) {
    const uint16_t *upper = halves.upper + offset, *lower = halves.lower + offset;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) store(x + i, join(load_bits(upper + i), load_bits(lower + i)));
    uint16_t ends[2][LANES] = {};
    std::memcpy(ends[0], upper + i, (count - i) * sizeof(uint16_t));
    std::memcpy(ends[1], lower + i, (count - i) * sizeof(uint16_t));
    const vec last = join(load_bits(ends[0]), load_bits(ends[1]));
    std::memcpy(x + i, &last, (count - i) * sizeof(float));
}

inline void split(const MaclaurinHalves& halves, int64_t offset, const float* x, int64_t count) {
    uint16_t *upper = halves.upper + offset, *lower = halves.lower + offset;
    half_vec parts[2];
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        split(parts[0], parts[1], load(x + i));
        store_bits(upper + i, parts[0]);
        store_bits(lower + i, parts[1]);
    }
    vec last{};
    std::memcpy(&last, x + i, (count - i) * sizeof(float));
    split(parts[0], parts[1], last);
    std::memcpy(upper + i, &parts[0], (count - i) * sizeof(uint16_t));
    std::memcpy(lower + i, &parts[1], (count - i) * sizeof(uint16_t));
}

}  // namespace maclaurin::MACLAURIN_VARIANT
