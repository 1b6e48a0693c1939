// First-order attention takes a block of tokens at a time: its rows, and the decays between its tokens.
//
// A decay between two tokens is always a product of single factors, each at most 1: nothing can overflow, whatever the
// decays are, and an exponential is computed once per token (and channel), not once per pair. What is left of the state
// after a block is one exponential of a sum: a product would round the same slow decay in the same direction token by
// token, which a state that lasts for a thousand tokens shows in its fifth digit.
#pragma once
#include <type_traits>

#include "arena.h"
#include "decay.h"
#include "pack.h"
#include "tile.h"

namespace maclaurin::MACLAURIN_VARIANT {

// Tokens per block. The state costs the same for a token however large the block; the pairs cost as much as there are.
template <bool PER_CHANNEL>
constexpr int64_t BLOCK = PER_CHANNEL ? 16 : 32;

struct LinearShape {
    int64_t K, V, W, k_row, v_row;  // W: columns of the caller's state; rows in whole vectors and whole tiles
    int64_t heads = 1;              // key-value heads that a task takes in turn, block by block

    LinearShape(int64_t K, int64_t V, bool normalize)
        : K(K),
          V(V),
          W(V + (normalize ? 1 : 0)),
          k_row(round_up(K, larger(LANES, ROWS))),
          v_row(round_up(V, larger(LANES, ROWS))) {}

    int64_t state_size() const { return K * W; }
};

// Heads lie side by side in a token: one after the other they would read every page and line of the tensors once each, too far
// apart for the processor to guess what is next. So a task takes as many as leave work for all threads, and as have states that
// stay in a second-level cache.
constexpr int64_t STATES = 1 << 16;  // floats

inline int64_t heads_of_task(const MaclaurinLinear& call, const LinearShape& shape) {
    const int64_t fit = STATES / larger(shape.k_row * shape.v_row, 1), each = call.B * call.G / larger(call.threads, 1);
    return larger(smaller(smaller(fit, each), call.G), 1);
}

// One task for every `shape.heads` heads of a sequence: task(b, first, heads) is false where memory ran out.
template <class Task>
bool over_groups_of_heads(const MaclaurinLinear& call, const LinearShape& shape, const Task& task) {
    const int64_t groups = (call.G + shape.heads - 1) / shape.heads;
    bool failed = false;
    parallel_for(call.B * groups, call.threads, [&](int64_t n) {
        const FlushSubnormals flush;
        const int64_t first = n % groups * shape.heads;
        if (!task(n / groups, first, smaller(shape.heads, call.G - first))) __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
    });
    return !failed;
}

// body(i, j, width) for every tile of a matrix of whole tiles; width::value is its number of vectors.
template <class Body>
MACLAURIN_INLINE void over_tiles(int64_t rows, int64_t columns, const Body& body) {
    for (int64_t i = 0; i < rows; i += ROWS) {
        int64_t j = 0;
        for (; j + GROUP <= columns; j += GROUP) body(i, j, std::integral_constant<int, COLS>{});
        for (; j < columns; j += LANES) body(i, j, std::integral_constant<int, 1>{});
    }
}

// The same for a matrix [key][query] of a block, without the tiles whose queries all come before their keys: these are
// filled with zeros.
template <int64_t ROW, class Body>
MACLAURIN_INLINE void over_pairs(float* matrix, int64_t tokens, const Body& body) {
    const int64_t queries = round_up(tokens, LANES);
    for (int64_t i = 0; i < tokens; i += ROWS) {
        int64_t j = i / LANES * LANES;
        for (int64_t n = 0; n < ROWS; ++n) fill(matrix + (i + n) * ROW, j, 0);
        for (; j + GROUP <= queries; j += GROUP) body(i, j, std::integral_constant<int, COLS>{});
        for (; j < queries; j += LANES) body(i, j, std::integral_constant<int, 1>{});
    }
}

MACLAURIN_INLINE ivec lane_numbers() {
    ivec numbers;
    for (int l = 0; l < LANES; ++l) numbers[l] = l;
    return numbers;
}

// Factors of a block: [token] with one decay per head, [token][k_row] with one per channel. Padding has the factor 1.
template <bool PER_CHANNEL>
struct BlockDecay {
    static constexpr int64_t ROW = BLOCK<PER_CHANNEL>;
    int64_t width;      // factors per token
    float* each;        // of the token itself
    float* from_start;  // of all tokens up to this one: what is left of the state when its query comes
    float* to_end;      // of all tokens after this one: what is left of its key at the end
    float* keep;        // [k_row], of the whole block
    float* pairs;       // [key][query], with one decay per head only; zero where the key comes after the query

    BlockDecay(Arena& arena, const LinearShape& shape)
        : width(PER_CHANNEL ? shape.k_row : 1),
          each(arena.take(ROW * width)),
          from_start(arena.take(ROW * width)),
          to_end(arena.take(ROW * width)),
          keep(arena.take(shape.k_row)),
          pairs(arena.take(PER_CHANNEL ? 0 : ROW * ROW)) {}

    MACLAURIN_INLINE vec at(const float* factors, int64_t token, int64_t channel) const {
        return PER_CHANNEL ? load(factors + token * width + channel) : all(factors[token]);
    }

    void pack(const MaclaurinTensor& log_decay, const LinearShape& shape, int64_t b, int64_t g, int64_t begin,
              int64_t count) const {
        fill(each, ROW * width, 0);
        if (log_decay.data != nullptr)
            for (int64_t t = 0; t < count; ++t) {
                const float* from = row(log_decay, b, begin + t, g);
                for (int64_t c = 0; c < (PER_CHANNEL ? shape.K : 1); ++c) each[t * width + c] = from[c];
            }
        if constexpr (PER_CHANNEL) return pack_channels();
        pack_head(shape.k_row);
        pack_pairs(count);
    }

  private:
    void pack_channels() const {
        for (int64_t c = 0; c < width; c += LANES) {
            vec sum{};
            for (int64_t t = 0; t < ROW; ++t) sum += load(each + t * width + c);
            store(keep + c, factor(sum));
        }
        exponentiate(each, ROW * width);
        for (int64_t i = 0; i < ROW * width; ++i) from_start[i] = i < width ? each[i] : from_start[i - width] * each[i];
        fill(to_end + (ROW - 1) * width, width, 1);
        for (int64_t i = (ROW - 1) * width - 1; i >= 0; --i) to_end[i] = to_end[i + width] * each[i + width];
    }

    void pack_head(int64_t k_row) const {
        from_start[0] = each[0];
        for (int64_t t = 1; t < ROW; ++t) from_start[t] = from_start[t - 1] + each[t];
        to_end[ROW - 1] = 0;
        for (int64_t t = ROW - 1; t > 0; --t) to_end[t - 1] = to_end[t] + each[t];
        for (float* logarithms : {each, from_start, to_end}) exponentiate(logarithms, ROW);
        fill(keep, k_row, from_start[ROW - 1]);
    }

    // From the last key to the first: every query sees a key through one more factor than the next key.
    void pack_pairs(int64_t count) const {
        vec seen[ROW / LANES] = {};
        const ivec lane = lane_numbers();
        for (int64_t key = round_up(count, ROWS) - 1; key >= 0; --key)
            for (int64_t n = 0; n < ROW / LANES; ++n) {
                const vec carried = key + 1 < ROW ? seen[n] * each[key + 1] : seen[n];
                seen[n] = lane + static_cast<int32_t>(n * LANES) == ivec{} + static_cast<int32_t>(key) ? all(1) : carried;
                store(pairs + key * ROW + n * LANES, seen[n]);
            }
    }
};

// rows[t,c] · factors[t,c], for whole tiles of tokens.
template <bool PER_CHANNEL>
inline void decay_rows(float* to, const float* rows, const BlockDecay<PER_CHANNEL>& decay, const float* factors,
                       int64_t count, int64_t k_row) {
    for (int64_t t = 0; t < round_up(count, ROWS); ++t)
        for (int64_t c = 0; c < k_row; c += LANES)
            store(to + t * k_row + c, load(rows + t * k_row + c) * decay.at(factors, t, c));
}

MACLAURIN_INLINE float dot_product(const float* x, const float* y, int64_t count) {
    vec total{};
    int64_t c = 0;
    for (; c + LANES <= count; c += LANES) total += load(x + c) * load(y + c);
    float rest = 0;
    for (; c < count; ++c) rest += x[c] * y[c];
    return sum(total) + rest;
}

}  // namespace maclaurin::MACLAURIN_VARIANT
