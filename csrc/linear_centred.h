// InLine's weights in first-order attention: with t the tokens so far, V_i the sum of their values, and the sums that are
// divided by one another elsewhere,
//     y_i = (Σ_j w_ij v_j + (1 - Σ_j w_ij / t) V_i) / t
#pragma once
#include "linear_block.h"

namespace maclaurin::MACLAURIN_VARIANT {

// Sums of the values up to each token of a block: rows [token][v_row], behind those of all tokens before it. That of a block is
// its own and is added once.
inline void sum_values(float* rows, float* before, const float* v, int64_t v_row, int64_t count) {
    for (int64_t c = 0; c < v_row; c += LANES) {
        const vec earlier = load(before + c);
        vec own{};
        for (int64_t i = 0; i < count; ++i) {
            own += load(v + i * v_row + c);
            store(rows + i * v_row + c, earlier + own);
        }
        store(before + c, earlier + own);
    }
}

// What the sum of the values is multiplied by, as token `at` sees it.
MACLAURIN_INLINE float share_of_values(float total, int64_t at) {
    const float each = 1.0f / static_cast<float>(at + 1);
    return (1.0f - total * each) * each;
}

}  // namespace maclaurin::MACLAURIN_VARIANT
