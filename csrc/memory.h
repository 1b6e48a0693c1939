// The memory between the caller and the kernels. A state holds φ(k) = √c·m(k) in V or V+1 columns; kernels compute with
// plain monomials, and with the column that counts tokens apart from the values.
#pragma once
#include "monomials.h"
#include "shapes.h"

namespace maclaurin::MACLAURIN_VARIANT {

constexpr float ROOT = 1.41421356237309505f;  // √c off the diagonal

MACLAURIN_INLINE int64_t memory_width(const MaclaurinAttention& call) { return call.V + (call.normalize ? 1 : 0); }
MACLAURIN_INLINE int64_t memory_size(const MaclaurinAttention& call) { return monomial_count(call.K) * memory_width(call); }

// Some value columns of one head's memory in a state, [F][row], and the column of totals; totals is null where there is
// none, or where another task has it.
template <class Float>
struct StateColumns {
    Float *values, *totals;
    int64_t row;

    // All columns of head n, counted over the batch.
    StateColumns(const MaclaurinAttention& call, Float* state, int64_t n)
        : values(state + n * memory_size(call)),
          totals(call.normalize ? values + call.V : nullptr),
          row(memory_width(call)) {}
};

inline void clear_memory(const Memory& memory) {
    fill(memory.s, memory.features * memory.v_row, 0);
    fill(memory.z, memory.features, 0);
}

// memory += a state's memory, every row of it times c^(±1/2).
inline void add_state(const Memory& memory, const StateColumns<const float>& state, int64_t K, float root) {
    for (int64_t f = 0; f < monomial_count(K); ++f) {
        const float times = memory.pairs[f].first == memory.pairs[f].second ? 1 : root;
        for (int64_t c = 0; c < memory.V; ++c) memory.s[f * memory.v_row + c] += state.values[f * state.row + c] * times;
        if (state.totals != nullptr) memory.z[f] += state.totals[f * state.row] * times;
    }
}

inline void copy_to_state(const StateColumns<float>& state, const Memory& memory, int64_t K, float root) {
    for (int64_t f = 0; f < monomial_count(K); ++f) {
        const float times = memory.pairs[f].first == memory.pairs[f].second ? 1 : root;
        for (int64_t c = 0; c < memory.V; ++c) state.values[f * state.row + c] = memory.s[f * memory.v_row + c] * times;
        if (state.totals != nullptr) state.totals[f * state.row] = memory.z[f] * times;
    }
}

// Σ_j w_j |k_j|², the trace of z as a symmetric matrix.
inline float trace(const Memory& memory, int64_t K) {
    float total = 0;
    for (int64_t p = 0, f = 0; p < K; f += K - p, ++p) total += memory.z[f];
    return total;
}

}  // namespace maclaurin::MACLAURIN_VARIANT
