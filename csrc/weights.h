// The weights of a block of keys for a group of queries, [key][query], made in registers from the scores.
#pragma once
#include "decay.h"
#include "tile.h"

namespace maclaurin::MACLAURIN_VARIANT {

constexpr int64_t KEYS = 64;  // keys per block: with their values they fill two thirds of a first-level cache at 64 channels

// How much of each other queries and keys see, for every pair (`pairs`) or as a product of two vectors (pairs == null).
// Factors for squared scores, logarithms for exponential ones.
struct Seen {
    const float* pairs;     // [key][GROUP]
    const float* of_query;  // [GROUP]
    const float* of_key;    // [key]
};

// Which keys of a block a group of queries meets, and the decay in between. Buffers hold one group and one block.
struct SeenBuffers {
    float pairs[KEYS * GROUP], of_query[GROUP], of_key[KEYS];
};

// False where every weight would be zero because of the decay alone.
template <bool EXPONENTIAL>
inline bool see(Seen& seen, SeenBuffers& buffers, const Between& between, int64_t keys, int64_t padded) {
    const bool all_past = between.begin + keys - 1 + between.strict <= between.first;
    if (all_past) {
        between.factored(buffers.of_query, buffers.of_key, keys, round_up(padded, LANES));
        if (!EXPONENTIAL && buffers.of_query[0] <= SMALLEST_LOG_FACTOR) return false;
        if (!EXPONENTIAL) {
            exponentiate(buffers.of_query, GROUP);
            exponentiate(buffers.of_key, padded);
        }
    } else {
        between.pairwise(buffers.pairs, keys, padded);
        if (!EXPONENTIAL) exponentiate(buffers.pairs, padded * GROUP);
    }
    seen = {all_past ? nullptr : buffers.pairs, buffers.of_query, buffers.of_key};
    return true;
}

MACLAURIN_INLINE vec pair(const Seen& seen, int64_t key, int column, bool product) {
    if (seen.pairs != nullptr) return load(seen.pairs + key * GROUP + column * LANES);
    const vec query = load(seen.of_query + column * LANES);
    return product ? query * seen.of_key[key] : query + seen.of_key[key];
}

// For each of ROWS keys and the whole group: use(key, column, score), a score being scale·q·k.
template <class Use>
MACLAURIN_INLINE void over_scores(const float* k, int64_t k_row, const float* q, int64_t K, int64_t padded, Use&& use) {
    for (int64_t j = 0; j < padded; j += ROWS) {
        Tile<COLS> score;
        score.clear();
        score.add_product({k + j * k_row, k_row, 1}, q, GROUP, K);
        for (int i = 0; i < ROWS; ++i)
            for (int n = 0; n < COLS; ++n) use(j + i, n, score.at[i][n]);
    }
}

}  // namespace maclaurin::MACLAURIN_VARIANT
