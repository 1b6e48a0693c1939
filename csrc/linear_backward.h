// First-order attention, backward, from the inputs alone. One walk forward rebuilds the state and gives dq, one walk
// backward carries the gradient of the state and gives dk and dv. A pair (i, j) depends on the decay of u if j < u <= i, so
//     da_u = Σ_{t>=u} (q_t·dq_t - k_t·dk_t) + <S_end, dS_end>,
// channel by channel if decays are. The pairs i = j cancel in it and are left out: under strong decay they are all there
// is, and their rounding errors would drown the rest.
#pragma once
#include "decay.h"
#include "linear_forward.h"

namespace maclaurin::MACLAURIN_VARIANT {

template <bool PER_CHANNEL>
struct LinearBackwardBuffers {
    static constexpr int64_t ROW = BLOCK<PER_CHANNEL>;
    BlockDecay<PER_CHANNEL> decay;
    float* states;          // of every head of the task; dS in the walk backward
    float* across;          // [value channel][key channel]: S or dS transposed
    float *q, *k, *v, *dy;  // rows of the block
    float* left;            // decayed q or k
    float *q_channels, *dy_channels, *dtotal;
    float *weights, *dweights, *own, *carried;
    float *dq, *dk, *own_dk, *dv;
    float* ones;      // [k_row]
    float *value_sums, *values_beyond;  // where centred: [token][v_row] sums of values, or their gradients; of other tokens
    double* through;  // [head][k_row]: sums of the decay's gradient over all later tokens

    LinearBackwardBuffers(Arena& arena, const LinearShape& shape)
        : decay(arena, shape),
          states(arena.take(shape.heads * LinearState::floats(shape))),
          across(arena.take(shape.k_row * shape.v_row)),
          q(arena.take(ROW * shape.k_row)),
          k(arena.take(ROW * shape.k_row)),
          v(arena.take(ROW * shape.v_row)),
          dy(arena.take(ROW * shape.v_row)),
          left(arena.take(ROW * shape.k_row)),
          q_channels(arena.take(ROW * shape.k_row)),
          dy_channels(arena.take(ROW * shape.v_row)),
          dtotal(arena.take(ROW)),
          weights(arena.take(ROW * ROW)),
          dweights(arena.take(ROW * ROW)),
          own(arena.take(ROW)),
          carried(arena.take(PER_CHANNEL ? shape.K * LANES : 0)),
          dq(arena.take(ROW * shape.k_row)),
          dk(arena.take(ROW * shape.k_row)),
          own_dk(arena.take(ROW * shape.k_row)),
          dv(arena.take(ROW * shape.v_row)),
          ones(arena.take(shape.k_row)),
          value_sums(arena.take(ROW * shape.v_row)),
          values_beyond(arena.take(shape.heads * shape.v_row)),
          through(reinterpret_cast<double*>(arena.take(2 * shape.heads * shape.k_row))) {}
};

// One key-value head of a task, its n-th.
template <bool PER_CHANNEL>
class LinearBackward {
  public:
    using Buffers = LinearBackwardBuffers<PER_CHANNEL>;
    static constexpr int64_t ROW = BLOCK<PER_CHANNEL>;

    LinearBackward(const MaclaurinLinear& call, const LinearShape& shape, const Buffers& buffers, int64_t b, int64_t g,
                   int64_t n)
        : call_(call),
          shape_(shape),
          at_(buffers),
          state_(buffers.states + n * LinearState::floats(shape), shape),
          through_(buffers.through + n * shape.k_row),
          values_beyond_(buffers.values_beyond + n * shape.v_row),
          b_(b),
          g_(g),
          R_(call.H / call.G) {}

    void start_forward() const {
        state_.read(call_.state == nullptr ? nullptr : call_.state + (b_ * call_.G + g_) * call_.state_head, shape_);
        fill(values_beyond_, shape_.v_row, 0);
    }

    void block_forward(int64_t begin, int64_t count) const {
        pack_keys(begin, count);
        if (call_.centred) {
            sum_values(at_.value_sums, values_beyond_, at_.v, shape_.v_row, count);
            for (int64_t r = 0; r < R_; ++r) gradient_of_totals(r, begin, count);
        }
        transpose_rows(at_.across, shape_.k_row, shape_.k_row, state_.s, shape_.v_row, shape_.k_row, shape_.v_row, 1);
        for (int64_t r = 0; r < R_; ++r) gradient_of_queries(r, begin, count);
        decay_rows(at_.left, at_.k, at_.decay, at_.decay.to_end, count, shape_.k_row);
        state_.add(at_.decay.keep, at_.left, at_.v, nullptr, count);
    }

    void start_backward() const {
        const float* dnew = call_.dnew_state == nullptr ? nullptr : call_.dnew_state + state_at();
        state_.read(dnew, shape_);
        start_decay(dnew);
        fill(values_beyond_, shape_.v_row, 0);
    }

    void block_backward(int64_t begin, int64_t count) const {
        pack_keys(begin, count);
        gradient_through_state(count);
        if (call_.centred) fill(at_.value_sums, count * shape_.v_row, 0);
        for (int64_t r = 0; r < R_; ++r) gradient_of_pairs(r, begin, count);
        if (call_.centred) add_value_sums(count);
        write_gradients(begin, count);
    }

    void finish() const {
        if (call_.dstate != nullptr) state_.write(call_.dstate + state_at(), shape_);
    }

  private:

    int64_t state_at() const { return (b_ * call_.G + g_) * shape_.state_size(); }

    void pack_keys(int64_t begin, int64_t count) const {
        const int64_t padded = round_up(count, larger(LANES, ROWS));
        copy_rows(at_.k, shape_.k_row, padded, row(call_.k, b_, begin, g_), call_.k.time, count, shape_.K, call_.k_scale);
        copy_rows(at_.v, shape_.v_row, padded, row(call_.v, b_, begin, g_), call_.v.time, count, shape_.V, 1);
        at_.decay.pack(call_.log_decay, shape_, b_, g_, begin, count);
    }

    // q, and the gradients by the sums that y is the quotient of.
    void pack_queries(int64_t h, int64_t begin, int64_t count) const {
        const int64_t padded = round_up(count, larger(LANES, ROWS));
        copy_rows(at_.q, shape_.k_row, padded, row(call_.q, b_, begin, h), call_.q.time, count, shape_.K, call_.q_scale);
        fill(at_.dtotal, ROW, 0);
        fill(at_.dy, padded * shape_.v_row, 0);
        for (int64_t i = 0; i < count; ++i) {
            const float *dy = row(call_.dy, b_, begin + i, h), *y = row(call_.y, b_, begin + i, h);
            const float times = times_of(h, begin + i);
            for (int64_t c = 0; c < shape_.V; ++c) at_.dy[i * shape_.v_row + c] = dy[c] * times;
            if (call_.centred) at_.dtotal[i] = *row(call_.dtotal, b_, begin + i, h);
            else if (call_.normalize) at_.dtotal[i] = -dot_product(y, dy, shape_.V) * times;
        }
        transpose_rows(at_.dy_channels, ROW, padded, at_.dy, shape_.v_row, padded, shape_.V, 1);
        weigh_backward(at_.dweights, at_.own, at_.dy_channels, at_.dtotal, at_.v, shape_, at_.decay, count);
    }

    float times_of(int64_t h, int64_t t) const {
        if (call_.centred) return 1.0f / static_cast<float>(t + 1);
        return call_.normalize ? inverse(*row(call_.total, b_, t, h)) : 1;
    }

    // Where centred, through the sum of the weights; it waits for the walk backward, which has no sums of values.
    void gradient_of_totals(int64_t r, int64_t begin, int64_t count) const {
        for (int64_t i = 0; i < count; ++i) {
            const int64_t h = g_ * R_ + r;
            const float times = times_of(h, begin + i);
            *row(call_.dtotal, b_, begin + i, h) =
                -dot_product(row(call_.dy, b_, begin + i, h), at_.value_sums + i * shape_.v_row, shape_.V) * times * times;
        }
    }

    // The gradient of the sums of values, of which a value is in its own and all later ones.
    void gradient_of_value_sums(int64_t h, int64_t begin, int64_t count) const {
        for (int64_t i = 0; i < count; ++i) {
            const float share = share_of_values(*row(call_.total, b_, begin + i, h), begin + i);
            const float* dy = row(call_.dy, b_, begin + i, h);
            for (int64_t c = 0; c < shape_.V; ++c) at_.value_sums[i * shape_.v_row + c] += share * dy[c];
        }
    }

    void add_value_sums(int64_t count) const {
        for (int64_t c = 0; c < shape_.v_row; c += LANES) {
            const vec later = load(values_beyond_ + c);
            vec own{};
            for (int64_t j = count - 1; j >= 0; --j) {
                float* dv = at_.dv + j * shape_.v_row + c;
                own += load(at_.value_sums + j * shape_.v_row + c);
                store(dv, load(dv) + (later + own));
            }
            store(values_beyond_ + c, later + own);
        }
    }

    void gradient_of_queries(int64_t r, int64_t begin, int64_t count) const {
        const int64_t h = g_ * R_ + r, k_row = shape_.k_row;
        pack_queries(h, begin, count);
        over_tiles(round_up(count, ROWS), k_row, [&](int64_t i, int64_t j, auto vectors) {
            constexpr int N = decltype(vectors)::value;
            Tile<N> tile;
            for (int n = 0; n < N; ++n) {
                const vec z = load(state_.z + j + n * LANES);
                for (int l = 0; l < ROWS; ++l) tile.at[l][n] = z * at_.dtotal[i + l];
            }
            tile.add_product({at_.dy + i * shape_.v_row, shape_.v_row, 1}, at_.across + j, k_row, shape_.V);
            for (int l = 0; l < ROWS; ++l)
                for (int n = 0; n < N; ++n) tile.at[l][n] *= at_.decay.at(at_.decay.from_start, i + l, j + n * LANES);
            tile.write(at_.dq + i * k_row + j, k_row);
        });
        add_to_dq(at_.dq, at_.dweights, at_.k, shape_, at_.decay, count);
        for (int64_t i = 0; i < count; ++i) {
            float *dq = at_.dq + i * k_row, *to = row(call_.dq, b_, begin + i, h);
            if (call_.dlog_decay.data != nullptr) keep_for_decay(begin + i, at_.q + i * k_row, dq, r == 0);
            for (int64_t c = 0; c < shape_.K; ++c) to[c] = (dq[c] + at_.own[i] * at_.k[i * k_row + c]) * call_.q_scale;
        }
    }

    // q·dq waits in the place of the decay's gradient until the walk backward gets there.
    void keep_for_decay(int64_t t, const float* q, const float* dq, bool first) const {
        float* kept = row(call_.dlog_decay, b_, t, g_);
        if (PER_CHANNEL)
            for (int64_t c = 0; c < shape_.K; ++c) kept[c] = q[c] * dq[c] + (first ? 0 : kept[c]);
        else *kept = dot_product(q, dq, shape_.k_row) + (first ? 0 : *kept);
    }

    // <S_end, dS_end>, for all channels together or for each.
    void start_decay(const float* dnew) const {
        for (int64_t c = 0; c < shape_.k_row; ++c) through_[c] = 0;
        if (dnew == nullptr || call_.dlog_decay.data == nullptr) return;
        const float* end = call_.new_state + state_at();
        const int64_t W = shape_.W;
        for (int64_t c = 0; c < shape_.K; ++c)
            for (int64_t w = 0; w < W; ++w)
                through_[PER_CHANNEL ? c : 0] += static_cast<double>(end[c * W + w]) * dnew[c * W + w];
    }

    // What keys and values have from the state at the end of the block.
    void gradient_through_state(int64_t count) const {
        const int64_t k_row = shape_.k_row, v_row = shape_.v_row, padded = round_up(count, ROWS);
        transpose_rows(at_.across, k_row, k_row, state_.s, v_row, k_row, v_row, 1);
        decay_rows(at_.left, at_.k, at_.decay, at_.decay.to_end, count, k_row);
        over_tiles(padded, k_row, [&](int64_t i, int64_t j, auto vectors) {
            constexpr int N = decltype(vectors)::value;
            Tile<N> tile;
            for (int n = 0; n < N; ++n)
                for (int l = 0; l < ROWS; ++l) tile.at[l][n] = load(state_.z + j + n * LANES);
            tile.add_product({at_.v + i * v_row, v_row, 1}, at_.across + j, k_row, shape_.V);
            for (int l = 0; l < ROWS; ++l)
                for (int n = 0; n < N; ++n) tile.at[l][n] *= at_.decay.at(at_.decay.to_end, i + l, j + n * LANES);
            tile.write(at_.dk + i * k_row + j, k_row);
        });
        over_tiles(padded, v_row, [&](int64_t i, int64_t j, auto vectors) {
            Tile<decltype(vectors)::value> tile;
            tile.clear();
            tile.add_product({at_.left + i * k_row, k_row, 1}, state_.s + j, v_row, shape_.K);
            tile.write(at_.dv + i * v_row + j, v_row);
        });
        fill(at_.own_dk, padded * k_row, 0);
    }

    // What keys and values have from the block's own queries, and the state before it from them.
    void gradient_of_pairs(int64_t r, int64_t begin, int64_t count) const {
        const int64_t k_row = shape_.k_row, v_row = shape_.v_row, padded = round_up(count, larger(LANES, ROWS));
        pack_queries(g_ * R_ + r, begin, count);
        if (call_.centred) gradient_of_value_sums(g_ * R_ + r, begin, count);
        transpose_rows(at_.q_channels, ROW, padded, at_.q, k_row, padded, shape_.K, 1);
        weigh(at_.weights, at_.q_channels, at_.k, shape_, at_.decay, count, at_.carried);
        over_tiles(round_up(count, ROWS), v_row, [&](int64_t j, int64_t c, auto vectors) {
            add_product_tile<decltype(vectors)::value>(at_.dv + j * v_row + c, v_row, 1, {at_.weights + j * ROW + j, ROW, 1},
                                                       at_.dy + j * v_row + c, v_row, count - j);
        });
        add_to_dk(at_.dk, at_.dweights, at_.q, shape_, at_.decay, count);
        for (int64_t j = 0; j < count; ++j)
            for (int64_t c = 0; c < k_row; c += LANES) {
                float* to = at_.own_dk + j * k_row + c;
                store(to, load(to) + load(at_.q + j * k_row + c) * at_.own[j]);
            }
        decay_rows(at_.left, at_.q, at_.decay, at_.decay.from_start, count, k_row);
        state_.add(r == 0 ? at_.decay.keep : at_.ones, at_.left, at_.dy, at_.dtotal, count);
    }

    void write_gradients(int64_t begin, int64_t count) const {
        for (int64_t j = count - 1; j >= 0; --j) {
            const float *k = at_.k + j * shape_.k_row, *dk = at_.dk + j * shape_.k_row, *own = at_.own_dk + j * shape_.k_row;
            float *to_k = row(call_.dk, b_, begin + j, g_), *to_v = row(call_.dv, b_, begin + j, g_);
            if (call_.dlog_decay.data != nullptr) finish_decay(begin + j, k, dk);
            for (int64_t c = 0; c < shape_.K; ++c) to_k[c] = (dk[c] + own[c]) * call_.k_scale;
            for (int64_t c = 0; c < shape_.V; ++c) to_v[c] = at_.dv[j * shape_.v_row + c];
        }
    }

    void finish_decay(int64_t t, const float* k, const float* dk) const {
        const float* a = row(call_.log_decay, b_, t, g_);
        float* da = row(call_.dlog_decay, b_, t, g_);
        if (!PER_CHANNEL) through_[0] += static_cast<double>(*da) - dot_product(k, dk, shape_.k_row);
        for (int64_t c = 0; c < (PER_CHANNEL ? shape_.K : 1); ++c) {
            if (PER_CHANNEL) through_[c] += static_cast<double>(da[c]) - k[c] * dk[c];
            da[c] = a[c] > SMALLEST_LOG_DECAY ? static_cast<float>(through_[c]) : 0;
        }
    }

    const MaclaurinLinear& call_;
    const LinearShape& shape_;
    const Buffers& at_;
    const LinearState state_;
    double* const through_;
    float* const values_beyond_;  // of the tokens before the block, in the walk backward of those after it
    const int64_t b_, g_, R_;
};

template <bool PER_CHANNEL>
bool linear_backward_of_heads(const MaclaurinLinear& call, const LinearShape& shape, int64_t b, int64_t first, int64_t heads) {
    using Head = LinearBackward<PER_CHANNEL>;
    return with_buffers<typename Head::Buffers>(shape, [&](const auto& buffers) {
        const auto each = [&](const auto& use) {
            for (int64_t n = 0; n < heads; ++n) use(Head(call, shape, buffers, b, first + n, n));
        };
        const int64_t step = smaller(call.chunk, Head::ROW);
        fill(buffers.ones, shape.k_row, 1);
        each([](const Head& head) { head.start_forward(); });
        for (int64_t begin = 0; begin < call.T; begin += step)
            each([&](const Head& head) { head.block_forward(begin, smaller(step, call.T - begin)); });
        each([](const Head& head) { head.start_backward(); });
        for (int64_t begin = (call.T - 1) / step * step; begin >= 0; begin -= step)
            each([&](const Head& head) { head.block_backward(begin, smaller(step, call.T - begin)); });
        each([](const Head& head) { head.finish(); });
    });
}

inline bool linear_backward(const MaclaurinLinear& call) {
    LinearShape shape(call.K, call.V, call.normalize);
    shape.heads = heads_of_task(call, shape);
    return over_groups_of_heads(call, shape, [&](int64_t b, int64_t first, int64_t heads) {
        return call.per_channel ? linear_backward_of_heads<true>(call, shape, b, first, heads)
                                : linear_backward_of_heads<false>(call, shape, b, first, heads);
    });
}

}  // namespace maclaurin::MACLAURIN_VARIANT
