// The state between the caller and the kernels. The caller's holds φ(k) = √c·m(k) in V or V+1 columns; kernels compute with
// plain monomials, and with the column that counts tokens apart from the values.
#pragma once
#include "monomials.h"
#include "shapes.h"

namespace maclaurin::MACLAURIN_VARIANT {

constexpr float ROOT = 1.41421356237309505f;  // √c where c = 2

MACLAURIN_INLINE int64_t state_width(const MaclaurinAttention& call) { return call.V + (call.normalize ? 1 : 0); }
MACLAURIN_INLINE int64_t state_size(const MaclaurinAttention& call) { return monomial_count(call.K) * state_width(call); }

// Some value columns of one head's state as the caller has it, [F][row], and the column of totals; totals is null where there is
// none, or where another task has it.
template <class Float>
struct StateColumns {
    Float *values, *totals;
    int64_t row;

    // Values without totals.
    StateColumns(Float* values, int64_t row) : values(values), totals(nullptr), row(row) {}

    // All columns of a head.
    StateColumns(const MaclaurinAttention& call, Float* of_head)
        : values(of_head),
          totals(call.normalize ? values + call.V : nullptr),
          row(state_width(call)) {}
};

inline void clear_state(const State& state) {
    fill(state.s, state.features * state.v_row, 0);
    fill(state.z, state.features, 0);
}

// state += the caller's, every row of it times c^(±1/2).
inline void add_columns(const State& state, const StateColumns<const float>& columns, int64_t K, float root) {
    for (int64_t f = 0; f < monomial_count(K); ++f) {
        const float times = state.pairs[f].is_weighted() ? root : 1;
        for (int64_t c = 0; c < state.V; ++c) state.s[f * state.v_row + c] += columns.values[f * columns.row + c] * times;
        if (columns.totals != nullptr) state.z[f] += columns.totals[f * columns.row] * times;
    }
}

inline void copy_to_columns(const StateColumns<float>& columns, const State& state, int64_t K, float root) {
    for (int64_t f = 0; f < monomial_count(K); ++f) {
        const float times = state.pairs[f].is_weighted() ? root : 1;
        for (int64_t c = 0; c < state.V; ++c) columns.values[f * columns.row + c] = state.s[f * state.v_row + c] * times;
        if (columns.totals != nullptr) columns.totals[f * columns.row] = state.z[f] * times;
    }
}

// Σ_j w_j |k_j|², the trace of z as a symmetric matrix.
inline float trace(const State& state, int64_t K) {
    float total = 0;
    for (int64_t p = 0, f = 0; p < K; f += K - p, ++p) total += state.z[f];
    return total;
}

}  // namespace maclaurin::MACLAURIN_VARIANT
