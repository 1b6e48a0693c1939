// Decays in log space, as in maclaurin/ops/decay.py: sums in float64, and no positive difference is ever exponentiated.
#pragma once
#include "pack.h"

namespace maclaurin::MACLAURIN_VARIANT {

constexpr double SMALLEST_LOG_DECAY = -750;            // of squared scores: exp of it is zero even in float64
constexpr double SMALLEST_LOG_DECAY_OF_SCORES = -1e5;  // of exponential ones, where a decay competes with large scores

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
    bool strict = false;  // a query does not meet its own key

    // Keys that all queries see: exp(L_i - L_end) and exp(L_end - L_j) are both at most 1, and their product is the decay.
    // Logarithms of both; `keys` is padded to `padded` with -inf.
    void factored(float* of_query, float* of_key, int64_t keys, int64_t padded) const {
        fill(of_query, GROUP, 0);
        fill(of_key, keys, 0);
        fill(of_key + keys, padded - keys, -__builtin_inff());
        if (sums == nullptr) return;
        const double end = sums[begin + keys - 1];
        for (int64_t i = 0; i < count; ++i) of_query[i] = static_cast<float>(sums[first + i] - end);
        fill(of_query + count, GROUP - count, of_query[count - 1]);
        for (int64_t j = 0; j < keys; ++j) of_key[j] = static_cast<float>(end - sums[begin + j]);
    }

    // Keys around the queries: the logarithm pair by pair, -inf where the query does not meet the key, or it is padding.
    void pairwise(float* matrix, int64_t keys, int64_t padded) const {
        double of_query[GROUP] = {};
        for (int64_t i = 0; i < GROUP && sums != nullptr; ++i) of_query[i] = sums[first + smaller(i, count - 1)];
        for (int64_t j = 0; j < padded; ++j) {
            const int64_t unseen = j < keys ? smaller(GROUP, larger(0, begin + j + strict - first)) : GROUP;
            const double of_key = sums == nullptr || j >= keys ? 0 : sums[begin + j];
            for (int64_t i = 0; i < GROUP; ++i) matrix[j * GROUP + i] = static_cast<float>(of_query[i] - of_key);
            fill(matrix + j * GROUP, unseen, -__builtin_inff());
        }
    }
};

// `count` is rounded up to whole vectors.
inline void exponentiate(float* x, int64_t count) {
    for (int64_t i = 0; i < count; i += LANES) store(x + i, factor(load(x + i)));
}

}  // namespace maclaurin::MACLAURIN_VARIANT
