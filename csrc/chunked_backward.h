// The backward of the chunked form. It stores nothing that the inputs do not say: one walk forwards rebuilds the state S
// and gives dq, one walk backwards carries its gradient dS and gives dk and dv. Neither needs the other, so they are two
// tasks; only the pairs within a chunk are computed in both.
//
//     dφ(q_i) = exp(L_i) S dy_i                          dS = exp(L_C) dS' + Σ_i exp(L_i) φ(q_i) dy_iᵀ
//     dφ(k_j) = exp(L_C - L_j) dS' v_j                   dv_j = exp(L_C - L_j) dS'ᵀ φ(k_j)
#pragma once
#include "attend_backward.h"
#include "chunks.h"
#include "decay_backward.h"

namespace maclaurin::MACLAURIN_VARIANT {

struct WalkBuffers {
    float *s, *z;
    KeyChunk keys;
    QueryGroup group;
    float* q_channels;                   // groups of [monomial_rows][GROUP]
    float *dread, *dread_total;          // [CHUNK][v_row], [CHUNK]: gradients of what the queries read from the state
    float *channels, *dchannels;         // [V][GROUP], [K+1][GROUP]
    float *dk, *dv, *read, *read_total;  // [CHUNK][k_row], [CHUNK][v_row], [GROUP][v_row], [GROUP]
    float *weights, *dscores;

    WalkBuffers(Arena& arena, const Shape& shape)
        : s(arena.take(round_up(monomial_count(shape.K), ROWS) * shape.v_row)),
          z(arena.take(round_up(monomial_count(shape.K), ROWS))),
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
          dscores(arena.take(KEYS * GROUP)) {}
};

// One key-value head, and what both walks do with it.
class Walk {
  public:
    Walk(const MaclaurinAttention& call, const Shape& shape, const WalkBuffers& buffers, const Pairs& pairs, int64_t b,
         int64_t g)
        : call(call),
          shape(shape),
          buffers(buffers),
          state{buffers.s, buffers.z, pairs.count, shape.v_row, shape.V, pairs.data},
          spans(call),
          b(b),
          g(g),
          n(b * call.G + g),
          first_head(g * (call.H / call.G)),
          end_head((g + 1) * (call.H / call.G)) {
        clear_state(state);
    }

  protected:
    int64_t group_stride() const { return GROUP * monomial_rows(shape.K); }
    bool has_queries(Span span) const { return span.begin >= call.S - call.T; }
    bool reads_state(Span span) const {
        return has_queries(span) && (span.begin > 0 || call.state != nullptr || call.way == MACLAURIN_ALL);
    }
    int64_t first_query(Span span) const { return span.begin - (call.S - call.T); }

    // The queries of a chunk, and the gradients of what they read from the state.
    void pack_reads(int64_t h, Span span) const {
        const int64_t queries = span.end - span.begin;
        for (int64_t first = 0; first < queries; first += GROUP) {
            const int64_t t = first_query(span) + first, count = smaller(GROUP, queries - first);
            float* q = buffers.q_channels + first / GROUP * group_stride();
            transpose_rows(q, GROUP, GROUP, row(call.q, b, t, h), call.q.time, count, shape.K, 1);
            add_monomial_rows(q, shape.K);
            float *dread = buffers.dread + first * shape.v_row, *dtotal = buffers.dread_total + first;
            QueryGroup::gradients<false>(call, shape, dread, dtotal, b, h, t, count);
            for (int64_t i = 0; i < count; ++i) {
                const bool silent = call.normalize && one_call(call) && std::signbit(*row(call.total, b, t + i, h));
                const float times = silent ? 0 : buffers.keys.from_start[first + i];
                dtotal[i] *= times;
                for (int64_t c = 0; c < shape.v_row; c += LANES)
                    store(dread + i * shape.v_row + c, load(dread + i * shape.v_row + c) * times);
            }
        }
    }

    // The pairs of a group of queries and the keys of its chunk: adds to group.dq, or to dk and dv.
    template <Wanted WANTED>
    void within_chunk(int64_t h, Span span, int64_t first, int64_t count) const {
        buffers.group.pack<false>(call, shape, b, h, first_query(span) + first, count);
        SeenBuffers seen;
        for (int64_t begin = 0; begin < first + count; begin += KEYS) {
            const KeyGradients to{buffers.dk + begin * shape.k_row, buffers.dv + begin * shape.v_row, nullptr};
            attend_backward<false, WANTED>(buffers.group, count, shape, buffers.keys.block(call, shape, begin, first + count), to,
                                           {buffers.keys.decay_sums(call), first, count, begin, call.way == MACLAURIN_BACK},
                                           seen, buffers.weights, buffers.dscores);
        }
    }

    const MaclaurinAttention& call;
    const Shape& shape;
    const WalkBuffers& buffers;
    const State state;
    const Spans spans;
    const int64_t b, g, n, first_head, end_head;
};

class ForwardWalk : Walk {
  public:
    using Walk::Walk;

    void run() const {
        if (call.state != nullptr) add_columns(state, {call, call.state + n * call.state_head}, shape.K, 1 / ROOT);
        for (Span span = spans.from(0);; span = spans.from(span.end)) {
            const float keep = buffers.keys.pack(call, shape, b, g, span);
            if (call.way != MACLAURIN_ALL) queries(span);
            if (span.end == call.S && call.way != MACLAURIN_ALL) return;
            write_state<false>(state, keep, buffers.keys.k_channels, group_stride(), span.end - span.begin,
                                buffers.keys.v_at_end, buffers.keys.left_at_end, buffers.keys.panel);
            if (span.end == call.S) break;
        }
        buffers.keys.no_decay();
        for (Span span{0, 0}; span.end < call.S;) queries(span = spans.from(span.end));
    }

  private:
    void queries(Span span) const {
        for (int64_t h = first_head; h < end_head && has_queries(span); ++h) queries(h, span);
    }

    void queries(int64_t h, Span span) const {
        if (reads_state(span)) pack_reads(h, span);
        for (int64_t first = 0; first < span.end - span.begin; first += GROUP) {
            const int64_t t = first_query(span) + first, count = smaller(GROUP, span.end - span.begin - first);
            if (call.way == MACLAURIN_ALL) fill(buffers.group.dq, GROUP * shape.k_row, 0);
            else within_chunk<Wanted::QUERIES>(h, span, first, count);
            fill(buffers.dchannels, (shape.K + 1) * GROUP, 0);
            if (reads_state(span)) {
                transpose_rows(buffers.channels, GROUP, GROUP, buffers.dread + first * shape.v_row, shape.v_row, GROUP,
                               shape.V, 1);
                read_state_backward<true>(buffers.dchannels, state, buffers.q_channels + first / GROUP * group_stride(),
                                           buffers.channels, buffers.dread_total + first);
            }
            for (int64_t i = 0; i < count; ++i)
                for (int64_t c = 0; c < shape.K; ++c)
                    row(call.dq, b, t + i, h)[c] = buffers.group.dq[i * shape.k_row + c] + buffers.dchannels[c * GROUP + i];
        }
    }
};

class BackwardWalk : Walk {
  public:
    using Walk::Walk;

    void run() const {
        bool carried = false;  // whether the state after the chunk has a gradient
        if (call.way == MACLAURIN_ALL) {
            buffers.keys.no_decay();
            for (Span span{0, 0}; span.end < call.S;) reads(span = spans.from(span.end), 1);
            carried = true;
        }
        for (int64_t end = call.S; end > 0;) {
            const Span span = spans.until(end);
            carried = chunk(span, carried);
            end = span.begin;
        }
        if (call.dstate != nullptr) copy_to_columns({call, call.dstate + n * state_size(call)}, state, shape.K, 1 / ROOT);
    }

  private:
    bool chunk(Span span, bool carried) const {
        const int64_t keys = span.end - span.begin, padded = round_up(keys, GROUP);
        float keep = buffers.keys.pack(call, shape, b, g, span);
        fill(buffers.dk, padded * shape.k_row, 0);
        fill(buffers.dv, padded * shape.v_row, 0);
        if (span.end == call.folded && call.dnew_state != nullptr) {
            add_columns(state, {call, call.dnew_state + n * state_size(call)}, shape.K, ROOT);
            carried = true;
        }
        if (carried) keys_of_state(keys);
        if (call.way != MACLAURIN_ALL) {
            for (int64_t h = first_head; h < end_head && has_queries(span); ++h)
                for (int64_t first = 0; first < keys; first += GROUP)
                    within_chunk<Wanted::KEYS_AND_VALUES>(h, span, first, smaller(GROUP, keys - first));
            if (reads_state(span)) {
                reads(span, keep);
                keep = 1;
                carried = true;
            }
        }
        if (carried && keep != 1) {
            for (int64_t i = 0; i < state.features * state.v_row; i += LANES)
                store(state.s + i, load(state.s + i) * keep);
            for (int64_t f = 0; f < state.features; ++f) state.z[f] *= keep;
        }
        for (int64_t j = 0; j < keys; ++j) {
            copy_rows(row(call.dk, b, span.begin + j, g), shape.K, 1, buffers.dk + j * shape.k_row, 0, 1, shape.K,
                      call.scale);
            copy_rows(row(call.dv, b, span.begin + j, g), shape.V, 1, buffers.dv + j * shape.v_row, 0, 1, shape.V, 1);
        }
        return carried;
    }

    // The gradient of the state: what is kept of it, and what the queries of a chunk read.
    void reads(Span span, float keep) const {
        for (int64_t h = first_head; h < end_head; ++h) {
            pack_reads(h, span);
            write_state<true>(state, h == first_head ? keep : 1, buffers.q_channels, group_stride(), span.end - span.begin,
                               buffers.dread, buffers.dread_total, buffers.keys.panel);
        }
    }

    // dk and dv from the state after the chunk.
    void keys_of_state(int64_t keys) const {
        const KeyChunk& chunk = buffers.keys;
        for (int64_t first = 0; first < keys; first += GROUP) {
            const float* k = chunk.k_channels + first / GROUP * group_stride();
            transpose_rows(buffers.channels, GROUP, GROUP, chunk.v_at_end + first * shape.v_row, shape.v_row, GROUP, shape.V,
                           1);
            fill(buffers.dchannels, (shape.K + 1) * GROUP, 0);
            read_state_backward<false>(buffers.dchannels, state, k, buffers.channels, chunk.left_at_end + first);
            transpose_rows(buffers.dk + first * shape.k_row, shape.k_row, shape.K, buffers.dchannels, GROUP, shape.K, GROUP,
                           1);
            read_state<false>(buffers.read, buffers.read_total, state, k, chunk.panel);
            for (int64_t i = 0; i < GROUP; ++i)
                for (int64_t c = i * shape.v_row; c < (i + 1) * shape.v_row; c += LANES)
                    store(buffers.dv + first * shape.v_row + c, load(buffers.read + c) * chunk.left_at_end[first + i]);
        }
    }
};

inline bool chunked_backward(const MaclaurinAttention& call) {
    const Shape shape(call.K, call.V);
    const Pairs pairs(call.K, call.constant);
    if (pairs.data == nullptr) return false;
    const int64_t heads = call.B * call.G;
    bool failed = false;
    // the walks backwards first, because they take longer
    parallel_for(2 * heads, call.threads, [&](int64_t task) {
        const FlushSubnormals flush;
        const int64_t b = task % heads / call.G, g = task % heads % call.G;
        const bool done = with_buffers<WalkBuffers>(shape, [&](const WalkBuffers& buffers) {
            if (task < heads) BackwardWalk(call, shape, buffers, pairs, b, g).run();
            else ForwardWalk(call, shape, buffers, pairs, b, g).run();
        });
        if (!done) __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
    });
    if (call.log_decay.data != nullptr && !failed)
        parallel_for(heads, call.threads, [&](int64_t n) { finish_decay_of_squares(call, n / call.G, n % call.G); });
    return !failed;
}

}  // namespace maclaurin::MACLAURIN_VARIANT
