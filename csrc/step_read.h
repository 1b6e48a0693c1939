// What a step reads of the state: φ(q)ᵀS of every query, as quickly as memory gives the rows.
#pragma once
#include "halves.h"
#include "step_keys.h"

namespace maclaurin::MACLAURIN_VARIANT {

constexpr int64_t AHEAD = 2048;  // halves
constexpr int64_t STEP_ROWS = 32;  // of the state at a time: they stay in a first-level cache for all queries of a head

// Of every query head: q, φ(q), and φ(q)ᵀS; what it sums up over keys and state.
struct StepBuffers {
    float *q, *features, *read;
    float* sums;  // Σ w v, and Σ w
    float* left;  // [keys]: the decay from a key to the query
    int64_t k_row, v_row, read_row, s_row;

    StepBuffers(Arena& arena, const MaclaurinAttention& call)
        : k_row(round_up(call.K, LANES)),
          v_row(round_up(call.V, LANES)),
          read_row(round_up(call.V + 1, HALVES_COLUMNS)),
          s_row(v_row + LANES) {
        const int64_t R = call.H / call.G;
        q = arena.take(R * k_row);
        features = arena.take(R * monomial_count(call.K));
        read = arena.take(R * read_row);
        sums = arena.take(R * s_row);
        left = arena.take(round_up(call.S, LANES));
    }
};

// φ(q) = m(q) times √2 off the diagonal.
inline void step_features(float* features, const float* q, int64_t K) {
    float* next = features;
    for (int64_t p = 0; p < K; ++p) {
        *next++ = q[p] * q[p];
        for (int64_t r = p + 1; r < K; ++r) next[r - p - 1] = q[p] * ROOT * q[r];
        next += K - 1 - p;
    }
}

// Of a constant first channel: its square has √2 as well, and its products with the others are the first order.
inline void step_orders(float* features, int64_t K, const Orders& orders) {
    features[0] *= ROOT * orders.zero;
    for (int64_t f = 1; f < K; ++f) features[f] *= orders.one;
    for (int64_t f = K; f < monomial_count(K); ++f) features[f] *= orders.two;
}

// sums += φ S of a row: one vector of its columns, or two of a state in halves.
MACLAURIN_INLINE void step_add(vec (&sums)[1], const float* row, float feature) { sums[0] += load(row) * feature; }
MACLAURIN_INLINE void step_add(vec (&sums)[2], const uint16_t* row, float feature) {
    __builtin_prefetch(row + AHEAD);  // where states of many sequences come from memory
    const uvec pairs = load_pairs(row);
    sums[0] += first_of(pairs) * feature;
    sums[1] += second_of(pairs) * feature;
}

template <class Number>
constexpr int PARTS = sizeof(float) / sizeof(Number);  // vectors in what is loaded at a time

// read += Σ_f φ_f S_f over `rows` rows, N loads of columns. Loads may run into the next row, whose numbers fill lanes that
// nobody reads; hence not in the last rows of all. As many rows at once as give both multipliers of a core eight sums.
template <int N, class Number>
MACLAURIN_INLINE void step_read(float* read, const float* features, const Number* state, int64_t W, int64_t rows) {
    constexpr int P = PARTS<Number>, LOAD = P * LANES, AT_ONCE = N * P >= 8 ? 1 : (7 + N * P) / (N * P);
    vec sums[AT_ONCE][N][P] = {};
    for (int n = 0; n < N; ++n)
        for (int p = 0; p < P; ++p) sums[0][n][p] = load(read + n * LOAD + p * LANES);
    int64_t f = 0;
    for (; f + AT_ONCE <= rows; f += AT_ONCE)
        for (int a = 0; a < AT_ONCE; ++a)
            for (int n = 0; n < N; ++n) step_add(sums[a][n], state + (f + a) * W + n * LOAD, features[f + a]);
    for (; f < rows; ++f)
        for (int n = 0; n < N; ++n) step_add(sums[0][n], state + f * W + n * LOAD, features[f]);
    for (int n = 0; n < N; ++n)
        for (int p = 0; p < P; ++p) {
            for (int a = 1; a < AT_ONCE; ++a) sums[0][n][p] += sums[a][n][p];
            store(read + n * LOAD + p * LANES, sums[0][n][p]);
        }
}

template <class Number>
MACLAURIN_INLINE void step_read(float* read, const float* features, const Number* state, int64_t W, int64_t rows,
                                int64_t loads) {
    constexpr int MOST = LANES == 16 || PARTS<Number> == 2 ? 5 : 4, LOAD = PARTS<Number> * LANES;
    for (int64_t n = 0; n < loads; n += MOST) {
        float* sums = read + n * LOAD;
        const Number* columns = state + n * LOAD;
        switch (smaller(MOST, loads - n)) {
            case 1: step_read<1>(sums, features, columns, W, rows); break;
            case 2: step_read<2>(sums, features, columns, W, rows); break;
            case 3: step_read<3>(sums, features, columns, W, rows); break;
            case 4: step_read<4>(sums, features, columns, W, rows); break;
            default: step_read<MOST>(sums, features, columns, W, rows);
        }
    }
}

}  // namespace maclaurin::MACLAURIN_VARIANT
