// Decays in log space, as in maclaurin/ops/decay.py: sums in float64, and no positive difference is ever exponentiated.
#pragma once
#include "pack.h"

namespace maclaurin::MACLAURIN_VARIANT {

constexpr double SMALLEST_LOG_DECAY = -750;             // of squared scores: exp of it is zero even in float64
constexpr double SMALLEST_LOG_DECAY_OF_SCORES = -1e5;   // of exponential ones, where a decay competes with large scores

// Inclusive sums of the log decays of `count` tokens. NaN goes through.
inline void cumulative(double* sums, const float* log_decay, int64_t time, int64_t count, double smallest) {
    double total = 0;
    for (int64_t i = 0; i < count; ++i) {
        const double a = log_decay[i * time];
        total += a < smallest ? smallest : a;
        sums[i] = total;
    }
}

// What lies between GROUP queries and `keys` keys: a matrix [key][query] of factors, or of their logarithms.
// Queries stand at the positions first .. first+GROUP-1, keys at begin .. begin+keys-1; a padded query repeats the last one.
struct Between {
    const double* sums;  // of all tokens, by position; null where there is no decay
    int64_t first, count, begin;

    MACLAURIN_INLINE float log_decay(int64_t query, int64_t key) const {
        const int64_t last = first + count - 1;
        return static_cast<float>(sums[smaller(first + query, last)] - sums[begin + key]);
    }

    // Keys that all queries see: exp(L_i - L_end) and exp(L_end - L_j) are both at most 1, and their product is the decay.
    // Logarithms of both; `keys` is padded to `padded` with -inf.
    void factored(float* of_query, float* of_key, int64_t keys, int64_t padded) const {
        for (int64_t i = 0; i < GROUP; ++i) of_query[i] = sums == nullptr ? 0 : log_decay(i, keys - 1);
        for (int64_t j = 0; j < padded; ++j) {
            if (j >= keys) of_key[j] = -__builtin_inff();
            else of_key[j] = sums == nullptr ? 0 : static_cast<float>(sums[begin + keys - 1] - sums[begin + j]);
        }
    }

    // Keys around the queries: the logarithm pair by pair, -inf where the key comes after the query, or is padding.
    void pairwise(float* matrix, int64_t keys, int64_t padded) const {
        for (int64_t j = 0; j < padded; ++j)
            for (int64_t i = 0; i < GROUP; ++i) {
                const bool seen = j < keys && begin + j <= first + i;
                matrix[j * GROUP + i] = !seen ? -__builtin_inff() : sums == nullptr ? 0 : log_decay(i, j);
            }
    }
};

inline void exponentiate(float* x, int64_t count) {
    for (int64_t i = 0; i < count; i += LANES) store(x + i, factor(load(x + i)));
}

}  // namespace maclaurin::MACLAURIN_VARIANT
