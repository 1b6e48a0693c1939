// The backward of the chunked form. It stores nothing that the inputs do not say: one walk forwards rebuilds the memory S
// and gives what depends on it, one walk backwards carries its gradient dS and gives the rest.
//
//     dφ(q_i) = exp(L_i) S dy_i                          dS = exp(L_C) dS' + Σ_i exp(L_i) φ(q_i) dy_iᵀ
//     dφ(k_j) = exp(L_C - L_j) dS' v_j                   dv_j = exp(L_C - L_j) dS'ᵀ φ(k_j)
//
// The decay needs no pass: Σ_j w_ij dw_ij = q_i·dq_i / 2 (zero where rows are normalised), Σ_i w_ij dw_ij = k_j·dk_j / 2.
#pragma once
#include "attend_backward.h"
#include "chunks.h"

namespace maclaurin::MACLAURIN_VARIANT {

struct BackwardSizes {
    Shape shape;
    int64_t S;
};

struct BackwardBuffers {
    float *s, *z;
    KeyChunk keys;
    QueryGroup group;
    float* q_channels;                     // groups of [monomial_rows][GROUP]
    float *dread, *dread_total;            // [CHUNK][v_row], [CHUNK]: gradients of what the queries read from the memory
    float *channels, *dchannels;           // [V][GROUP], [K+1][GROUP]
    float *dk, *dv, *read, *read_total;    // [CHUNK][k_row], [CHUNK][v_row], [GROUP][v_row], [GROUP]
    float *weights, *dscores;
    double* d_sums;  // [S]

    BackwardBuffers(Arena& arena, const BackwardSizes& sizes)
        : BackwardBuffers(arena, sizes.shape, sizes.S, round_up(monomial_count(sizes.shape.K), ROWS)) {}

  private:
    BackwardBuffers(Arena& arena, const Shape& shape, int64_t S, int64_t features)
        : s(arena.take(features * shape.v_row)),
          z(arena.take(features)),
          keys(arena, shape),
          group(arena, shape),
          q_channels(arena.take(CHUNK * monomial_rows(shape.K))),
          dread(arena.take(CHUNK * shape.v_row)),
          dread_total(arena.take(CHUNK)),
          channels(arena.take(GROUP * shape.V)),
          dchannels(arena.take(GROUP * (shape.K + 1))),
          dk(arena.take(CHUNK * shape.k_row)),
          dv(arena.take(CHUNK * shape.v_row)),
          read(arena.take(GROUP * shape.v_row)),
          read_total(arena.take(GROUP)),
          weights(arena.take(KEYS * GROUP)),
          dscores(arena.take(KEYS * GROUP)),
          d_sums(reinterpret_cast<double*>(arena.take(2 * S))) {}
};

// The backward of one key-value head.
class HeadBackward {
  public:
    HeadBackward(const MaclaurinAttention& call, const Shape& shape, const BackwardBuffers& buffers, const Pairs& pairs, int64_t b, int64_t g)
        : call_(call),
          shape_(shape),
          buffers_(buffers),
          memory_{buffers.s, buffers.z, pairs.count, shape.v_row, shape.V, pairs.data},
          b_(b),
          g_(g),
          n_(b * call.G + g),
          heads_(call.H / call.G),
          offset_(call.S - call.T) {}

    void run() const {
        const Spans spans(call_);
        for (int64_t s = 0; s < call_.S; ++s) buffers_.d_sums[s] = 0;
        start(call_.memory, 1 / ROOT);
        for (Span span = spans.from(0);; span = spans.from(span.end)) {
            const float keep = buffers_.keys.pack(call_, shape_, b_, g_, span);
            for (int64_t r = 0; r < heads_ && reads_memory(span); ++r) queries_of_memory(g_ * heads_ + r, span);
            if (span.end == call_.S) break;
            write_memory<false>(memory_, keep, buffers_.keys.k_channels, group_stride(), span.end - span.begin, buffers_.keys.v_at_end,
                                buffers_.keys.left_at_end, buffers_.keys.panel);
        }
        start(nullptr, 1);
        bool carried = false;
        for (int64_t end = call_.S; end > 0;) {
            const Span span = spans.until(end);
            carried = backward_chunk(span, carried);
            end = span.begin;
        }
        if (call_.dmemory != nullptr) copy_to_state({call_, call_.dmemory, n_}, memory_, shape_.K, 1 / ROOT);
        if (call_.log_decay.data != nullptr) finish_decay(call_, b_, g_, buffers_.d_sums, SMALLEST_LOG_DECAY);
    }

  private:
    int64_t group_stride() const { return GROUP * monomial_rows(shape_.K); }
    bool has_queries(Span span) const { return span.begin >= offset_; }
    bool reads_memory(Span span) const { return has_queries(span) && (span.begin > 0 || call_.memory != nullptr); }

    void start(const float* state, float root) const {
        clear_memory(memory_);
        if (state != nullptr) add_state(memory_, {call_, state, n_}, shape_.K, root);
    }

    // The queries of a chunk, and the gradients of what they read from the memory.
    void pack_reads(int64_t h, Span span) const {
        const int64_t queries = span.end - span.begin;
        for (int64_t first = 0; first < queries; first += GROUP) {
            const int64_t t = span.begin - offset_ + first, count = smaller(GROUP, queries - first);
            float* q = buffers_.q_channels + first / GROUP * group_stride();
            transpose_rows(q, GROUP, GROUP, row(call_.q, b_, t, h), call_.q.time, count, shape_.K, 1);
            add_monomial_rows(q, shape_.K);
            float *dread = buffers_.dread + first * shape_.v_row, *dtotal = buffers_.dread_total + first;
            QueryGroup::gradients<false>(call_, shape_, dread, dtotal, b_, h, t, count);
            for (int64_t i = 0; i < count; ++i) {
                const bool silent = call_.normalize && std::signbit(*row(call_.total, b_, t + i, h));
                const float times = silent ? 0 : buffers_.keys.from_start[first + i];
                dtotal[i] *= times;
                for (int64_t c = 0; c < shape_.v_row; ++c) dread[i * shape_.v_row + c] *= times;
            }
        }
    }

    // dq from the memory; the chunk itself adds its part on the way back.
    void queries_of_memory(int64_t h, Span span) const {
        pack_reads(h, span);
        for (int64_t first = 0; first < span.end - span.begin; first += GROUP) {
            const int64_t t = span.begin - offset_ + first, count = smaller(GROUP, span.end - span.begin - first);
            transpose_rows(buffers_.channels, GROUP, GROUP, buffers_.dread + first * shape_.v_row, shape_.v_row, GROUP, shape_.V, 1);
            fill(buffers_.dchannels, (shape_.K + 1) * GROUP, 0);
            read_memory_backward<true>(buffers_.dchannels, memory_, buffers_.q_channels + first / GROUP * group_stride(), buffers_.channels,
                                       buffers_.dread_total + first);
            for (int64_t i = 0; i < count; ++i)
                for (int64_t c = 0; c < shape_.K; ++c) row(call_.dq, b_, t + i, h)[c] = buffers_.dchannels[c * GROUP + i];
        }
    }

    // Returns whether the memory before the chunk has a gradient.
    bool backward_chunk(Span span, bool carried) const {
        const int64_t keys = span.end - span.begin, padded = round_up(keys, GROUP);
        float keep = buffers_.keys.pack(call_, shape_, b_, g_, span);
        fill(buffers_.dk, padded * shape_.k_row, 0);
        fill(buffers_.dv, padded * shape_.v_row, 0);
        if (span.end == call_.folded && call_.dnew_memory != nullptr) {
            const int64_t size = memory_size(call_);
            add_state(memory_, {call_, call_.dnew_memory, n_}, shape_.K, ROOT);
            buffers_.d_sums[span.end - 1] += dot(call_.new_memory + n_ * size, call_.dnew_memory + n_ * size, size);
            carried = true;
        }
        if (carried) keys_of_memory(span);
        for (int64_t h = g_ * heads_; h < (g_ + 1) * heads_ && has_queries(span); ++h) within_chunk(h, span);
        for (int64_t h = g_ * heads_; h < (g_ + 1) * heads_ && reads_memory(span); ++h) {
            pack_reads(h, span);
            write_memory<true>(memory_, keep, buffers_.q_channels, group_stride(), keys, buffers_.dread, buffers_.dread_total,
                               buffers_.keys.panel);
            keep = 1;
            carried = true;
        }
        if (carried && keep != 1) {
            for (int64_t i = 0; i < memory_.features * memory_.v_row; ++i) memory_.s[i] *= keep;
            for (int64_t f = 0; f < memory_.features; ++f) memory_.z[f] *= keep;
        }
        finish_keys(span);
        return carried;
    }

    // dk and dv from the memory after the chunk.
    void keys_of_memory(Span span) const {
        const KeyChunk& chunk = buffers_.keys;
        for (int64_t first = 0; first < span.end - span.begin; first += GROUP) {
            const float* k = chunk.k_channels + first / GROUP * group_stride();
            transpose_rows(buffers_.channels, GROUP, GROUP, chunk.v_at_end + first * shape_.v_row, shape_.v_row, GROUP, shape_.V, 1);
            fill(buffers_.dchannels, (shape_.K + 1) * GROUP, 0);
            read_memory_backward<false>(buffers_.dchannels, memory_, k, buffers_.channels, chunk.left_at_end + first);
            read_memory<false>(buffers_.read, buffers_.read_total, memory_, k, chunk.panel);
            transpose_rows(buffers_.dk + first * shape_.k_row, shape_.k_row, shape_.K, buffers_.dchannels, GROUP, shape_.K, GROUP, 1);
            for (int64_t i = 0; i < GROUP; ++i)
                for (int64_t c = 0; c < shape_.v_row; ++c)
                    buffers_.dv[(first + i) * shape_.v_row + c] = buffers_.read[i * shape_.v_row + c] * chunk.left_at_end[first + i];
        }
    }

    // The pairs of a query and a key of the same chunk.
    void within_chunk(int64_t h, Span span) const {
        const int64_t queries = span.end - span.begin;
        SeenBuffers seen;
        for (int64_t first = 0; first < queries; first += GROUP) {
            const int64_t t = span.begin - offset_ + first, count = smaller(GROUP, queries - first);
            buffers_.group.pack<false>(call_, shape_, b_, h, t, count);
            for (int64_t begin = 0; begin < first + count; begin += KEYS) {
                const KeyGradients to{buffers_.dk + begin * shape_.k_row, buffers_.dv + begin * shape_.v_row, nullptr};
                attend_backward<false>(buffers_.group, count, shape_, buffers_.keys.block(shape_, begin, first + count), to,
                                       {buffers_.keys.decay_sums(call_), first, count, begin}, seen, buffers_.weights, buffers_.dscores);
            }
            for (int64_t i = 0; i < count; ++i) {
                float* dq = row(call_.dq, b_, t + i, h);
                const float* from = buffers_.group.dq + i * shape_.k_row;
                for (int64_t c = 0; c < shape_.K; ++c) dq[c] = reads_memory(span) ? dq[c] + from[c] : from[c];
                if (!call_.normalize) buffers_.d_sums[span.begin + first + i] += 0.5 * dot(buffers_.group.q + i * shape_.k_row, dq, shape_.K);
            }
        }
    }

    void finish_keys(Span span) const {
        for (int64_t j = 0; j < span.end - span.begin; ++j) {
            const float* dk = buffers_.dk + j * shape_.k_row;
            copy_rows(row(call_.dk, b_, span.begin + j, g_), shape_.K, 1, dk, 0, 1, shape_.K, call_.scale);
            copy_rows(row(call_.dv, b_, span.begin + j, g_), shape_.V, 1, buffers_.dv + j * shape_.v_row, 0, 1, shape_.V, 1);
            buffers_.d_sums[span.begin + j] -= 0.5 * dot(buffers_.keys.k + j * shape_.k_row, dk, shape_.K);
        }
    }

    const MaclaurinAttention& call_;
    const Shape& shape_;
    const BackwardBuffers& buffers_;
    const Memory memory_;
    const int64_t b_, g_, n_, heads_, offset_;
};

inline bool chunked_backward(const MaclaurinAttention& call) {
    const BackwardSizes sizes{Shape(call.K, call.V), call.S};
    const Pairs pairs(call.K);
    if (pairs.data == nullptr) return false;
    return over_heads(call, [&](int64_t b, int64_t g) {
        return with_buffers<BackwardBuffers>(sizes, [&](const BackwardBuffers& buffers) {
            HeadBackward(call, sizes.shape, buffers, pairs, b, g).run();
        });
    });
}

}  // namespace maclaurin::MACLAURIN_VARIANT
