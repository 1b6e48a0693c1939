// The delta rule, forward, block by block:
//     y_i = φ(d q_i)ᵀ S + Σ_{j<=i} f(q_i·k_j) d u_j,      S = d S + Σ_j φ(d k_j) u_jᵀ
#pragma once
#include "delta_block.h"

namespace maclaurin::MACLAURIN_VARIANT {

template <class Memory>
struct DeltaForwardBuffers {
    static constexpr int64_t ROW = Memory::Decay::ROW;
    DeltaBlock<Memory> block;
    Memory memory;
    float *q, *q_channels, *weights, *scores;
    float* read;  // [token][v_row]: what a key recalls, or the output

    DeltaForwardBuffers(Arena& arena, const DeltaSizes& sizes)
        : block(arena, sizes),
          memory(arena, sizes),
          q(arena.take(ROW * sizes.shape.k_row)),
          q_channels(arena.take(ROW * sizes.shape.k_row)),
          weights(arena.take(ROW * ROW)),
          scores(arena.take(Memory::ORDER > 1 ? ROW * ROW : 0)),
          read(arena.take(ROW * sizes.shape.v_row)) {}
};

// The errors of a block, and what it writes.
template <class Memory>
inline void delta_errors(const MaclaurinDelta& call, const DeltaForwardBuffers<Memory>& at, bool empty, int64_t b, int64_t g,
                         int64_t begin, int64_t count) {
    const DeltaBlock<Memory>& block = at.block;
    const int64_t v_row = block.shape.v_row;
    block.pack(call, call.v, b, g, begin, count);
    block.weigh(at.memory, count);
    if (!empty) {
        at.memory.template read<true>(at.read, block.k, block.decay, block.decay.from_start, count);
        for (int64_t i = 0; i < count * v_row; i += LANES) store(block.error + i, load(block.error + i) - load(at.read + i));
    }
    block.solve(count);
    for (int64_t i = 0; i < count; ++i)
        write_row(row(call.error, b, begin + i, g), block.error + i * v_row, block.shape.V, 1);
}

template <class Memory>
inline void delta_outputs(const MaclaurinDelta& call, const DeltaForwardBuffers<Memory>& at, bool empty, int64_t b, int64_t h,
                          int64_t begin, int64_t count) {
    constexpr int64_t ROW = Memory::Decay::ROW;
    const DeltaBlock<Memory>& block = at.block;
    const LinearShape& shape = block.shape;
    const int64_t padded = block.padded(count);
    copy_rows(at.q, shape.k_row, padded, row(call.q, b, begin, h), call.q.time, count, shape.K, call.scale);
    transpose_rows(at.q_channels, ROW, padded, at.q, shape.k_row, padded, shape.K, 1);
    at.memory.weigh(at.weights, at.scores, at.q_channels, block.k, block.decay, count, block.carried);
    if (empty) fill(at.read, padded * shape.v_row, 0);
    else at.memory.template read<true>(at.read, at.q, block.decay, block.decay.from_start, count);
    over_tiles(round_up(count, ROWS), shape.v_row, [&](int64_t i, int64_t j, auto vectors) {
        add_product_tile<decltype(vectors)::value>(at.read + i * shape.v_row + j, shape.v_row, 1, {at.weights + i, 1, ROW},
                                                   block.u + j, shape.v_row, smaller(count, i + ROWS));
    });
    bool nan = false;
    for (int64_t i = 0; i < count; ++i)
        nan |= write_row(row(call.y, b, begin + i, h), at.read + i * shape.v_row, shape.V, 1);
    report_nan(call.nan, nan);
}

template <class Memory>
bool delta_forward_of_head(const MaclaurinDelta& call, const DeltaSizes& sizes, int64_t b, int64_t g) {
    using Buffers = DeltaForwardBuffers<Memory>;
    return with_buffers<Buffers>(sizes, [&](const Buffers& at) {
        const int64_t R = call.H / call.G, step = smaller(call.chunk, Buffers::ROW);
        const int64_t state_at = (b * call.G + g) * Memory::features(call.K) * call.V;
        at.memory.start(call.state == nullptr ? nullptr : call.state + state_at, 1 / ROOT);
        for (int64_t begin = 0; begin < call.T; begin += step) {
            const int64_t count = smaller(step, call.T - begin);
            const bool empty = begin == 0 && call.state == nullptr;
            delta_errors(call, at, empty, b, g, begin, count);
            for (int64_t r = 0; r < R; ++r) delta_outputs(call, at, empty, b, g * R + r, begin, count);
            if (begin + count == call.T && call.new_state == nullptr) break;
            at.memory.template add<false>(true, at.block.k, at.block.decay, at.block.decay.to_end, at.block.u, count);
        }
        if (call.new_state != nullptr) at.memory.finish(call.new_state + state_at, ROOT);
    });
}

inline bool delta_forward(const MaclaurinDelta& call) {
    return with_memory(call, [&](auto* kind, const DeltaSizes& sizes, int64_t b, int64_t g) {
        return delta_forward_of_head<std::remove_pointer_t<decltype(kind)>>(call, sizes, b, g);
    });
}

}  // namespace maclaurin::MACLAURIN_VARIANT
