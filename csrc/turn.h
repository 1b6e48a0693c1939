// Pairs of channels turned by angles, (a, b) to (a cos - b sin, b cos + a sin); `back` turns by the opposite angles, which is the
// gradient.
#pragma once
#include "pack.h"
#include "pool.h"

namespace maclaurin::MACLAURIN_VARIANT {

constexpr int64_t TURNED = 64;  // tokens of a task

// Pairs of the same place in both halves of a head.
MACLAURIN_INLINE void turn_halves(const float* x, const float* cos, const float* sin, float* y, int64_t P, float sign) {
    over_vectors(0, P, [&](int64_t p, auto vector) {
        const vec a = vector.read(x + p), b = vector.read(x + P + p), c = vector.read(cos + p), s = vector.read(sin + p) * sign;
        vector.write(y + p, a * c - b * s);
        vector.write(y + P + p, b * c + a * s);
    });
}

MACLAURIN_INLINE void turn_neighbours(const float* x, const float* cos, const float* sin, float* y, int64_t P, float sign) {
    for (int64_t p = 0; p < P; ++p) {
        const float a = x[2 * p], b = x[2 * p + 1], s = sin[p] * sign;
        y[2 * p] = a * cos[p] - b * s;
        y[2 * p + 1] = b * cos[p] + a * s;
    }
}

inline bool turn_forward(const MaclaurinTurn& call) {
    const int64_t blocks = round_up(call.T, TURNED) / TURNED;
    const float sign = call.back ? -1.0f : 1.0f;
    parallel_for(call.B * blocks, call.threads, [&](int64_t task) {
        const FlushSubnormals flush;
        const int64_t b = task / blocks, begin = task % blocks * TURNED, end = smaller(call.T, begin + TURNED);
        for (int64_t t = begin; t < end; ++t)
            for (int64_t h = 0; h < call.H; ++h) {
                const float *x = row(call.x, b, t, h), *cos = row(call.cos, b, t, h), *sin = row(call.sin, b, t, h);
                float* y = row(call.y, b, t, h);
                if (call.interleaved) turn_neighbours(x, cos, sin, y, call.P, sign);
                else turn_halves(x, cos, sin, y, call.P, sign);
            }
    });
    return true;
}

}  // namespace maclaurin::MACLAURIN_VARIANT
