// One new token and the state: read as the caller has it and, when tokens are folded in, written anew: beside it, so that the
// caller's state stays as it is, or over it, where both are the same memory.
#pragma once
#include "chunked_forward.h"
#include "step_halves.h"

namespace maclaurin::MACLAURIN_VARIANT {

// Upper halves of a state are enough for totals above this part of their largest term; below, rounding would show. Keys of
// 64 channels that point everywhere give 1/64.
constexpr float ENOUGH_FOR_HALVES = 1.0f / 256;

// ROWS rows of keep·S + Σ_j φ(k_j) (v_j, 1)ᵀ, from row f on. Values that do not fill a vector go through a copy.
inline void step_fold(float* to, const float* from, int64_t V, int64_t W, float keep, const FoldBuffers& fold,
                      const Pairs& pairs, int64_t f, int64_t rows) {
    const Broadcast features = fold.monomials(pairs.data + f);
    int64_t c = 0;
    if (rows == ROWS)
        for (; c + GROUP <= V; c += GROUP) {
            Tile<COLS> tile;
            tile.read(from + c, W, keep);
            tile.add_product(features, fold.v + c, fold.v_row, fold.keys);
            tile.write(to + c, W);
        }
    for (; c < V; c += LANES) {
        const int64_t columns = smaller(LANES, V - c);
        float copy[ROWS * LANES] = {};
        for (int64_t i = 0; i < rows; ++i) std::memcpy(copy + i * LANES, from + i * W + c, columns * sizeof(float));
        add_product_tile<1>(copy, LANES, keep, features, fold.v + c, fold.v_row, fold.keys);
        for (int64_t i = 0; i < rows; ++i) std::memcpy(to + i * W + c, copy + i * LANES, columns * sizeof(float));
    }
    for (int64_t i = 0; i < rows && V < W; ++i) to[i * W + V] = keep * from[i * W + V] + fold.totals[f + i];
}

// The one pass over the state of a head in float32.
inline void step_through(const MaclaurinAttention& call, const StepBuffers& at, const FoldBuffers& fold, const Pairs& pairs,
                         int64_t head, float keep) {
    const int64_t R = call.H / call.G, W = state_width(call), F = monomial_count(call.K);
    const int64_t careful = (round_up(W, LANES) + W - 1) / W - 1;  // rows at the end from which whole vectors would reach out
    fill(at.read, R * at.read_row, 0);
    for (int64_t begin = 0; begin < F; begin += STEP_ROWS) {
        const int64_t rows = smaller(STEP_ROWS, F - begin), fast = larger(0, smaller(rows, F - careful - begin));
        const float* state = call.state + head * call.state_head + begin * W;
        for (int64_t r = 0; r < R; ++r) {
            float* read = at.read + r * at.read_row;
            const float* features = at.features + r * F + begin;
            step_read(read, features, state, W, fast, round_up(W, LANES) / LANES);
            for (int64_t f = fast; f < rows; ++f)
                for (int64_t c = 0; c < W; ++c) read[c] += features[f] * state[f * W + c];
        }
        for (int64_t f = 0; f < rows && call.folded; f += ROWS)
            step_fold(call.new_state + (head * F + begin + f) * W, state + f * W, call.V, W, keep, fold, pairs, begin + f,
                      smaller(ROWS, rows - f));
    }
}

// Σ_j w_j |k_j|², which stands in the state: `totals` from monomial to monomial.
inline float step_trace(const float* totals, int64_t from_one_to_next, int64_t K) {
    float trace = 0;
    for (int64_t p = 0, f = 0; p < K; f += K - p, ++p) trace += totals[f * from_one_to_next];
    return trace;
}

// Whether the total that a query head has read is more than this part of its largest term.
inline bool step_exceeds(const MaclaurinAttention& call, const StepBuffers& at, int64_t r, float trace, float part) {
    const float* q = at.q + r * at.k_row;
    return at.read[r * at.read_row + call.V] > part * dot_product(q, q, call.K) * trace;
}

struct StateBuffers {
    StepBuffers step;
    FoldBuffers fold;
    float* whole;  // rows of a state in halves, joined

    StateBuffers(Arena& arena, const MaclaurinAttention& call)
        : step(arena, call),
          fold(arena, call, round_up(call.V, call.halves == nullptr ? LANES : HALVES_COLUMNS)),
          whole(arena.take(call.halves == nullptr ? 0 : STEP_ROWS * round_up(call.V, HALVES_COLUMNS))) {}
};

inline bool enough_for_halves(const MaclaurinAttention& call, const StepBuffers& at, float trace) {
    for (int64_t r = 0; r < call.H / call.G && call.normalize; ++r)
        if (!step_exceeds(call, at, r, trace, ENOUGH_FOR_HALVES)) return false;
    return true;
}

// Reads the state of a head for all of its queries, and folds tokens into it. Returns the trace before.
inline float step_of_head(const MaclaurinAttention& call, const StateBuffers& buffers, const Pairs& pairs, int64_t b, int64_t g,
                          Left left) {
    const int64_t R = call.H / call.G, F = monomial_count(call.K), W = state_width(call), head = b * call.G + g;
    const StepBuffers& at = buffers.step;
    for (int64_t r = 0; r < R; ++r) {
        step_features(at.features + r * F, at.q + r * at.k_row, call.K);
        if (call.constant) step_orders(at.features + r * F, call.K, Orders(call, g * R + r));
    }
    float trace = 0;
    if (call.halves == nullptr) {
        if (call.folded) buffers.fold.pack(call, b, g, at.left, left.first, [](int64_t c) { return c; });
        if (call.normalize) trace = step_trace(call.state + head * call.state_head + call.V, W, call.K);
        step_through(call, at, buffers.fold, pairs, head, left.state);
        return trace;
    }
    const Halves state(call.halves, call.K, call.V, call.normalize, head);
    read_halves(call, at, state, buffers.whole, false);
    if (call.normalize) trace = step_trace(state.totals, 1, call.K);
    if (!enough_for_halves(call, at, trace)) read_halves(call, at, state, buffers.whole, true);
    if (call.folded) {
        buffers.fold.pack(call, b, g, at.left, left.first, place_in_pairs);
        const Halves after(call.new_halves, call.K, call.V, call.normalize, head);
        fold_halves(call, buffers.fold, after, state, pairs, left.state);
    }
    return trace;
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
    if (call.new_halves != nullptr)
        prefer_large_pages(call.new_halves, call.B * call.G * halves_size(call.K, call.V, call.normalize) * sizeof(uint16_t));
    return over_heads(call, [&](int64_t b, int64_t g) {
        return with_buffers<StateBuffers>(call, [&](const StateBuffers& buffers) {
            const StepBuffers& at = buffers.step;
            const int64_t R = call.H / call.G;
            const Left left = pack_left(at.left, call, b, g);
            copy_rows(at.q, at.k_row, R, row(call.q, b, 0, g * R), call.q.head, R, call.K, 1);
            // values and totals without columns are no state
            const bool reads = (left.state != 0 || call.folded) && state_width(call) > 0;
            const float trace = reads ? step_of_head(call, buffers, pairs, b, g, left) : 0;
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
