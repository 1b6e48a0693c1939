// The delta rule takes a block of tokens at a time. With φ the features, f(x·y) = φ(x)·φ(y), d the decay in between, S the state
// before the block, and u_j = β_j e_j what token j writes:
//     e_i = v_i - φ(d k_i)ᵀ S - Σ_{j<i} f(k_i·k_j) d u_j        a unit triangular system
#pragma once
#include "attend.h"
#include "delta_memory.h"

namespace maclaurin::MACLAURIN_VARIANT {

// The keys of a block, what they are written with, and what lies between them.
template <class Memory>
struct DeltaBlock {
    static constexpr int64_t ROW = Memory::Decay::ROW;
    const LinearShape& shape;
    typename Memory::Decay decay;
    float *k, *k_channels, *beta;  // [token][k_row], [channel][token], [token]
    float *error, *u;              // [token][v_row]
    float *between, *scores;       // [token][later token]: the weights of the system; the diagonal means nothing
    float* carried;

    DeltaBlock(Arena& arena, const DeltaSizes& sizes)
        : shape(sizes.shape),
          decay(arena, shape),
          k(arena.take(ROW * shape.k_row)),
          k_channels(arena.take(ROW * shape.k_row)),
          beta(arena.take(ROW)),
          error(arena.take(ROW * shape.v_row)),
          u(arena.take(ROW * shape.v_row)),
          between(arena.take(ROW * ROW)),
          scores(arena.take(Memory::ORDER > 1 ? ROW * ROW : 0)),
          carried(arena.take(Memory::PER_CHANNEL ? shape.K * LANES : 0)) {}

    static int64_t padded(int64_t count) { return round_up(count, larger(LANES, ROWS)); }

    // `values`: the tensor that `error` is filled from.
    void pack(const MaclaurinDelta& call, const MaclaurinTensor& values, int64_t b, int64_t g, int64_t begin,
              int64_t count) const {
        copy_rows(k, shape.k_row, padded(count), row(call.k, b, begin, g), call.k.time, count, shape.K, 1);
        copy_rows(error, shape.v_row, padded(count), row(values, b, begin, g), values.time, count, shape.V, 1);
        fill(beta, ROW, 0);
        for (int64_t t = 0; t < count; ++t) beta[t] = *row(call.beta, b, begin + t, g);
        decay.pack(call.log_decay, shape, b, g, begin, count);
    }

    void weigh(const Memory& memory, int64_t count) const {
        transpose_rows(k_channels, ROW, padded(count), k, shape.k_row, padded(count), shape.K, 1);
        memory.weigh(between, scores, k_channels, k, decay, count, carried);
    }

    // to = β rows, for what is written and for the gradient of values.
    void times_beta(float* to, const float* rows, int64_t count) const {
        for (int64_t t = 0; t < round_up(count, ROWS); ++t)
            for (int64_t c = t * shape.v_row; c < (t + 1) * shape.v_row; c += LANES) store(to + c, load(rows + c) * beta[t]);
    }

    // The system: `error` is its right side and becomes e, u what is written. Values of a column need no others.
    void solve(int64_t count) const {
        over_columns([&](int64_t c, auto vectors) {
            constexpr int N = decltype(vectors)::value;
            for (int64_t i = 0; i < count; i += ROWS) {
                Tile<N> minus_e;
                minus_e.read(error + i * shape.v_row + c, shape.v_row, -1);
                minus_e.add_product({between + i, 1, ROW}, u + c, shape.v_row, i);
                Tile<N> written;
#pragma GCC unroll 8
                for (int r = 0; r < ROWS; ++r) {
#pragma GCC unroll 8
                    for (int s = 0; s < r; ++s) minus_e.add(r, written.at[s], between[(i + s) * ROW + i + r]);
                    for (int n = 0; n < N; ++n) {
                        minus_e.at[r][n] = -minus_e.at[r][n];
                        written.at[r][n] = minus_e.at[r][n] * beta[i + r];
                    }
                }
                minus_e.write(error + i * shape.v_row + c, shape.v_row);
                written.write(u + i * shape.v_row + c, shape.v_row);
            }
        });
    }

    // Its transpose, w_j = du_j - Σ_{i>j} f(k_i·k_j) d dv_i and dv = β w: w comes in place of du.
    void solve_transposed(float* w, float* dv, int64_t count) const {
        const int64_t end = round_up(count, ROWS);
        over_columns([&](int64_t c, auto vectors) {
            constexpr int N = decltype(vectors)::value;
            for (int64_t j = end - ROWS; j >= 0; j -= ROWS) {
                const int64_t next = j + ROWS;
                Tile<N> minus_w;
                minus_w.read(w + j * shape.v_row + c, shape.v_row, -1);
                minus_w.add_product({between + j * ROW + next, ROW, 1}, dv + next * shape.v_row + c, shape.v_row, end - next);
                Tile<N> found;
#pragma GCC unroll 8
                for (int r = ROWS - 1; r >= 0; --r) {
#pragma GCC unroll 8
                    for (int s = ROWS - 1; s > r; --s) minus_w.add(r, found.at[s], between[(j + r) * ROW + j + s]);
                    for (int n = 0; n < N; ++n) {
                        minus_w.at[r][n] = -minus_w.at[r][n];
                        found.at[r][n] = minus_w.at[r][n] * beta[j + r];
                    }
                }
                minus_w.write(w + j * shape.v_row + c, shape.v_row);
                found.write(dv + j * shape.v_row + c, shape.v_row);
            }
        });
    }

  private:
    template <class Body>
    void over_columns(const Body& body) const {
        int64_t c = 0;
        for (; c + GROUP <= shape.v_row; c += GROUP) body(c, std::integral_constant<int, COLS>{});
        for (; c < shape.v_row; c += LANES) body(c, std::integral_constant<int, 1>{});
    }
};

// run(memory type) with the kind of features that the call asks for; false where memory ran out.
template <class Run>
bool with_memory(const MaclaurinDelta& call, const Run& run) {
    const Pairs pairs(call.order == 2 ? call.K : 1);
    if (pairs.data == nullptr) return false;
    const DeltaSizes sizes{LinearShape(call.K, call.V, false), &pairs};
    return over_heads(call, [&](int64_t b, int64_t g) {
        if (call.order == 2) return run(static_cast<Squares*>(nullptr), sizes, b, g);
        if (call.per_channel) return run(static_cast<FirstOrder<true>*>(nullptr), sizes, b, g);
        return run(static_cast<FirstOrder<false>*>(nullptr), sizes, b, g);
    });
}

}  // namespace maclaurin::MACLAURIN_VARIANT
