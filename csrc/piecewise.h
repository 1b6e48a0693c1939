// Piecewise linear functions of one number by a table: y_l = slope_l[j] u + intercept_l[j], where j is how many knots lie below
// u. A row of the table is the slopes and intercepts of all functions, next to each other.
#pragma once
#include <type_traits>

#include "maclaurin.h"
#include "pool.h"
#include "simd.h"

namespace maclaurin::MACLAURIN_VARIANT {

constexpr int64_t PIECE = 8192;  // numbers a task looks up
constexpr int SEARCHED = 16;     // numbers that are searched side by side: each hides the latency of the others

// How many knots lie below each number: a binary search without branches. NaN lies above no knot.
inline void knots_below(int32_t (&below)[SEARCHED], const MaclaurinPiecewise& call, const float* u, int64_t count) {
    float numbers[SEARCHED] = {};
    std::memcpy(numbers, u, count * sizeof(float));
    for (int32_t& place : below) place = 0;
    for (int32_t step = static_cast<int32_t>((call.knots + 1) / 2); step > 0; step /= 2)
        for (int n = 0; n < SEARCHED; ++n)
            below[n] += step & -static_cast<int32_t>(numbers[n] > call.knot[below[n] + step - 1]);
}

// use(i, row of the table) for the numbers from `begin` on.
template <class Use>
MACLAURIN_INLINE void over_rows(const MaclaurinPiecewise& call, int64_t begin, int64_t end, int64_t L, const Use& use) {
    for (int64_t i = begin; i < end; i += SEARCHED) {
        const int64_t count = end - i < SEARCHED ? end - i : SEARCHED;
        int32_t below[SEARCHED];
        knots_below(below, call, call.u + i, count);
        for (int64_t n = 0; n < count; ++n) use(i + n, below[n] * 2 * L);
    }
}

// L: known when this is compiled, or 0. RELU is known as well: a branch for each number would be guessed wrongly.
template <int64_t KNOWN, bool RELU>
inline void piecewise_outputs(const MaclaurinPiecewise& call, int64_t begin, int64_t end) {
    const int64_t L = KNOWN ? KNOWN : call.L;
    over_rows(call, begin, end, L, [&](int64_t i, int64_t at) {
        const float u = call.u[i], *slope = call.table + at, *intercept = slope + L;
        float* y = call.y + i * L;
        for (int64_t l = 0; l < L; ++l) {
            const float z = slope[l] * u + intercept[l];
            y[l] = RELU && z <= 0 ? 0 : z;  // NaN stays NaN
        }
    });
}

template <int64_t KNOWN, bool RELU>
inline void piecewise_gradients(const MaclaurinPiecewise& call, float* dtable, int64_t begin, int64_t end) {
    const int64_t L = KNOWN ? KNOWN : call.L;
    over_rows(call, begin, end, L, [&](int64_t i, int64_t at) {
        const float u = call.u[i], *dy = call.dy + i * L, *slope = call.table + at, *intercept = slope + L;
        float *dslope = dtable + at, *dintercept = dslope + L, du = 0;
        for (int64_t l = 0; l < L; ++l) {
            const float dz = RELU && slope[l] * u + intercept[l] <= 0 ? 0 : dy[l];
            du += slope[l] * dz;
            dslope[l] += dz * u;
            dintercept[l] += dz;
        }
        call.du[i] = du;
    });
}

// run(L or 0, relu), as types.
template <class Run>
inline void with_known(const MaclaurinPiecewise& call, const Run& run) {
    const auto with_relu = [&](auto known) {
        if (call.relu) run(known, std::true_type{});
        else run(known, std::false_type{});
    };
    if (call.L == 4) with_relu(std::integral_constant<int64_t, 4>{});
    else if (call.L == 8) with_relu(std::integral_constant<int64_t, 8>{});
    else with_relu(std::integral_constant<int64_t, 0>{});
}

inline bool piecewise_forward(const MaclaurinPiecewise& call) {
    parallel_for((call.count + PIECE - 1) / PIECE, call.threads, [&](int64_t task) {
        const FlushSubnormals flush;
        const int64_t begin = task * PIECE, end = begin + PIECE < call.count ? begin + PIECE : call.count;
        with_known(call, [&](auto L, auto relu) { piecewise_outputs<L(), relu()>(call, begin, end); });
    });
    return true;
}

// Every part of the numbers has a table of gradients of its own, whatever the number of threads.
inline bool piecewise_backward(const MaclaurinPiecewise& call) {
    const int64_t size = (call.knots + 1) * 2 * call.L, each = (call.count + call.parts - 1) / call.parts;
    parallel_for(call.parts, call.threads, [&](int64_t part) {
        const FlushSubnormals flush;
        float* dtable = call.dtable + part * size;
        std::memset(dtable, 0, size * sizeof(float));
        const int64_t begin = part * each, end = begin + each < call.count ? begin + each : call.count;
        with_known(call, [&](auto L, auto relu) { piecewise_gradients<L(), relu()>(call, dtable, begin, end); });
    });
    return true;
}

}  // namespace maclaurin::MACLAURIN_VARIANT
