// Whether a NaN is among numbers: what keeps every call causal, so it is one comparison of bits per number.
#pragma once
#include <cstdint>
#include <cstring>

namespace maclaurin::MACLAURIN_VARIANT {

inline bool any_nan(const float* numbers, int64_t count) {
    constexpr int64_t BLOCK = 4096;  // between two looks at the answer
    constexpr uint32_t INFINITE = 0x7f800000;
    for (int64_t start = 0; start < count; start += BLOCK) {
        const int64_t end = start + BLOCK < count ? start + BLOCK : count;
        int32_t found = 0;
        for (int64_t i = start; i < end; ++i) {
            uint32_t bits;
            std::memcpy(&bits, numbers + i, sizeof bits);
            found |= static_cast<int32_t>(bits & 0x7fffffff) > static_cast<int32_t>(INFINITE);
        }
        if (found) return true;
    }
    return false;
}

}  // namespace maclaurin::MACLAURIN_VARIANT
