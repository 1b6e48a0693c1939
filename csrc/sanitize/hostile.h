// What the drivers share: tensors that are allocated to the byte, checks, and every instruction set and number of threads.
#pragma once
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "../maclaurin.h"

using Numbers = std::vector<float>;

inline Numbers random_numbers(int64_t count, float low, float high) {
    Numbers numbers(count);
    for (float& x : numbers) x = low + (high - low) * static_cast<float>(std::rand()) / RAND_MAX;
    return numbers;
}
inline Numbers unwritten(int64_t count) { return Numbers(count, NAN); }

inline bool finite(const Numbers& numbers) {
    for (const float x : numbers)
        if (!std::isfinite(x)) return false;
    return true;
}

inline MaclaurinTensor view(const Numbers& numbers, int64_t T, int64_t H, int64_t C) {
    return {const_cast<float*>(numbers.data()), T * H * C, H * C, C};
}

inline int failures = 0;

inline void check(bool good, const char* what, const char* isa, int threads, int number) {
    if (good) return;
    ++failures;
    std::printf("WRONG %s, case %d: %s, %d threads\n", what, number, isa, threads);
}

// run(case, isa, threads, number) for all cases; the exit code of a driver.
template <class Cases, class Run>
int over_isas(const Cases& cases, const Run& run) {
    for (const char* isa : {"avx512", "avx2", "portable"}) {
        if (maclaurin_choose_isa(isa) != 0) continue;
        for (const int threads : {1, 2, 3, 8}) {
            int number = 0;
            for (const auto& one : cases) run(one, isa, threads, number++);
        }
        std::printf("%s: done\n", isa);
    }
    return failures != 0;
}
