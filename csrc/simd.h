// One vector type for every instruction set, on the vector extensions of GCC and clang. This header and all that include
// it are compiled once a variant, each in a namespace of its own.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#ifndef MACLAURIN_VARIANT
#error "compile the kernels with -DMACLAURIN_VARIANT=name, see CMakeLists.txt"
#endif
#define MACLAURIN_INLINE inline __attribute__((always_inline))

namespace maclaurin::MACLAURIN_VARIANT {

// A tile of the products is ROWS broadcast numbers by COLS vectors: 16 accumulators of 32 registers, or 8 of 16.
#if defined(__AVX512F__)
constexpr int LANES = 16, ROWS = 8, COLS = 2;
#elif defined(__AVX2__)
constexpr int LANES = 8, ROWS = 4, COLS = 2;
#elif defined(__aarch64__)
constexpr int LANES = 4, ROWS = 8, COLS = 2;
#else
constexpr int LANES = 4, ROWS = 4, COLS = 2;
#endif
constexpr int GROUP = COLS * LANES;  // tokens that stand side by side in the columns of a tile

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));

MACLAURIN_INLINE vec load(const float* p) {
    vec x;
    std::memcpy(&x, p, sizeof x);
    return x;
}
MACLAURIN_INLINE void store(float* p, vec x) { std::memcpy(p, &x, sizeof x); }
MACLAURIN_INLINE vec all(float x) { return x - vec{}; }  // x + 0 would be an addition, because of -0
MACLAURIN_INLINE vec max(vec x, vec y) { return x > y ? x : y; }

MACLAURIN_INLINE float sum(vec x) {
    float total = 0;
    for (int i = 0; i < LANES; ++i) total += x[i];
    return total;
}

#if defined(__AVX2__)
// How many lanes of a comparison are true.
MACLAURIN_INLINE int32_t lanes_of(ivec compared) {
#if defined(__AVX512F__)
    return __builtin_popcount(_mm512_movepi32_mask((__m512i)compared));
#else
    return __builtin_popcount(static_cast<unsigned>(_mm256_movemask_ps((__m256)compared)));
#endif
}
#endif

// exp to about one unit in the last place for x <= 88; exactly 0 below -87, where it would be subnormal. NaN stays NaN.
MACLAURIN_INLINE vec exp(vec x) {
    const vec clamped = x < all(-87.0f) ? all(-87.0f) : x;
    const vec shifter = all(12582912.0f);  // 1.5 · 2^23: the sum's last bit counts ones
    const vec shifted = clamped * 1.44269504088896341f + shifter;
    const vec whole = shifted - shifter;
    const vec r = (clamped - whole * 0.693359375f) + whole * 2.12194440e-4f;  // ln 2 in two parts
    vec p = all(1.0f / 5040);
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    // casts of vectors keep the bits
    const ivec exponent = ((ivec)shifted << 23) + (127 << 23);
    const vec result = p * (vec)exponent;
    return x < all(-87.0f) ? vec{} : result;
}

// exp of a log decay, zero where a product with it could be subnormal: `factor` in maclaurin/ops/decay.py.
constexpr float SMALLEST_LOG_FACTOR = -60.3365448f;  // log(smallest normal float32) + 27
MACLAURIN_INLINE vec factor(vec x) { return x <= all(SMALLEST_LOG_FACTOR) ? vec{} : exp(x); }

// Subnormal numbers are zero while this lives: arithmetic on them is up to a hundred times slower.
class FlushSubnormals {
  public:
#if defined(__x86_64__)
    FlushSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
    ~FlushSubnormals() { _mm_setcsr(before_); }

  private:
    unsigned before_;
#elif defined(__aarch64__)
    FlushSubnormals() {
        asm volatile("mrs %0, fpcr" : "=r"(before_));
        asm volatile("msr fpcr, %0" ::"r"(before_ | (uint64_t{1} << 24)));
    }
    ~FlushSubnormals() { asm volatile("msr fpcr, %0" ::"r"(before_)); }

  private:
    uint64_t before_;
#endif
};

}  // namespace maclaurin::MACLAURIN_VARIANT
