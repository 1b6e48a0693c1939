// One new token and the state, in one pass: read as the caller has it and, when tokens are folded in, written anew: beside
// it, so that the caller's state stays as it is, or over it, where both are the same memory.
#pragma once
#include "chunked_forward.h"
#include "halves.h"
#include "step_keys.h"

namespace maclaurin::MACLAURIN_VARIANT {

constexpr int64_t STEP_ROWS = 32;  // of the state at a time: they stay in a first-level cache for all queries of a head
// Upper halves of a state are enough for totals above this part of their largest term; below, rounding would show. Keys of
// 64 channels that point everywhere give 1/64.
constexpr float ENOUGH_FOR_HALVES = 1.0f / 256;

struct StepBuffers {
    float *q, *features, *read;     // of every query head: q, φ(q), φ(q)ᵀS
    float* in_order;                // of one query head, read from halves
    float* sums;                    // Σ w v, and Σ w
    float* left;                    // [keys]: the decay from a key to the query
    float *k_channels, *v, *panel;  // a fold's keys [channel][token], its decayed values, the monomials of a tile
    float* counts;                  // [keys]: what is left of a one beside each value
    float *whole, *new_whole;       // rows of a state in halves, joined, and of the new one
    int64_t k_row, v_row, w_row, read_row, s_row, keys;

    StepBuffers(Arena& arena, const MaclaurinAttention& call)
        : k_row(round_up(call.K, LANES)),
          v_row(round_up(call.V, LANES)),
          w_row(round_up(call.V + 1, LANES)),
          read_row(round_up(call.V + 1, 2 * LANES)),
          s_row(v_row + LANES),
          keys(round_up(call.S, LANES)) {
        const int64_t R = call.H / call.G, tokens = call.folded ? keys : 0;
        q = arena.take(R * k_row);
        features = arena.take(R * monomial_count(call.K));
        read = arena.take(R * read_row);
        in_order = arena.take(read_row);
        sums = arena.take(R * s_row);
        left = arena.take(keys);
        k_channels = arena.take(call.K * tokens);
        v = arena.take(w_row * tokens);
        panel = arena.take(ROWS * tokens);
        counts = arena.take(tokens);
        const int64_t rows = call.halves.upper == nullptr ? 0 : STEP_ROWS * state_width(call);
        whole = arena.take(rows ? rows + w_row : 0);  // whole vectors of the last row
        new_whole = arena.take(call.folded ? rows : 0);
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

// Where a column stands in what has been read.
MACLAURIN_INLINE int64_t place(const float*, int64_t column) { return column; }
MACLAURIN_INLINE int64_t place(const uint16_t*, int64_t column) {
    return column / (2 * LANES) * (2 * LANES) + column % 2 * LANES + column % (2 * LANES) / 2;
}

// ROWS rows of keep·S + Σ_j φ(k_j) (v_j, 1)ᵀ, from the first of `pairs`. Values that do not fill a vector go through a copy.
inline void step_fold(float* to, const float* from, int64_t V, int64_t W, float keep, const StepBuffers& at,
                      const Pair* pairs, int64_t rows) {
    for (int64_t f = 0; f < ROWS; ++f) {
        const Pair pair = pairs[smaller(f, rows - 1)];
        const float *left = at.k_channels + pair.first * at.keys, *right = at.k_channels + pair.second * at.keys;
        const float root = pair.is_weighted() ? ROOT : 1;
        for (int64_t j = 0; j < at.keys; j += LANES)
            store(at.panel + f * at.keys + j, load(left + j) * load(right + j) * root);
    }
    const Broadcast features{at.panel, at.keys, 1};
    int64_t c = 0;
    if (rows == ROWS)
        for (; c + GROUP <= V; c += GROUP) {
            Tile<COLS> tile;
            tile.read(from + c, W, keep);
            tile.add_product(features, at.v + c, at.w_row, at.keys);
            tile.write(to + c, W);
        }
    for (; c < V; c += LANES) {
        const int64_t columns = smaller(LANES, V - c);
        float copy[ROWS * LANES] = {};
        for (int64_t f = 0; f < rows; ++f) std::memcpy(copy + f * LANES, from + f * W + c, columns * sizeof(float));
        add_product_tile<1>(copy, LANES, keep, features, at.v + c, at.w_row, at.keys);
        for (int64_t f = 0; f < rows; ++f) std::memcpy(to + f * W + c, copy + f * LANES, columns * sizeof(float));
    }
    for (int64_t f = 0; f < rows && V < W; ++f) {
        vec total{};
        for (int64_t j = 0; j < at.keys; j += LANES) total += load(at.panel + f * at.keys + j) * load(at.counts + j);
        to[f * W + V] = keep * from[f * W + V] + sum(total);
    }
}

// Keys times the scale and values times what is left of them at the end, for a fold.
inline void pack_fold(const StepBuffers& at, const MaclaurinAttention& call, int64_t b, int64_t g, int64_t first) {
    transpose_rows(at.k_channels, at.keys, at.keys, row(call.k, b, 0, g), call.k.time, call.S, call.K, call.scale);
    fill(at.v, at.keys * at.w_row, 0);
    fill(at.counts, at.keys, 0);
    for (int64_t j = 0; j < call.S; ++j) {
        const float* v = row(call.v, b, j, g);
        at.counts[j] = j < first ? 0 : at.left[j];
        for (int64_t c = 0; c < call.V; ++c) at.v[j * at.w_row + c] = v[c] * at.counts[j];
    }
}

// `rows` rows from `begin` on, for all queries of a head; whole vectors in the first `fast` of them.
template <class Number>
inline void step_read_rows(const MaclaurinAttention& call, const StepBuffers& at, const Number* state, int64_t begin,
                           int64_t rows, int64_t fast) {
    const int64_t W = state_width(call), F = monomial_count(call.K), at_once = PARTS<Number> * LANES;
    for (int64_t r = 0; r < call.H / call.G; ++r) {
        float* read = at.read + r * at.read_row;
        const float* features = at.features + r * F + begin;
        step_read(read, features, state, W, fast, round_up(W, at_once) / at_once);
        for (int64_t f = fast; f < rows; ++f)
            for (int64_t c = 0; c < W; ++c) read[place(state, c)] += features[f] * number(state[f * W + c]);
    }
}

inline void step_in_order(const MaclaurinAttention& call, const StepBuffers& at) {
    for (int64_t r = 0; r < call.H / call.G; ++r) {
        float* read = at.read + r * at.read_row;
        for (int64_t c = 0; c < state_width(call); ++c) at.in_order[c] = read[place(call.halves.upper, c)];
        std::memcpy(read, at.in_order, state_width(call) * sizeof(float));
    }
}

// The one pass over the state of a head. joined: over both halves of one that has halves, as a fold needs them.
inline void step_state(const MaclaurinAttention& call, const StepBuffers& at, const Pairs& pairs, int64_t b, int64_t g,
                       Left left, bool joined) {
    const int64_t R = call.H / call.G, W = state_width(call), F = monomial_count(call.K), head = b * call.G + g;
    const bool in_halves = call.halves.upper != nullptr;
    // rows at the end from which whole vectors would reach out
    const int64_t careful = (round_up(W, in_halves ? 2 * LANES : LANES) + W - 1) / W - 1;
    for (int64_t r = 0; r < R; ++r) {
        step_features(at.features + r * F, at.q + r * at.k_row, call.K);
        if (call.constant) step_orders(at.features + r * F, call.K, Orders(call, g * R + r));
    }
    fill(at.read, R * at.read_row, 0);
    if (call.folded) pack_fold(at, call, b, g, left.first);
    for (int64_t begin = 0; begin < F; begin += STEP_ROWS) {
        const int64_t rows = smaller(STEP_ROWS, F - begin), fast = larger(0, smaller(rows, F - careful - begin));
        const int64_t start = head * F * W + begin * W;
        if (in_halves && !joined) {
            step_read_rows(call, at, call.halves.upper + start, begin, rows, fast);
            continue;
        }
        const float* state = in_halves ? at.whole : call.state + head * call.state_head + begin * W;
        if (in_halves) join(at.whole, call.halves, start, rows * W);
        step_read_rows(call, at, state, begin, rows, in_halves ? rows : fast);
        if (!call.folded) continue;
        float* new_state = in_halves ? at.new_whole : call.new_state + start;
        for (int64_t f = 0; f < rows; f += ROWS)
            step_fold(new_state + f * W, state + f * W, call.V, W, left.state, at, pairs.data + begin + f,
                      smaller(ROWS, rows - f));
        if (in_halves) split(call.new_halves, start, at.new_whole, rows * W);
    }
    if (in_halves && !joined) step_in_order(call, at);
}

// Σ_j w_j |k_j|², which stands in the state.
inline float step_trace(const MaclaurinAttention& call, int64_t b, int64_t g) {
    const int64_t W = call.V + 1, head = b * call.G + g;
    float trace = 0;
    for (int64_t p = 0, f = 0; p < call.K; f += call.K - p, ++p) {
        const int64_t place = f * W + call.V;
        trace += call.halves.upper == nullptr ? call.state[head * call.state_head + place]
                                              : number(call.halves.upper[head * monomial_count(call.K) * W + place]);
    }
    return trace;
}

// Whether the total that a query head has read is more than this part of its largest term.
inline bool step_exceeds(const MaclaurinAttention& call, const StepBuffers& at, int64_t r, float trace, float part) {
    const float* q = at.q + r * at.k_row;
    return at.read[r * at.read_row + call.V] > part * static_cast<float>(dot(q, q, call.K)) * trace;
}

// Reads the state, of one in halves the upper ones, and both where these leave a query of the head too few digits.
inline void step_read_state(const MaclaurinAttention& call, const StepBuffers& at, const Pairs& pairs, int64_t b, int64_t g,
                            Left left, float trace) {
    step_state(call, at, pairs, b, g, left, call.folded != 0);
    if (call.halves.upper == nullptr || call.folded || !call.normalize) return;
    for (int64_t r = 0; r < call.H / call.G; ++r)
        if (!step_exceeds(call, at, r, trace, ENOUGH_FOR_HALVES)) return step_state(call, at, pairs, b, g, left, true);
}

// What a query head has read goes to its sums, unless it is rounding error: then false.
inline bool step_use(const MaclaurinAttention& call, const StepBuffers& at, int64_t r, float keep, float trace) {
    const float* read = at.read + r * at.read_row;
    float* sums = at.sums + r * at.s_row;
    if (call.normalize) {
        if (call.order_weights == nullptr && !step_exceeds(call, at, r, trace, ROUNDING)) return false;
        sums[at.v_row] += read[call.V] * keep;
    }
    for (int64_t c = 0; c < call.V; ++c) sums[c] += read[c] * keep;
    return true;
}

// One task per key-value head.
inline bool step_through_state(const MaclaurinAttention& call) {
    const Pairs pairs(call.folded ? call.K : 1, call.constant);
    if (pairs.data == nullptr) return false;
    if (call.new_state != nullptr) prefer_large_pages(call.new_state, call.B * call.G * state_size(call) * sizeof(float));
    return over_heads(call, [&](int64_t b, int64_t g) {
        return with_buffers<StepBuffers>(call, [&](const StepBuffers& at) {
            const int64_t R = call.H / call.G;
            const Left left = pack_left(at.left, call, b, g);
            copy_rows(at.q, at.k_row, R, row(call.q, b, 0, g * R), call.q.head, R, call.K, 1);
            // values and totals without columns are no state
            const bool reads = (left.state != 0 || call.folded) && state_width(call) > 0;
            // before a fold, which may write the new state over this one
            const float trace = reads && call.normalize ? step_trace(call, b, g) : 0;
            if (reads) step_read_state(call, at, pairs, b, g, left, trace);
            fill(at.sums, R * at.s_row, 0);
            for (int64_t r = 0; r < R; ++r) {
                float* sums = at.sums + r * at.s_row;
                for (int64_t begin = left.first; begin < call.S; begin += STEP_KEYS)
                    step_keys(sums, at.v_row, at.q + r * at.k_row, call, b, g, begin, smaller(STEP_KEYS, call.S - begin),
                              at.left + begin, Orders(call, g * R + r));
                const bool silent = reads && left.state != 0 && !step_use(call, at, r, left.state, trace);
                step_finish(call, sums, at.v_row, silent, b, g * R + r);
            }
        });
    });
}

}  // namespace maclaurin::MACLAURIN_VARIANT
