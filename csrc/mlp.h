// What stands between the mixers of two layers, for the few tokens of a decoding step: y = x + added, y += W_down (silu(W_gate n)
// ⊙ W_up n) with n = norm(y), and the norm of y that the next layer begins with.
//
// Tokens are the columns of all blocks, so that weights are read where they are, row by row and once. A token's numbers do
// not depend on those beside it.
#pragma once
#include <cmath>

#include "arena.h"
#include "conv.h"
#include "tile.h"

namespace maclaurin::MACLAURIN_VARIANT {

// C = A·B for ROWS rows of A, `depth` numbers each, and columns of whole vectors.
template <int N>
MACLAURIN_INLINE void product_tile(float* c, int64_t c_row, Broadcast a, const float* b, int64_t depth) {
    Tile<N> tile;
    tile.clear();
    tile.add_product(a, b, c_row, depth);
    tile.write(c, c_row);
}
__attribute__((noinline)) inline void product(float* c, int64_t columns, const float* weights, const float* b,
                                              int64_t depth) {
    const Broadcast a{weights, depth, 1};
    int64_t j = 0;
    for (; j + GROUP <= columns; j += GROUP) product_tile<COLS>(c + j, columns, a, b + j, depth);
    for (; j < columns; j += LANES) product_tile<1>(c + j, columns, a, b + j, depth);
}

struct MlpBuffers {
    float *tokens, *y, *normed, *gate, *up;  // tokens [B][D], the others [channels][columns]
    int64_t columns;

    MlpBuffers(Arena& arena, const MaclaurinMlp& call) : columns(round_up(call.B, LANES)) {
        tokens = arena.take(columns * call.D);
        y = arena.take(columns * call.D);
        normed = arena.take(columns * call.D);
        gate = arena.take(columns * call.E);
        up = arena.take(columns * call.E);
    }
};

// to = from ⊙ weight / √(mean of squares + epsilon), over [D][columns].
inline void normalise(float* to, const float* from, const float* weight, float epsilon, int64_t D, int64_t columns) {
    for (int64_t j = 0; j < columns; j += LANES) {
        vec squares{};
        for (int64_t c = 0; c < D; ++c) {
            const vec x = load(from + c * columns + j);
            squares += x * x;
        }
        vec times;
        for (int l = 0; l < LANES; ++l) times[l] = 1 / std::sqrt(squares[l] / static_cast<float>(D) + epsilon);
        for (int64_t c = 0; c < D; ++c) store(to + c * columns + j, load(from + c * columns + j) * times * weight[c]);
    }
}

// to[b] = from[:, b] for b < B, with room for whole vectors of tokens in between.
inline void tokens_of(float* to, float* between, const float* from, const MaclaurinMlp& call, int64_t columns) {
    transpose_rows(between, call.D, call.D, from, columns, call.D, columns, 1);
    std::memcpy(to, between, call.B * call.D * sizeof(float));
}

// D and E are multiples of LANES, so that every block is made of whole tiles.
inline bool mlp_forward(const MaclaurinMlp& call) {
    return with_buffers<MlpBuffers>(call, [&](const MlpBuffers& at) {
        const FlushSubnormals flush;
        const int64_t D = call.D, E = call.E, columns = at.columns, numbers = call.B * D;
        for (int64_t i = 0; i < numbers; ++i) at.tokens[i] = call.x[i] + call.added[i];
        fill(at.tokens + numbers, columns * D - numbers, 0);
        transpose_rows(at.y, columns, columns, at.tokens, D, columns, D, 1);
        normalise(at.normed, at.y, call.norm, call.epsilon, D, columns);
        parallel_for(E / ROWS, call.threads, [&](int64_t panel) {
            const FlushSubnormals flush_here;
            float *gate = at.gate + panel * ROWS * columns, *up = at.up + panel * ROWS * columns;
            product(gate, columns, call.gate + panel * ROWS * D, at.normed, D);
            product(up, columns, call.up + panel * ROWS * D, at.normed, D);
            for (int64_t i = 0; i < ROWS * columns; i += LANES) store(gate + i, activate(load(gate + i), true) * load(up + i));
        });
        parallel_for(D / ROWS, call.threads, [&](int64_t panel) {
            const FlushSubnormals flush_here;
            float *down = at.normed + panel * ROWS * columns, *y = at.y + panel * ROWS * columns;
            product(down, columns, call.down + panel * ROWS * E, at.gate, E);
            for (int64_t i = 0; i < ROWS * columns; i += LANES) store(y + i, load(y + i) + load(down + i));
        });
        tokens_of(call.y, at.tokens, at.y, call, columns);
        normalise(at.normed, at.y, call.next_norm, call.next_epsilon, D, columns);
        tokens_of(call.normed, at.tokens, at.normed, call, columns);
    });
}

}  // namespace maclaurin::MACLAURIN_VARIANT
