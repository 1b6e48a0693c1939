// InLine's filter: a head's taps for a token are made from the mean of the tokens so far, and weigh its last values.
//     m_t = Σ_{s<=t} x_s / (t+1),   a_t = gelu(m_t G₁ + b₁),   R_t = a_t G₂ + b₂,   y_t = Σ_w R_t[w] ⊙ v_{t-(W-1)+w}
// A head of a sequence is a task, and takes a block of tokens at a time: means, hidden numbers and taps, which are W times as
// many as values, exist for one block at a time, and again in the backward.
#pragma once
#include "arena.h"
#include "gelu.h"
#include "linear_block.h"
#include "pack.h"
#include "pool.h"
#include "tile.h"

namespace maclaurin::MACLAURIN_VARIANT {

constexpr int64_t FILTERED = 32;  // tokens at a time

// Rows in whole vectors and whole tiles; those of taps are W rows of values.
struct FilterShape {
    int64_t I, C, V, W, i_row, c_row, v_row, t_row;

    explicit FilterShape(const MaclaurinMeanFilter& call)
        : I(call.I), C(call.C), V(call.V), W(call.W), i_row(whole(I)), c_row(whole(C)), v_row(whole(V)), t_row(W * v_row) {}

    static int64_t whole(int64_t channels) { return round_up(channels, larger(LANES, ROWS)); }
};

struct FilterBuffers {
    float *first, *first_bias;    // G₁ [i_row][c_row]
    float *second, *second_bias;  // G₂ [c_row][t_row]
    float *sum, *mean;            // of the tokens before the block; [FILTERED][i_row]
    float *hidden, *active;       // [FILTERED][c_row]: before and behind gelu
    float* taps;                  // [FILTERED][t_row]

    FilterBuffers(Arena& arena, const FilterShape& shape)
        : first(arena.take(shape.i_row * shape.c_row)),
          first_bias(arena.take(shape.c_row)),
          second(arena.take(shape.c_row * shape.t_row)),
          second_bias(arena.take(shape.t_row)),
          sum(arena.take(shape.i_row)),
          mean(arena.take(FILTERED * shape.i_row)),
          hidden(arena.take(FILTERED * shape.c_row)),
          active(arena.take(FILTERED * shape.c_row)),
          taps(arena.take(FILTERED * shape.t_row)) {}

    void start(const MaclaurinMeanFilter& call, const FilterShape& shape, int64_t h) const {
        const int64_t outputs = shape.W * shape.V;
        copy_rows(first, shape.c_row, shape.i_row, call.first + h * shape.I * shape.C, shape.C, shape.I, shape.C, 1);
        copy_rows(first_bias, shape.c_row, 1, call.first_bias + h * shape.C, shape.C, 1, shape.C, 1);
        for (int64_t w = 0; w < shape.W; ++w) {
            const int64_t from = h * shape.C * outputs + w * shape.V;
            copy_taps(second + w * shape.v_row, shape, shape.c_row, call.second + from, outputs, shape.C);
            copy_taps(second_bias + w * shape.v_row, shape, 1, call.second_bias + h * outputs + w * shape.V, outputs, 1);
        }
        fill(sum, shape.i_row, 0);
    }

    // Means of the block, and what they lead to. The sum of a block is its own and is added to the others once.
    void block(const MaclaurinMeanFilter& call, const FilterShape& shape, int64_t b, int64_t h, int64_t begin,
               int64_t count) const {
        const int64_t padded = round_up(count, ROWS);
        fill(mean, padded * shape.i_row, 0);
        over_vectors(0, shape.I, [&](int64_t c, auto vector) {
            const vec before = vector.read(sum + c);
            vec own{};
            for (int64_t t = 0; t < count; ++t) {
                own += vector.read(row(call.x, b, begin + t, h) + c);
                store(mean + t * shape.i_row + c, (before + own) * (1.0f / static_cast<float>(begin + t + 1)));
            }
            vector.write(sum + c, before + own);
        });
        repeat(hidden, shape.c_row, padded, first_bias);
        add_product(hidden, shape.c_row, 1, padded, shape.c_row, {mean, shape.i_row, 1}, first, shape.c_row, shape.I);
        for (int64_t i = 0; i < padded * shape.c_row; i += LANES) store(active + i, gelu(load(hidden + i)).y);
        repeat(taps, shape.t_row, padded, second_bias);
        add_product(taps, shape.t_row, 1, padded, shape.t_row, {active, shape.c_row, 1}, second, shape.t_row, shape.C);
    }

  private:
    // Rows of V numbers of one tap, padded to v_row.
    static void copy_taps(float* to, const FilterShape& shape, int64_t padded_rows, const float* from, int64_t from_row,
                          int64_t rows) {
        for (int64_t i = 0; i < padded_rows; ++i)
            copy_rows(to + i * shape.t_row, shape.v_row, 1, from + i * from_row, from_row, i < rows ? 1 : 0, shape.V, 1);
    }

    static void repeat(float* to, int64_t to_row, int64_t rows, const float* from) {
        for (int64_t i = 0; i < rows; ++i) std::memcpy(to + i * to_row, from, to_row * sizeof(float));
    }
};

// use(w, s) for the taps of token t that lie on a token.
template <class Use>
MACLAURIN_INLINE void over_taps(int64_t t, int64_t W, const Use& use) {
    for (int64_t w = larger(0, W - 1 - t); w < W; ++w) use(w, t - (W - 1) + w);
}

inline bool mean_filter_forward(const MaclaurinMeanFilter& call) {
    const FilterShape shape(call);
    bool failed = false;
    parallel_for(call.B * call.H, call.threads, [&](int64_t task) {
        const FlushSubnormals flush;
        const int64_t b = task / call.H, h = task % call.H;
        const bool done = with_buffers<FilterBuffers>(shape, [&](const FilterBuffers& buffers) {
            buffers.start(call, shape, h);
            for (int64_t begin = 0; begin < call.T; begin += FILTERED) {
                const int64_t count = smaller(FILTERED, call.T - begin);
                buffers.block(call, shape, b, h, begin, count);
                for (int64_t t = 0; t < count; ++t) {
                    const float* taps = buffers.taps + t * shape.t_row;
                    float* y = row(call.y, b, begin + t, h);
                    over_vectors(0, shape.V, [&](int64_t c, auto vector) {
                        vec total{};
                        over_taps(begin + t, shape.W, [&](int64_t w, int64_t s) {
                            total += load(taps + w * shape.v_row + c) * vector.read(row(call.v, b, s, h) + c);
                        });
                        vector.write(y + c, total);
                    });
                }
            }
            std::memcpy(call.sum + (b * call.H + h) * shape.I, buffers.sum, shape.I * sizeof(float));
        });
        if (!done) __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
    });
    return !failed;
}

struct FilterBackwardBuffers {
    FilterBuffers forward;
    float *first_across, *second_across;  // G₁ and G₂ transposed: [c_row][i_row], [t_row][c_row]
    float *dtaps, *dhidden, *dmean;       // as taps, hidden and mean
    float *dfirst, *dfirst_bias, *dsecond, *dsecond_bias;

    FilterBackwardBuffers(Arena& arena, const FilterShape& shape)
        : forward(arena, shape),
          first_across(arena.take(shape.c_row * shape.i_row)),
          second_across(arena.take(shape.t_row * shape.c_row)),
          dtaps(arena.take(FILTERED * shape.t_row)),
          dhidden(arena.take(FILTERED * shape.c_row)),
          dmean(arena.take(FILTERED * shape.i_row)),
          dfirst(arena.take(shape.i_row * shape.c_row)),
          dfirst_bias(arena.take(shape.c_row)),
          dsecond(arena.take(shape.c_row * shape.t_row)),
          dsecond_bias(arena.take(shape.t_row)) {}
};

// One head of a sequence.
class FilterBackward {
  public:
    FilterBackward(const MaclaurinMeanFilter& call, const FilterShape& shape, const FilterBackwardBuffers& buffers, int64_t b,
                   int64_t h)
        : call_(call), shape_(shape), at_(buffers), b_(b), h_(h) {}

    void run() const {
        const int64_t i_row = shape_.i_row, c_row = shape_.c_row, t_row = shape_.t_row;
        at_.forward.start(call_, shape_, h_);
        transpose_rows(at_.first_across, i_row, i_row, at_.forward.first, c_row, i_row, c_row, 1);
        transpose_rows(at_.second_across, c_row, c_row, at_.forward.second, t_row, c_row, t_row, 1);
        fill(at_.dfirst, i_row * c_row, 0);
        fill(at_.dfirst_bias, c_row, 0);
        fill(at_.dsecond, c_row * t_row, 0);
        fill(at_.dsecond_bias, t_row, 0);
        for (int64_t begin = 0; begin < call_.T; begin += FILTERED) block(begin, smaller(FILTERED, call_.T - begin));
        sum_over_later_tokens();
        write_weights();
    }

  private:
    void block(int64_t begin, int64_t count) const {
        const int64_t i_row = shape_.i_row, c_row = shape_.c_row, t_row = shape_.t_row, padded = round_up(count, ROWS);
        const FilterBuffers& forward = at_.forward;
        forward.block(call_, shape_, b_, h_, begin, count);
        gradient_of_taps(begin, count);
        accumulate(at_.dsecond, c_row, t_row, {forward.active, 1, c_row}, at_.dtaps, count);
        accumulate_rows(at_.dsecond_bias, t_row, at_.dtaps, count);
        fill(at_.dhidden, padded * c_row, 0);
        add_product(at_.dhidden, c_row, 1, padded, c_row, {at_.dtaps, t_row, 1}, at_.second_across, c_row, t_row);
        for (int64_t i = 0; i < padded * c_row; i += LANES)
            store(at_.dhidden + i, load(at_.dhidden + i) * gelu(load(forward.hidden + i)).slope);
        accumulate(at_.dfirst, i_row, c_row, {forward.mean, 1, i_row}, at_.dhidden, count);
        accumulate_rows(at_.dfirst_bias, c_row, at_.dhidden, count);
        fill(at_.dmean, padded * i_row, 0);
        add_product(at_.dmean, i_row, 1, padded, i_row, {at_.dhidden, c_row, 1}, at_.first_across, i_row, shape_.C);
        for (int64_t t = 0; t < count; ++t) {
            const float times = 1.0f / static_cast<float>(begin + t + 1);
            float* dx = row(call_.dx, b_, begin + t, h_);
            over_vectors(0, shape_.I,
                         [&](int64_t c, auto vector) { vector.write(dx + c, load(at_.dmean + t * i_row + c) * times); });
        }
    }

    // And of the values under them, those of the blocks before included.
    void gradient_of_taps(int64_t begin, int64_t count) const {
        fill(at_.dtaps, round_up(count, ROWS) * shape_.t_row, 0);
        for (int64_t t = 0; t < count; ++t) fill(row(call_.dv, b_, begin + t, h_), shape_.V, 0);
        for (int64_t t = 0; t < count; ++t) {
            const float *dy = row(call_.dy, b_, begin + t, h_), *taps = at_.forward.taps + t * shape_.t_row;
            float* dtaps = at_.dtaps + t * shape_.t_row;
            over_vectors(0, shape_.V, [&](int64_t c, auto vector) {
                const vec gradient = vector.read(dy + c);
                over_taps(begin + t, shape_.W, [&](int64_t w, int64_t s) {
                    float* dv = row(call_.dv, b_, s, h_) + c;
                    store(dtaps + w * shape_.v_row + c, gradient * vector.read(row(call_.v, b_, s, h_) + c));
                    vector.write(dv, vector.read(dv) + gradient * load(taps + w * shape_.v_row + c));
                });
            });
        }
    }

    // C += A·B over the tokens of a block, whose sum is its own and is added once.
    static void accumulate(float* c, int64_t rows, int64_t columns, Broadcast a, const float* b, int64_t count) {
        over_tiles(rows, columns, [&](int64_t i, int64_t j, auto vectors) {
            constexpr int N = decltype(vectors)::value;
            Tile<N> tile;
            tile.clear();
            tile.add_product({a.data + i * a.row, a.row, a.step}, b + j, columns, count);
            for (int r = 0; r < ROWS; ++r)
                for (int n = 0; n < N; ++n) tile.at[r][n] += load(c + (i + r) * columns + j + n * LANES);
            tile.write(c + i * columns + j, columns);
        });
    }

    static void accumulate_rows(float* c, int64_t columns, const float* b, int64_t count) {
        for (int64_t j = 0; j < columns; j += LANES) {
            vec total{};
            for (int64_t t = 0; t < count; ++t) total += load(b + t * columns + j);
            store(c + j, load(c + j) + total);
        }
    }

    // Token s is in the means of all from s on, and in the sum of all tokens.
    void sum_over_later_tokens() const {
        const float* dsum = call_.dsum == nullptr ? nullptr : call_.dsum + (b_ * call_.H + h_) * shape_.I;
        over_vectors(0, shape_.I, [&](int64_t c, auto vector) {
            vec later = dsum == nullptr ? vec{} : vector.read(dsum + c);
            for (int64_t end = call_.T; end > 0; end -= smaller(end, FILTERED)) {
                vec own{};
                for (int64_t t = end - 1; t >= larger(0, end - FILTERED); --t) {
                    float* dx = row(call_.dx, b_, t, h_) + c;
                    own += vector.read(dx);
                    vector.write(dx, later + own);
                }
                later += own;
            }
        });
    }

    void write_weights() const {
        const int64_t at = b_ * call_.H + h_, I = shape_.I, C = shape_.C, V = shape_.V, outputs = shape_.W * V;
        for (int64_t i = 0; i < I; ++i) std::memcpy(call_.dfirst + (at * I + i) * C, at_.dfirst + i * shape_.c_row, C * sizeof(float));
        std::memcpy(call_.dfirst_bias + at * C, at_.dfirst_bias, C * sizeof(float));
        for (int64_t w = 0; w < shape_.W; ++w) {
            for (int64_t c = 0; c < C; ++c)
                std::memcpy(call_.dsecond + (at * C + c) * outputs + w * V, at_.dsecond + c * shape_.t_row + w * shape_.v_row,
                            V * sizeof(float));
            std::memcpy(call_.dsecond_bias + at * outputs + w * V, at_.dsecond_bias + w * shape_.v_row, V * sizeof(float));
        }
    }

    const MaclaurinMeanFilter& call_;
    const FilterShape& shape_;
    const FilterBackwardBuffers& at_;
    const int64_t b_, h_;
};

inline bool mean_filter_backward(const MaclaurinMeanFilter& call) {
    const FilterShape shape(call);
    bool failed = false;
    parallel_for(call.B * call.H, call.threads, [&](int64_t task) {
        const FlushSubnormals flush;
        const bool done = with_buffers<FilterBackwardBuffers>(shape, [&](const FilterBackwardBuffers& buffers) {
            FilterBackward(call, shape, buffers, task / call.H, task % call.H).run();
        });
        if (!done) __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
    });
    return !failed;
}

}  // namespace maclaurin::MACLAURIN_VARIANT
