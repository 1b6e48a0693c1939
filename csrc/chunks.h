// A sequence as a walk over chunks: what the forward and the backward of the chunked form share.
//
// With L the sum of log decay inside a chunk and S the state at its start:
//     y_i = exp(L_i) φ(q_i)ᵀ S + Σ_{j<=i} (q_i·k_j)² exp(L_i - L_j) v_j
//     S'  = exp(L_C) S + Σ_j exp(L_C - L_j) φ(k_j) v_jᵀ
#pragma once
#include "attend.h"
#include "state.h"

namespace maclaurin::MACLAURIN_VARIANT {

constexpr int64_t CHUNK = 128;  // the longest chunk: its values fill two thirds of a first-level cache at 64 channels

struct Span {
    int64_t begin, end;
};

// Chunks of keys in order. One ends where the queries begin, and one where the returned state is taken.
struct Spans {
    int64_t size, first_query, folded, S;

    explicit Spans(const MaclaurinAttention& call)
        : size(smaller(call.chunk, CHUNK)),
          first_query(call.S - call.T),
          folded(call.folded),
          S(call.S) {}

    // Of the chunks' ends behind `begin`, the first; of their beginnings before `end`, the last.
    Span from(int64_t begin) const {
        int64_t end = smaller(S, begin + size);
        for (const int64_t cut : {first_query, folded})
            if (begin < cut && cut < end) end = cut;
        return {begin, end};
    }
    Span until(int64_t end) const {
        int64_t start = 0;
        for (const int64_t cut : {first_query, folded})
            if (start < cut && cut < end) start = cut;
        return {start + (end - start - 1) / size * size, end};
    }
};

// One chunk of keys, packed in all the ways in which it is used.
struct KeyChunk {
    float *k, *v;        // [CHUNK][k_row], [CHUNK][v_row]
    float* k_channels;   // groups of [monomial_rows][GROUP]
    float* v_at_end;     // [CHUNK][v_row]: v times what is left of it at the end of the chunk
    float* left_at_end;  // [CHUNK]: exp(L_C - L_j), zero at padding
    float* from_start;   // [CHUNK]: exp(L_i)
    double* sums;        // [CHUNK]: L
    float* panel;        // monomials, for read_state or write_state

    KeyChunk(Arena& arena, const Shape& shape)
        : k(arena.take(CHUNK * shape.k_row)),
          v(arena.take(CHUNK * shape.v_row)),
          k_channels(arena.take(CHUNK * monomial_rows(shape.K))),
          v_at_end(arena.take(CHUNK * shape.v_row)),
          left_at_end(arena.take(CHUNK)),
          from_start(arena.take(CHUNK)),
          sums(reinterpret_cast<double*>(arena.take(2 * CHUNK))),
          panel(arena.take(larger(ROWS * CHUNK, FEATURES * GROUP))) {}

    // Returns exp(L_C), what is left of the state at the end.
    float pack(const MaclaurinAttention& call, const Shape& shape, int64_t b, int64_t g, Span span) const {
        const int64_t keys = span.end - span.begin, padded = round_up(keys, GROUP);
        pack_keys(k, v, call, shape, b, g, span.begin, keys, padded);
        for (int64_t j = 0; j < keys; j += GROUP) {
            float* group = k_channels + j * monomial_rows(shape.K);
            transpose_rows(group, GROUP, GROUP, k + j * shape.k_row, shape.k_row, GROUP, shape.K, 1);
            add_monomial_rows(group, shape.K);
        }
        fill(left_at_end, padded, 0);
        fill(from_start, padded, 0);
        if (call.log_decay.data != nullptr) {
            cumulative(sums, row(call.log_decay, b, span.begin, g), call.log_decay.time, keys, SMALLEST_LOG_DECAY);
            for (int64_t j = 0; j < keys; ++j) {
                left_at_end[j] = static_cast<float>(sums[keys - 1] - sums[j]);
                from_start[j] = static_cast<float>(sums[j]);
            }
        }
        exponentiate(left_at_end, padded);
        exponentiate(from_start, padded);
        fill(left_at_end + keys, padded - keys, 0);
        for (int64_t j = 0; j < padded; ++j)
            for (int64_t c = 0; c < shape.v_row; c += LANES)
                store(v_at_end + j * shape.v_row + c, load(v + j * shape.v_row + c) * left_at_end[j]);
        return from_start[keys - 1];
    }

    // What `pack` says of the queries where nothing decays.
    void no_decay() const { fill(from_start, CHUNK, 1); }

    // Block number `begin` / KEYS of the chunk, as far as the first `met` keys.
    KeyBlock block(const MaclaurinAttention& call, const Shape& shape, int64_t begin, int64_t met) const {
        const int64_t keys = smaller(KEYS, met - begin);
        return {k + begin * shape.k_row, v + begin * shape.v_row, shape.k_row, shape.v_row, keys, round_up(keys, ROWS),
                call.constant != 0};
    }

    const double* decay_sums(const MaclaurinAttention& call) const {
        return call.log_decay.data == nullptr ? nullptr : sums;
    }
};

}  // namespace maclaurin::MACLAURIN_VARIANT
