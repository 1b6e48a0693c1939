// The memory between the caller and the kernels. A state holds φ(k) = √c·m(k) in V or V+1 columns; kernels compute with
// plain monomials, and with the column that counts tokens apart from the values.
#pragma once
#include "monomials.h"
#include "shapes.h"

namespace maclaurin::MACLAURIN_VARIANT {

constexpr float ROOT = 1.41421356237309505f;  // √c off the diagonal

MACLAURIN_INLINE int64_t memory_size(const MaclaurinAttention& call) {
    return monomial_count(call.K) * (call.V + (call.normalize ? 1 : 0));
}

inline void clear_memory(const Memory& memory) {
    fill(memory.s, memory.features * memory.v_row, 0);
    fill(memory.z, memory.features, 0);
}

// memory += a state's memory, every row of it times c^(±1/2).
inline void add_state(const Memory& memory, const float* state, int64_t K, bool normalize, float root) {
    for (int64_t f = 0; f < monomial_count(K); ++f) {
        const float times = memory.pairs[f].first == memory.pairs[f].second ? 1 : root;
        for (int64_t c = 0; c < memory.V; ++c) memory.s[f * memory.v_row + c] += *state++ * times;
        if (normalize) memory.z[f] += *state++ * times;
    }
}

inline void copy_to_state(float* state, const Memory& memory, int64_t K, bool normalize, float root) {
    for (int64_t f = 0; f < monomial_count(K); ++f) {
        const float times = memory.pairs[f].first == memory.pairs[f].second ? 1 : root;
        for (int64_t c = 0; c < memory.V; ++c) *state++ = memory.s[f * memory.v_row + c] * times;
        if (normalize) *state++ = memory.z[f] * times;
    }
}

// Σ_j w_j |k_j|², the trace of z as a symmetric matrix.
inline float trace(const Memory& memory, int64_t K) {
    float total = 0;
    for (int64_t p = 0, f = 0; p < K; f += K - p, ++p) total += memory.z[f];
    return total;
}

}  // namespace maclaurin::MACLAURIN_VARIANT
