// Piecewise linear functions of one number by a table: y_l = slope_l[j] u + intercept_l[j], where j is how many knots lie below
// u. A row of the table is the slopes and intercepts of all functions, next to each other.
#pragma once
#include <type_traits>

#include "pack.h"
#include "pool.h"

namespace maclaurin::MACLAURIN_VARIANT {

constexpr int64_t PIECE = 8192;  // numbers a task looks up
constexpr int SEARCHED = 16;     // numbers that are searched side by side; the knots are a multiple of it
constexpr int STRETCHES = 32;    // into which the knots are cut, at most

// How many of some whole vectors of knots lie below a number.
MACLAURIN_INLINE int32_t knots_below(float number, const float* knot, int32_t count) {
    int32_t below = 0;
#if defined(__AVX2__)
    for (int32_t k = 0; k < count; k += LANES) below += lanes_of(all(number) > load(knot + k));
#else
    ivec lanes{};
    for (int32_t k = 0; k < count; k += LANES) lanes -= all(number) > load(knot + k);
    for (int l = 0; l < LANES; ++l) below += lanes[l];
#endif
    return below;
}

// How many knots lie below each number: the stretch it lies in by comparing all numbers with the end of each, then its place by
// comparing the number with all knots of the stretch. NaN lies above no knot.
MACLAURIN_INLINE void knots_below(int32_t (&below)[SEARCHED], const MaclaurinPiecewise& call, const float* numbers) {
    constexpr int VECTORS = SEARCHED / LANES;
    const int32_t knots = static_cast<int32_t>(call.knots);
    const int32_t stretch = static_cast<int32_t>(round_up(knots, SEARCHED * STRETCHES) / STRETCHES);
    vec number[VECTORS];
    ivec stretches[VECTORS] = {};
    for (int v = 0; v < VECTORS; ++v) number[v] = load(numbers + v * LANES);
    for (int32_t end = stretch; end < knots; end += stretch) {
        const vec knot = all(call.knot[end - 1]);
        for (int v = 0; v < VECTORS; ++v) stretches[v] -= number[v] > knot;
    }
    for (int v = 0; v < VECTORS; ++v) stretches[v] *= stretch;
    std::memcpy(below, stretches, sizeof below);
    for (int n = 0; n < SEARCHED; ++n) {
        const int32_t begin = below[n], left = knots - begin;
        below[n] += knots_below(numbers[n], call.knot + begin, left < stretch ? left : stretch);
    }
}

// use(i, row of the table) for the numbers from `begin` on.
template <class Use>
MACLAURIN_INLINE void over_rows(const MaclaurinPiecewise& call, int64_t begin, int64_t end, int64_t L, const Use& use) {
    int32_t below[SEARCHED];
    int64_t i = begin;
    for (; i + SEARCHED <= end; i += SEARCHED) {
        knots_below(below, call, call.u + i);
        for (int64_t n = 0; n < SEARCHED; ++n) use(i + n, below[n] * 2 * L);
    }
    if (i == end) return;
    float rest[SEARCHED] = {};
    std::memcpy(rest, call.u + i, (end - i) * sizeof(float));
    knots_below(below, call, rest);
    for (int64_t n = 0; n < end - i; ++n) use(i + n, below[n] * 2 * L);
}

typedef float four __attribute__((vector_size(16)));
typedef float eight __attribute__((vector_size(32)));

// The numbers of all functions side by side, as one vector where L is known when this is compiled; one by one where it is 0.
template <int64_t L>
struct Functions {
    using row = std::conditional_t<L == 4, four, eight>;
    static constexpr int64_t step = L;
    static MACLAURIN_INLINE row read(const float* p) {
        row x;
        std::memcpy(&x, p, sizeof x);
        return x;
    }
    static MACLAURIN_INLINE void write(float* p, row x) { std::memcpy(p, &x, sizeof x); }
    static MACLAURIN_INLINE row where_positive(row z, row x) { return z <= 0 ? row{} : x; }  // NaN stays NaN
    static MACLAURIN_INLINE float sum(row x) {
        float total = 0;
        for (int64_t l = 0; l < L; ++l) total += x[l];
        return total;
    }
};
template <>
struct Functions<0> {
    using row = float;
    static constexpr int64_t step = 1;
    static MACLAURIN_INLINE float read(const float* p) { return *p; }
    static MACLAURIN_INLINE void write(float* p, float x) { *p = x; }
    static MACLAURIN_INLINE float where_positive(float z, float x) { return z <= 0 ? 0 : x; }
    static MACLAURIN_INLINE float sum(float x) { return x; }
};

// RELU is known as well: a branch for each number would be guessed wrongly.
template <int64_t KNOWN, bool RELU>
inline void piecewise_outputs(const MaclaurinPiecewise& call, int64_t begin, int64_t end) {
    using F = Functions<KNOWN>;
    const int64_t L = KNOWN ? KNOWN : call.L;
    over_rows(call, begin, end, L, [&](int64_t i, int64_t at) {
        const float *slope = call.table + at, *intercept = slope + L;
        for (int64_t l = 0; l < L; l += F::step) {
            const auto z = F::read(slope + l) * call.u[i] + F::read(intercept + l);
            F::write(call.y + i * L + l, RELU ? F::where_positive(z, z) : z);
        }
    });
}

template <int64_t KNOWN, bool RELU>
inline void piecewise_gradients(const MaclaurinPiecewise& call, float* dtable, int64_t begin, int64_t end) {
    using F = Functions<KNOWN>;
    const int64_t L = KNOWN ? KNOWN : call.L;
    over_rows(call, begin, end, L, [&](int64_t i, int64_t at) {
        const float u = call.u[i], *slope = call.table + at, *intercept = slope + L;
        float *dslope = dtable + at, *dintercept = dslope + L, du = 0;
        for (int64_t l = 0; l < L; l += F::step) {
            const auto a = F::read(slope + l), dy = F::read(call.dy + i * L + l);
            const auto dz = RELU ? F::where_positive(a * u + F::read(intercept + l), dy) : dy;
            du += F::sum(a * dz);
            F::write(dslope + l, F::read(dslope + l) + dz * u);
            F::write(dintercept + l, F::read(dintercept + l) + dz);
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
