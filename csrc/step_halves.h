// One new token and a state in halves: its upper halves are read, both where these leave too few digits; then tokens are
// folded into both.
#pragma once
#include "linear_block.h"
#include "step_fold.h"

namespace maclaurin::MACLAURIN_VARIANT {

// Rows that stay in a first-level cache for all queries of a head.
constexpr int64_t READ_AT_ONCE = 128;

inline void read_upper(const MaclaurinAttention& call, const StepBuffers& at, const Halves& state) {
    const int64_t F = monomial_count(call.K);
    for (int64_t begin = 0; begin < F; begin += READ_AT_ONCE)
        for (int64_t r = 0; r < call.H / call.G; ++r)
            step_read(at.read + r * at.read_row, at.features + r * F + begin, state.upper + begin * state.columns,
                      state.columns, smaller(READ_AT_ONCE, F - begin), state.columns / PAIRS);
}

inline void read_both(const MaclaurinAttention& call, const StepBuffers& at, const Halves& state, float* whole) {
    const int64_t F = monomial_count(call.K);
    for (int64_t begin = 0; begin < F; begin += STEP_ROWS) {
        const int64_t rows = smaller(STEP_ROWS, F - begin), start = begin * state.columns;
        for (int64_t i = 0; i < rows * state.columns; i += PAIRS) {
            vec first, second;
            join(first, second, state.upper + start + i, state.lower + start + i);
            store(whole + i, first), store(whole + i + LANES, second);
        }
        for (int64_t r = 0; r < call.H / call.G; ++r)
            step_read(at.read + r * at.read_row, at.features + r * F + begin, whole, state.columns, rows,
                      state.columns / LANES);
    }
}

// φ(q)ᵀz: four sums, as a chain of one would take longer than its numbers to come.
inline float read_totals(const float* features, const float* totals, int64_t F) {
    vec sums[4] = {};
    int64_t f = 0;
    for (; f + 4 * LANES <= F; f += 4 * LANES)
        for (int n = 0; n < 4; ++n) sums[n] += load(features + f + n * LANES) * load(totals + f + n * LANES);
    return sum((sums[0] + sums[1]) + (sums[2] + sums[3])) + dot_product(features + f, totals + f, F - f);
}

// φ(q)ᵀS of all queries of a head, of the upper halves or of both; and φ(q)ᵀz behind it.
inline void read_halves(const MaclaurinAttention& call, const StepBuffers& at, const Halves& state, float* whole,
                        bool both) {
    const int64_t R = call.H / call.G, F = monomial_count(call.K);
    fill(at.read, R * at.read_row, 0);
    if (both) read_both(call, at, state, whole);
    else read_upper(call, at, state);
    for (int64_t r = 0; r < R; ++r) {
        float* read = at.read + r * at.read_row;
        for (int64_t c = 0; c < call.V; ++c) whole[c] = read[place_in_pairs(c)];
        std::memcpy(read, whole, call.V * sizeof(float));
        if (call.normalize) read[call.V] = read_totals(at.features + r * F, state.totals, F);
    }
}

// ROWS rows of keep·S + Σ_j φ(k_j) v_jᵀ, from row f on. Not inlined, as `add_product`.
__attribute__((noinline)) inline void fold_rows(const Halves& to, const Halves& from, int64_t f, float keep,
                                                Broadcast features, const FoldBuffers& fold) {
    for (int64_t c = 0; c < from.columns; c += PAIRS) {
        Tile<2> tile;
        const int64_t start = f * from.columns + c;
        for (int i = 0; i < ROWS; ++i) {
            join(tile.at[i][0], tile.at[i][1], from.upper + start + i * from.columns, from.lower + start + i * from.columns);
            for (vec& numbers : tile.at[i]) numbers *= keep;
        }
        tile.add_product(features, fold.v + c, fold.v_row, fold.keys);
        for (int i = 0; i < ROWS; ++i)
            split(to.upper + start + i * to.columns, to.lower + start + i * to.columns, tile.at[i][0], tile.at[i][1]);
    }
}

inline void fold_halves(const MaclaurinAttention& call, const FoldBuffers& fold, const Halves& to, const Halves& from,
                        const Pairs& pairs, float keep) {
    for (int64_t f = 0; f < pairs.count; f += ROWS)
        fold_rows(to, from, f, keep, fold.monomials(pairs.data + f), fold);
    for (int64_t f = 0; f < monomial_count(call.K) && call.normalize; ++f)
        to.totals[f] = keep * from.totals[f] + fold.totals[f];
}

}  // namespace maclaurin::MACLAURIN_VARIANT
