// First-order attention, forward: with S the state before a block and d the decay in between,
//     y_i = (d q_i)ᵀ S + Σ_{j<=i} (q_i·d k_j) v_j,      S = d S + Σ_j (d k_j) v_jᵀ
#pragma once
#include "attend.h"
#include "linear_centred.h"
#include "linear_pairs.h"
#include "linear_state.h"

namespace maclaurin::MACLAURIN_VARIANT {

template <bool PER_CHANNEL>
struct LinearForwardBuffers {
    static constexpr int64_t ROW = BLOCK<PER_CHANNEL>;
    BlockDecay<PER_CHANNEL> decay;
    float* states;           // of every head of the task
    float *q, *k, *v;        // rows of the block
    float *left_q, *left_k;  // decayed: q from the start, k to the end
    float* q_channels;       // [channel][query]
    float *weights, *y, *total, *carried;
    float *value_sums, *values_before;  // where centred: up to each token of the block; before it, of every head

    LinearForwardBuffers(Arena& arena, const LinearShape& shape)
        : decay(arena, shape),
          states(arena.take(shape.heads * LinearState::floats(shape))),
          q(arena.take(ROW * shape.k_row)),
          k(arena.take(ROW * shape.k_row)),
          v(arena.take(ROW * shape.v_row)),
          left_q(arena.take(ROW * shape.k_row)),
          left_k(arena.take(ROW * shape.k_row)),
          q_channels(arena.take(ROW * shape.k_row)),
          weights(arena.take(ROW * ROW)),
          y(arena.take(ROW * shape.v_row)),
          total(arena.take(ROW)),
          carried(arena.take(PER_CHANNEL ? shape.K * LANES : 0)),
          value_sums(arena.take(ROW * shape.v_row)),
          values_before(arena.take(shape.heads * shape.v_row)) {}

    LinearState state(int64_t n, const LinearShape& shape) const { return {states + n * LinearState::floats(shape), shape}; }
};

template <bool PER_CHANNEL>
inline void linear_outputs(const MaclaurinLinear& call, const LinearShape& shape,
                           const LinearForwardBuffers<PER_CHANNEL>& buffers, const LinearState& state, bool empty, int64_t b,
                           int64_t h, int64_t begin, int64_t count) {
    constexpr int64_t ROW = BLOCK<PER_CHANNEL>;
    const int64_t padded = round_up(count, larger(LANES, ROWS));
    copy_rows(buffers.q, shape.k_row, padded, row(call.q, b, begin, h), call.q.time, count, shape.K, call.q_scale);
    transpose_rows(buffers.q_channels, ROW, padded, buffers.q, shape.k_row, padded, shape.K, 1);
    decay_rows(buffers.left_q, buffers.q, buffers.decay, buffers.decay.from_start, count, shape.k_row);
    weigh(buffers.weights, buffers.q_channels, buffers.k, shape, buffers.decay, count, buffers.carried);
    over_tiles(round_up(count, ROWS), shape.v_row, [&](int64_t i, int64_t j, auto vectors) {
        Tile<decltype(vectors)::value> tile;
        tile.clear();
        if (!empty)
            tile.add_product({buffers.left_q + i * shape.k_row, shape.k_row, 1}, state.s + j, shape.v_row, shape.K);
        tile.add_product({buffers.weights + i, 1, ROW}, buffers.v + j, shape.v_row, smaller(count, i + ROWS));
        tile.write(buffers.y + i * shape.v_row + j, shape.v_row);
    });
    for (int64_t i = 0; i < count && call.normalize; i += LANES) {
        vec total{};
        for (int64_t j = 0; j < smaller(count, i + LANES); ++j) total += load(buffers.weights + j * ROW + i);
        store(buffers.total + i, total);
    }
    bool nan = false;
    for (int64_t i = 0; i < count; ++i) {
        float times = 1;
        if (call.normalize) {
            if (!empty) buffers.total[i] += dot_product(buffers.left_q + i * shape.k_row, state.z, shape.k_row);
            *row(call.total, b, begin + i, h) = buffers.total[i];
            times = inverse(buffers.total[i]);
        }
        if (call.centred) {
            const float share = share_of_values(buffers.total[i], begin + i) * static_cast<float>(begin + i + 1);
            for (int64_t c = 0; c < shape.v_row; ++c) buffers.y[i * shape.v_row + c] += share * buffers.value_sums[i * shape.v_row + c];
            times = 1.0f / static_cast<float>(begin + i + 1);
        }
        nan |= write_row(row(call.y, b, begin + i, h), buffers.y + i * shape.v_row, shape.V, times);
    }
    report_nan(call.nan, nan);
}

// One block of one key-value head, the n-th of its task, and its queries.
template <bool PER_CHANNEL>
inline void linear_forward_block(const MaclaurinLinear& call, const LinearShape& shape,
                                 const LinearForwardBuffers<PER_CHANNEL>& buffers, const LinearState& state, int64_t b,
                                 int64_t g, int64_t n, int64_t begin, int64_t count) {
    const int64_t R = call.H / call.G, padded = round_up(count, larger(LANES, ROWS));
    copy_rows(buffers.k, shape.k_row, padded, row(call.k, b, begin, g), call.k.time, count, shape.K, call.k_scale);
    copy_rows(buffers.v, shape.v_row, padded, row(call.v, b, begin, g), call.v.time, count, shape.V, 1);
    buffers.decay.pack(call.log_decay, shape, b, g, begin, count);
    if (call.centred) sum_values(buffers.value_sums, buffers.values_before + n * shape.v_row, buffers.v, shape.v_row, count);
    const bool empty = begin == 0 && call.state == nullptr;
    for (int64_t r = 0; r < R; ++r) linear_outputs(call, shape, buffers, state, empty, b, g * R + r, begin, count);
    if (begin + count == call.T && call.new_state == nullptr) return;
    decay_rows(buffers.left_k, buffers.k, buffers.decay, buffers.decay.to_end, count, shape.k_row);
    state.add(buffers.decay.keep, buffers.left_k, buffers.v, nullptr, count);
}

template <bool PER_CHANNEL>
bool linear_forward_of_heads(const MaclaurinLinear& call, const LinearShape& shape, int64_t b, int64_t first, int64_t heads) {
    using Buffers = LinearForwardBuffers<PER_CHANNEL>;
    return with_buffers<Buffers>(shape, [&](const Buffers& buffers) {
        const int64_t step = smaller(call.chunk, Buffers::ROW), at = b * call.G + first;
        fill(buffers.values_before, heads * shape.v_row, 0);
        for (int64_t n = 0; n < heads; ++n)
            buffers.state(n, shape).read(call.state == nullptr ? nullptr : call.state + (at + n) * call.state_head, shape);
        for (int64_t begin = 0; begin < call.T; begin += step)
            for (int64_t n = 0; n < heads; ++n)
                linear_forward_block(call, shape, buffers, buffers.state(n, shape), b, first + n, n, begin,
                                     smaller(step, call.T - begin));
        for (int64_t n = 0; n < heads && call.new_state != nullptr; ++n)
            buffers.state(n, shape).write(call.new_state + (at + n) * shape.state_size(), shape);
    });
}

inline bool linear_forward(const MaclaurinLinear& call) {
    LinearShape shape(call.K, call.V, call.normalize);
    shape.heads = heads_of_task(call, shape);
    return over_groups_of_heads(call, shape, [&](int64_t b, int64_t first, int64_t heads) {
        return call.per_channel ? linear_forward_of_heads<true>(call, shape, b, first, heads)
                                : linear_forward_of_heads<false>(call, shape, b, first, heads);
    });
}

}  // namespace maclaurin::MACLAURIN_VARIANT
