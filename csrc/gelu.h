// The Gaussian error linear unit.
#pragma once
#include "simd.h"

namespace maclaurin::MACLAURIN_VARIANT {

// x Φ(x) and its slope.
struct Gelu {
    vec y, slope;
};
MACLAURIN_INLINE Gelu gelu(vec x) {
    const vec z = (x < 0 ? -x : x) * 0.707106781186547524f, e = exp(-z * z), t = 1.0f / (1.0f + 0.5f * z);
    // erfc(z) exp(z²) / t, a polynomial in t: least squares over Chebyshev nodes, 1.5e-7 of its value
    vec p = all(0.0431952835f);
    p = p * t - 0.234732854f;
    p = p * t + 0.493693389f;
    p = p * t - 0.454972216f;
    p = p * t + 0.132175828f;
    p = p * t - 0.0592108515f;
    p = p * t + 0.0934623115f;
    p = p * t + 0.175315991f;
    p = p * t + 0.246884574f;
    p = p * t + 0.282093754f;
    p = p * t + 0.282094795f;
    const vec tail = 0.5f * t * p * e, below = x < 0 ? tail : 1.0f - tail;
    return {x * below, below + x * e * 0.398942280401432678f};
}

}  // namespace maclaurin::MACLAURIN_VARIANT
