// What the delta rule does with its state, for the two kinds of features: the channels themselves, and their squares.
//
// x [token][k_row] are keys or queries, y [token][v_row] values; `factors` are those of a BlockDecay, one per token or one per
// channel. With S the state and d the factors,
//     read           to_i = φ(d_i x_i)ᵀ S
//     add            S = keep S + Σ_i φ(d_i x_i) y_iᵀ
//     read_backward  dx_i += the gradient by x_i of read, where to_i has the gradient y_i
// Squares hold plain monomials: those of readers carry the factor c of `monomials.h`, and in the gradient of the state it is the
// other way round, hence WEIGHTED.
#pragma once
#include "linear_pairs.h"
#include "linear_state.h"
#include "monomials.h"
#include "state.h"

namespace maclaurin::MACLAURIN_VARIANT {

struct DeltaSizes {
    LinearShape shape;
    const Pairs* pairs;  // of squares
};

template <bool PER_CHANNEL_>
class FirstOrder {
  public:
    static constexpr bool PER_CHANNEL = PER_CHANNEL_;
    static constexpr int ORDER = 1;
    using Decay = BlockDecay<PER_CHANNEL>;

    FirstOrder(Arena& arena, const DeltaSizes& sizes)
        : shape_(sizes.shape),
          state_(arena, shape_),
          across_(arena.take(shape_.k_row * shape_.v_row)),
          left_(arena.take(Decay::ROW * shape_.k_row)),
          ones_(arena.take(shape_.k_row)) {}

    static int64_t features(int64_t K) { return K; }

    void start(const float* from, float) const {
        fill(ones_, shape_.k_row, 1);
        state_.read(from, shape_);
    }
    void finish(float* to, float) const { state_.write(to, shape_); }

    // After a change of the state, before read_backward.
    void turn() const {
        transpose_rows(across_, shape_.k_row, shape_.k_row, state_.s, shape_.v_row, shape_.k_row, shape_.v_row, 1);
    }

    template <bool WEIGHTED>
    void read(float* to, const float* x, const Decay& decay, const float* factors, int64_t count) const {
        decay_rows(left_, x, decay, factors, count, shape_.k_row);
        over_tiles(round_up(count, ROWS), shape_.v_row, [&](int64_t i, int64_t j, auto vectors) {
            Tile<decltype(vectors)::value> tile;
            tile.clear();
            tile.add_product({left_ + i * shape_.k_row, shape_.k_row, 1}, state_.s + j, shape_.v_row, shape_.K);
            tile.write(to + i * shape_.v_row + j, shape_.v_row);
        });
    }

    template <bool WEIGHTED>
    void add(bool keep, const float* x, const Decay& decay, const float* factors, const float* y, int64_t count) const {
        decay_rows(left_, x, decay, factors, count, shape_.k_row);
        state_.add(keep ? decay.keep : ones_, left_, y, nullptr, count);
    }

    template <bool WEIGHTED>
    void read_backward(float* dx, const float*, const Decay& decay, const float* factors, const float* y,
                       int64_t count) const {
        const int64_t k_row = shape_.k_row;
        over_tiles(round_up(count, ROWS), k_row, [&](int64_t i, int64_t j, auto vectors) {
            constexpr int N = decltype(vectors)::value;
            Tile<N> tile;
            tile.clear();
            tile.add_product({y + i * shape_.v_row, shape_.v_row, 1}, across_ + j, k_row, shape_.V);
            for (int l = 0; l < ROWS; ++l)
                for (int n = 0; n < N; ++n) {
                    float* to = dx + (i + l) * k_row + j + n * LANES;
                    store(to, load(to) + tile.at[l][n] * decay.at(factors, i + l, j + n * LANES));
                }
        });
    }

    // Weights [key][reader] of the pairs of a block, x [channel][reader]; they are their own scores.
    void weigh(float* weights, float*, const float* x, const float* k, const Decay& decay, int64_t count,
               float* carried) const {
        MACLAURIN_VARIANT::weigh(weights, x, k, shape_, decay, count, carried);
    }
    static void through_scores(float*, float*, const float*, int64_t) {}

  private:
    const LinearShape& shape_;
    LinearState state_;
    float *across_, *left_, *ones_;
};

class Squares {
  public:
    static constexpr bool PER_CHANNEL = false;
    static constexpr int ORDER = 2;
    using Decay = BlockDecay<false>;

    Squares(Arena& arena, const DeltaSizes& sizes)
        : shape_(sizes.shape),
          state_{arena.take(sizes.pairs->count * shape_.v_row),
                 arena.take(sizes.pairs->count),
                 sizes.pairs->count,
                 shape_.v_row,
                 shape_.V,
                 sizes.pairs->data},
          groups_(arena.take(ROW * monomial_rows(shape_.K))),
          left_(arena.take(ROW * shape_.v_row)),
          nothing_(arena.take(ROW)),
          totals_(arena.take(GROUP)),
          panel_(arena.take(larger(ROWS * ROW, FEATURES * GROUP))),
          channels_(arena.take(GROUP * shape_.V)),
          dchannels_(arena.take(GROUP * (shape_.K + 1))) {}

    static int64_t features(int64_t K) { return monomial_count(K); }

    // root: of c, or its inverse: what turns the caller's features into monomials, and back.
    void start(const float* from, float root) const {
        fill(nothing_, ROW, 0);
        clear_state(state_);
        if (from != nullptr) add_columns(state_, {from, shape_.V}, shape_.K, root);
    }
    void finish(float* to, float root) const { copy_to_columns({to, shape_.V}, state_, shape_.K, root); }

    void turn() const {}

    template <bool WEIGHTED>
    void read(float* to, const float* x, const Decay&, const float* factors, int64_t count) const {
        pack(x, count);
        for (int64_t first = 0; first < count; first += GROUP)
            read_state<WEIGHTED>(to + first * shape_.v_row, totals_, state_, group(first), panel_);
        scale_rows(to, to, factors, count);
    }

    template <bool WEIGHTED>
    void add(bool keep, const float* x, const Decay& decay, const float* factors, const float* y, int64_t count) const {
        pack(x, count);
        scale_rows(left_, y, factors, count);
        write_state<WEIGHTED>(state_, keep ? decay.keep[0] : 1, groups_, stride(), count, left_, nothing_, panel_);
    }

    template <bool WEIGHTED>
    void read_backward(float* dx, const float* x, const Decay&, const float* factors, const float* y, int64_t count) const {
        pack(x, count);
        scale_rows(left_, y, factors, count);
        for (int64_t first = 0; first < count; first += GROUP) {
            const int64_t tokens = smaller(GROUP, count - first);
            transpose_rows(channels_, GROUP, GROUP, left_ + first * shape_.v_row, shape_.v_row, tokens, shape_.V, 1);
            fill(dchannels_, (shape_.K + 1) * GROUP, 0);
            read_state_backward<WEIGHTED>(dchannels_, state_, group(first), channels_, nothing_);
            for (int64_t i = 0; i < tokens; ++i)
                for (int64_t c = 0; c < shape_.K; ++c) dx[(first + i) * shape_.k_row + c] += dchannels_[c * GROUP + i];
        }
    }

    // Weights as those of first order, from squared scores, which are kept for the gradients.
    void weigh(float* weights, float* scores, const float* x, const float* k, const Decay& decay, int64_t count,
               float*) const {
        for (int64_t i = 0; i < round_up(count, ROWS); ++i) fill(scores + i * ROW, ROW, 0);
        over_pairs<ROW>(weights, count, [&](int64_t i, int64_t j, auto vectors) {
            constexpr int N = decltype(vectors)::value;
            Tile<N> tile;
            tile.clear();
            tile.add_product({k + i * shape_.k_row, shape_.k_row, 1}, x + j, ROW, shape_.K);
            tile.write(scores + i * ROW + j, ROW);
            for (int r = 0; r < ROWS; ++r)
                for (int n = 0; n < N; ++n)
                    tile.at[r][n] *= tile.at[r][n] * load(decay.pairs + (i + r) * ROW + j + n * LANES);
            tile.write(weights + i * ROW + j, ROW);
        });
    }

    // From gradients by weights to those by scores, those of a token with itself apart.
    static void through_scores(float* dweights, float* own, const float* scores, int64_t count) {
        for (int64_t i = 0; i < round_up(count, ROWS) * ROW; i += LANES)
            store(dweights + i, load(dweights + i) * load(scores + i) * 2.0f);
        for (int64_t i = 0; i < count; ++i) own[i] *= 2 * scores[i * ROW + i];
    }

  private:
    static constexpr int64_t ROW = Decay::ROW;

    int64_t stride() const { return GROUP * monomial_rows(shape_.K); }
    float* group(int64_t first) const { return groups_ + first / GROUP * stride(); }

    void pack(const float* x, int64_t count) const {
        for (int64_t first = 0; first < count; first += GROUP) {
            transpose_rows(group(first), GROUP, GROUP, x + first * shape_.k_row, shape_.k_row, smaller(GROUP, count - first),
                           shape_.K, 1);
            add_monomial_rows(group(first), shape_.K);
        }
    }

    void scale_rows(float* to, const float* from, const float* factors, int64_t count) const {
        for (int64_t i = 0; i < count; ++i)
            for (int64_t c = i * shape_.v_row; c < (i + 1) * shape_.v_row; c += LANES)
                store(to + c, load(from + c) * factors[i]);
    }

    const LinearShape& shape_;
    State state_;
    float *groups_, *left_, *nothing_, *totals_, *panel_, *channels_, *dchannels_;
};

}  // namespace maclaurin::MACLAURIN_VARIANT
