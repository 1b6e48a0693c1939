// Whether a NaN is among numbers: what keeps every call causal, so it is one comparison per number, at best as it is written.
#pragma once
#include <cstdint>
#include <cstring>

namespace maclaurin::MACLAURIN_VARIANT {

// to = times · from; whether a NaN was written.
inline bool write_row(float* to, const float* from, int64_t count, float times) {
    int32_t found = 0;
    for (int64_t i = 0; i < count; ++i) {
        const float number = from[i] * times;
        to[i] = number;
        found |= number != number;
    }
    return found;
}

inline void report_nan(int32_t* nan, bool found) {
    if (found && nan != nullptr) __atomic_store_n(nan, 1, __ATOMIC_RELAXED);
}

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
