// The delta rule, backward, from the inputs and the errors. What tokens wrote needs no state, so one walk backward carries dS;
// then one walk forward rebuilds S from the errors and gives what readers of the state get:
//     w_j = Σ_{i>=j} f(q_i·k_j) d dy_i + φ(d k_j)ᵀ dS' - Σ_{i>j} f(k_i·k_j) d dv_i,     dv = β w,   dβ = w·e
//     dS  = d dS' + Σ_i φ(d q_i) dy_iᵀ - φ(d k_i) dv_iᵀ
// Keys are readers, with the gradient -dv, and writers. As in `linear_backward.h` the decay of token u has, channel by channel if
// decays are, and of degree p,
//     da_u = Σ_{t>=u} (q_t·dq_t + k_t·dk_t as a reader - k_t·dk_t as a writer) / p + <S_end, dS_end>
// without the pairs of a token with itself.
#pragma once
#include "decay.h"
#include "delta_forward.h"

namespace maclaurin::MACLAURIN_VARIANT {

template <class Memory>
struct DeltaBackwardBuffers {
    static constexpr int64_t ROW = Memory::Decay::ROW;
    DeltaBlock<Memory> block;
    Memory memory;                                  // dS in the walk backward, S in the walk forward
    float *q, *q_channels, *dy, *dy_channels;       // of a query head, or of keys as readers
    float *weights, *scores, *dweights, *own;       // own: gradients by the weight of a token with itself
    float *w, *dv;                                  // [token][v_row]
    float *dq, *dk_reader, *dk_writer, *dk_own;     // [token][k_row]
    float* nothing;                                 // [ROW]

    DeltaBackwardBuffers(Arena& arena, const DeltaSizes& sizes)
        : block(arena, sizes),
          memory(arena, sizes),
          q(arena.take(ROW * sizes.shape.k_row)),
          q_channels(arena.take(ROW * sizes.shape.k_row)),
          dy(arena.take(ROW * sizes.shape.v_row)),
          dy_channels(arena.take(ROW * sizes.shape.v_row)),
          weights(arena.take(ROW * ROW)),
          scores(arena.take(Memory::ORDER > 1 ? ROW * ROW : 0)),
          dweights(arena.take(ROW * ROW)),
          own(arena.take(ROW)),
          w(arena.take(ROW * sizes.shape.v_row)),
          dv(arena.take(ROW * sizes.shape.v_row)),
          dq(arena.take(ROW * sizes.shape.k_row)),
          dk_reader(arena.take(ROW * sizes.shape.k_row)),
          dk_writer(arena.take(ROW * sizes.shape.k_row)),
          dk_own(arena.take(ROW * sizes.shape.k_row)),
          nothing(arena.take(ROW)) {}
};

template <class Memory>
class DeltaBackward {
  public:
    using Buffers = DeltaBackwardBuffers<Memory>;
    DeltaBackward(const MaclaurinDelta& call, const LinearShape& shape, const Buffers& buffers, int64_t b, int64_t g)
        : call_(call),
          shape_(shape),
          at_(buffers),
          b_(b),
          g_(g),
          R_(call.H / call.G),
          step_(smaller(call.chunk, ROW)),
          state_at_((b * call.G + g) * Memory::features(call.K) * call.V) {}

    void run() const {
        fill(at_.nothing, ROW, 0);
        at_.memory.start(call_.dnew_state == nullptr ? nullptr : call_.dnew_state + state_at_, ROOT);
        for (int64_t begin = (call_.T - 1) / step_ * step_; begin >= 0; begin -= step_)
            by_writing(begin, smaller(step_, call_.T - begin));
        if (call_.dstate != nullptr) at_.memory.finish(call_.dstate + state_at_, 1 / ROOT);

        at_.memory.start(call_.state == nullptr ? nullptr : call_.state + state_at_, 1 / ROOT);
        for (int64_t begin = 0; begin < call_.T; begin += step_) by_reading(begin, smaller(step_, call_.T - begin));
        if (call_.dlog_decay.data != nullptr)
            for (int64_t c = 0; c < (Memory::PER_CHANNEL ? shape_.K : 1); ++c) sum_decay(c);
    }

  private:
    static constexpr int64_t ROW = Memory::Decay::ROW;

    // The block, with its errors and what it wrote.
    void pack(int64_t begin, int64_t count) const {
        at_.block.pack(call_, call_.error, b_, g_, begin, count);
        at_.block.times_beta(at_.block.u, at_.block.error, count);
    }

    void pack_query(int64_t h, int64_t begin, int64_t count) const {
        const int64_t padded = at_.block.padded(count);
        copy_rows(at_.q, shape_.k_row, padded, row(call_.q, b_, begin, h), call_.q.time, count, shape_.K, call_.scale);
        copy_rows(at_.dy, shape_.v_row, padded, row(call_.dy, b_, begin, h), call_.dy.time, count, shape_.V, 1);
    }

    void by_writing(int64_t begin, int64_t count) const {
        const DeltaBlock<Memory>& block = at_.block;
        const auto& decay = block.decay;
        pack(begin, count);
        block.weigh(at_.memory, count);
        for (float* gradient : {at_.dk_reader, at_.dk_writer, at_.dk_own}) fill(gradient, ROW * shape_.k_row, 0);
        at_.memory.turn();
        at_.memory.template read<false>(at_.w, block.k, decay, decay.to_end, count);
        at_.memory.template read_backward<false>(at_.dk_writer, block.k, decay, decay.to_end, block.u, count);
        for (int64_t r = 0; r < R_; ++r) query(r, begin, count);
        block.solve_transposed(at_.w, at_.dv, count);
        keys_as_readers(count);
        write_keys(begin, count);
    }

    // Adds what a query head gives to w, to its keys and to the state before the block.
    void query(int64_t r, int64_t begin, int64_t count) const {
        const DeltaBlock<Memory>& block = at_.block;
        const int64_t h = g_ * R_ + r, k_row = shape_.k_row, v_row = shape_.v_row, padded = block.padded(count);
        pack_query(h, begin, count);
        transpose_rows(at_.q_channels, ROW, padded, at_.q, k_row, padded, shape_.K, 1);
        at_.memory.weigh(at_.weights, at_.scores, at_.q_channels, block.k, block.decay, count, block.carried);
        over_tiles(round_up(count, ROWS), v_row, [&](int64_t j, int64_t c, auto vectors) {
            add_product_tile<decltype(vectors)::value>(at_.w + j * v_row + c, v_row, 1, {at_.weights + j * ROW + j, ROW, 1},
                                                       at_.dy + j * v_row + c, v_row, count - j);
        });
        fill(at_.dq, ROW * k_row, 0);
        pairs(at_.dq, at_.q, at_.scores, count);
        for (int64_t i = 0; i < count; ++i) {
            float* to = row(call_.dq, b_, begin + i, h);
            if (call_.dlog_decay.data != nullptr) keep_for_decay(begin + i, at_.q + i * k_row, at_.dq + i * k_row, r == 0, 1);
            for (int64_t c = 0; c < k_row; c += LANES) {
                float* dk = at_.dk_own + i * k_row + c;
                store(dk, load(dk) + load(at_.q + i * k_row + c) * at_.own[i]);
            }
            for (int64_t c = 0; c < shape_.K; ++c)
                to[c] = (at_.dq[i * k_row + c] + at_.own[i] * block.k[i * k_row + c]) * call_.scale;
        }
        at_.memory.template add<true>(r == 0, at_.q, block.decay, block.decay.from_start, at_.dy, count);
    }

    // The pairs of a block's readers x, whose reads have the gradient dy, with the keys before them.
    void pairs(float* dx, const float* x, const float* scores, int64_t count) const {
        const DeltaBlock<Memory>& block = at_.block;
        const int64_t padded = block.padded(count);
        transpose_rows(at_.dy_channels, ROW, padded, at_.dy, shape_.v_row, padded, shape_.V, 1);
        weigh_backward(at_.dweights, at_.own, at_.dy_channels, at_.nothing, block.u, shape_, block.decay, count);
        Memory::through_scores(at_.dweights, at_.own, scores, count);
        add_to_dq(dx, at_.dweights, block.k, shape_, block.decay, count);
        add_to_dk(at_.dk_writer, at_.dweights, x, shape_, block.decay, count);
    }

    void keys_as_readers(int64_t count) const {
        const DeltaBlock<Memory>& block = at_.block;
        fill(at_.dy, block.padded(count) * shape_.v_row, 0);
        for (int64_t i = 0; i < count * shape_.v_row; i += LANES) store(at_.dy + i, -load(at_.dv + i));
        pairs(at_.dk_reader, block.k, block.scores, count);
        at_.memory.template add<true>(false, block.k, block.decay, block.decay.from_start, at_.dy, count);
    }

    void write_keys(int64_t begin, int64_t count) const {
        for (int64_t j = 0; j < count; ++j) {
            const int64_t at = j * shape_.k_row;
            float* dk = row(call_.dk, b_, begin + j, g_);
            if (call_.dlog_decay.data != nullptr) {
                keep_for_decay(begin + j, at_.block.k + at, at_.dk_reader + at, false, 1);
                keep_for_decay(begin + j, at_.block.k + at, at_.dk_writer + at, false, -1);
            }
            for (int64_t c = 0; c < shape_.K; ++c)
                dk[c] = at_.dk_reader[at + c] + at_.dk_writer[at + c] + at_.dk_own[at + c];
            write_row(row(call_.dv, b_, begin + j, g_), at_.dv + j * shape_.v_row, shape_.V, 1);
            *row(call_.dbeta, b_, begin + j, g_) =
                dot_product(at_.w + j * shape_.v_row, at_.block.error + j * shape_.v_row, shape_.v_row);
        }
    }

    // Adds what readers of the state get, and puts into it what the block wrote.
    void by_reading(int64_t begin, int64_t count) const {
        const DeltaBlock<Memory>& block = at_.block;
        pack(begin, count);
        if (begin > 0 || call_.state != nullptr) {
            at_.memory.turn();
            for (int64_t r = 0; r < R_; ++r) {
                pack_query(g_ * R_ + r, begin, count);
                add_reader(call_.dq, g_ * R_ + r, at_.q, call_.scale, begin, count);
            }
            copy_rows(at_.dy, shape_.v_row, block.padded(count), row(call_.dv, b_, begin, g_), call_.dv.time, count, shape_.V,
                      -1);
            add_reader(call_.dk, g_, block.k, 1, begin, count);
        }
        if (begin + count < call_.T)
            at_.memory.template add<false>(true, block.k, block.decay, block.decay.to_end, block.u, count);
    }

    void add_reader(const MaclaurinTensor& gradient, int64_t h, const float* x, float scale, int64_t begin,
                    int64_t count) const {
        const auto& decay = at_.block.decay;
        fill(at_.dq, ROW * shape_.k_row, 0);
        at_.memory.template read_backward<true>(at_.dq, x, decay, decay.from_start, at_.dy, count);
        for (int64_t i = 0; i < count; ++i) {
            const int64_t at = i * shape_.k_row;
            float* to = row(gradient, b_, begin + i, h);
            if (call_.dlog_decay.data != nullptr) keep_for_decay(begin + i, x + at, at_.dq + at, false, 1);
            for (int64_t c = 0; c < shape_.K; ++c) to[c] += at_.dq[at + c] * scale;
        }
    }

    // x·dx waits in the place of the decay's gradient until all walks are done.
    void keep_for_decay(int64_t t, const float* x, const float* dx, bool first, float sign) const {
        float* kept = row(call_.dlog_decay, b_, t, g_);
        if (Memory::PER_CHANNEL)
            for (int64_t c = 0; c < shape_.K; ++c) kept[c] = sign * x[c] * dx[c] + (first ? 0 : kept[c]);
        else *kept = sign * dot_product(x, dx, shape_.k_row) + (first ? 0 : *kept);
    }

    // Of channel c, or of all of them. A clamped decay has no gradient.
    void sum_decay(int64_t c) const {
        double through = 0;
        if (call_.dnew_state != nullptr) {
            const int64_t rows = Memory::PER_CHANNEL ? 1 : Memory::features(shape_.K), at = state_at_ + c * shape_.V;
            for (int64_t i = at; i < at + rows * shape_.V; ++i)
                through += static_cast<double>(call_.new_state[i]) * call_.dnew_state[i];
        }
        for (int64_t t = call_.T - 1; t >= 0; --t) {
            float* da = row(call_.dlog_decay, b_, t, g_) + c;
            through += static_cast<double>(*da) / Memory::ORDER;
            *da = row(call_.log_decay, b_, t, g_)[c] > SMALLEST_LOG_DECAY ? static_cast<float>(through) : 0;
        }
    }

    const MaclaurinDelta& call_;
    const LinearShape& shape_;
    const Buffers& at_;
    const int64_t b_, g_, R_, step_, state_at_;
};

inline bool delta_backward(const MaclaurinDelta& call) {
    return with_memory(call, [&](auto* kind, const DeltaSizes& sizes, int64_t b, int64_t g) {
        using Backward = DeltaBackward<std::remove_pointer_t<decltype(kind)>>;
        return with_buffers<typename Backward::Buffers>(
            sizes, [&](const auto& buffers) { Backward(call, sizes.shape, buffers, b, g).run(); });
    });
}

}  // namespace maclaurin::MACLAURIN_VARIANT
