// Power attention of order 2 in chunks: linear time, one memory a head, and nothing that grows with T.
#pragma once
#include "chunks.h"

namespace maclaurin::MACLAURIN_VARIANT {

constexpr float ROUNDING = 4 * 1.1920929e-7f;  // machine epsilons of the largest term: ops/power_chunked.py

struct ForwardBuffers {
    float *s, *z;
    KeyChunk keys;
    float* q;  // [monomial_rows][GROUP]
    float *y, *total, *largest;
    float *read, *read_total;  // what the memory says
    float* weights;

    ForwardBuffers(Arena& arena, const Shape& shape)
        : s(arena.take(round_up(monomial_count(shape.K), ROWS) * shape.v_row)),
          z(arena.take(round_up(monomial_count(shape.K), ROWS))),
          keys(arena, shape),
          q(arena.take(monomial_rows(shape.K) * GROUP)),
          y(arena.take(GROUP * shape.v_row)),
          total(arena.take(GROUP)),
          largest(arena.take(GROUP)),
          read(arena.take(GROUP * shape.v_row)),
          read_total(arena.take(GROUP)),
          weights(arena.take(KEYS * GROUP)) {}
};

// Adds to the sums of a group what it reads from the memory. Where the total that was read is smaller than the rounding
// error of its largest term, |q|² Σ_j w_j |k_j|², nothing of it is used; that row's total then gets a minus sign at the end.
inline void add_read(const Sums& sums, bool (&silent)[GROUP], const ForwardBuffers& buffers, const float* from_start, const Shape& shape,
                     bool guarded, float trace_of_memory) {
    for (int n = 0; n < GROUP; n += LANES) {
        vec square{};
        for (int64_t c = 0; c < shape.K; ++c) square += load(buffers.q + c * GROUP + n) * load(buffers.q + c * GROUP + n);
        for (int l = 0; l < LANES; ++l) {
            const int i = n + l;
            silent[i] = guarded && !(buffers.read_total[i] > ROUNDING * square[l] * trace_of_memory);
            const float times = silent[i] ? 0 : from_start[i];
            sums.total[i] += buffers.read_total[i] * times;
            for (int64_t c = 0; c < shape.v_row; c += LANES) {
                float* y = sums.y + i * shape.v_row + c;
                store(y, load(y) + load(buffers.read + i * shape.v_row + c) * times);
            }
        }
    }
}

inline void chunk_outputs(const MaclaurinAttention& call, const Shape& shape, const ForwardBuffers& buffers, const Memory& memory,
                          bool empty, int64_t b, int64_t h, Span span) {
    const int64_t offset = call.S - call.T, keys = span.end - span.begin;
    const float size_of_memory = empty ? 0 : trace(memory, shape.K);
    const Sums sums{buffers.y, buffers.total, buffers.largest};
    SeenBuffers seen;
    for (int64_t first = 0; first < keys; first += GROUP) {
        const int64_t t = span.begin - offset + first, count = smaller(GROUP, keys - first);
        transpose_rows(buffers.q, GROUP, GROUP, row(call.q, b, t, h), call.q.time, count, shape.K, 1);
        add_monomial_rows(buffers.q, shape.K);
        sums.start(shape.v_row);
        for (int64_t begin = 0; begin < first + count; begin += KEYS) {
            const Between between{buffers.keys.decay_sums(call), first, count, begin};
            attend<false>(sums, buffers.q, shape.K, buffers.keys.block(shape, begin, first + count), between, seen, buffers.weights);
        }
        bool silent[GROUP] = {};
        if (!empty) {
            read_memory<true>(buffers.read, buffers.read_total, memory, buffers.q, buffers.keys.panel);
            add_read(sums, silent, buffers, buffers.keys.from_start + first, shape, call.normalize, size_of_memory);
        }
        float* total = row(call.total, b, t, h);
        finish<false>(sums, count, shape.V, shape.v_row, call.normalize, row(call.y, b, t, h), call.y.time, total, call.total.time);
        for (int64_t i = 0; i < count; ++i)
            if (silent[i]) total[i * call.total.time] *= -1;
    }
}

inline bool chunked_forward(const MaclaurinAttention& call) {
    const Shape shape(call);
    const Spans spans(call);
    const Pairs pairs(shape.K);
    if (pairs.data == nullptr) return false;
    return over_heads(call, [&](int64_t b, int64_t g) {
        return with_buffers<ForwardBuffers>(shape, [&](const ForwardBuffers& buffers) {
            const int64_t R = call.H / call.G, n = b * call.G + g;
            const Memory memory{buffers.s, buffers.z, pairs.count, shape.v_row, shape.V, pairs.data};
            clear_memory(memory);
            bool empty = call.memory == nullptr;
            if (!empty) add_state(memory, call.memory + n * memory_size(call), shape.K, call.normalize, 1 / ROOT);
            Span span{0, 0};
            while (span.end < call.S) {
                span = spans.from(span.end);
                const float keep = buffers.keys.pack(call, shape, b, g, span);
                for (int64_t r = 0; r < R && span.begin >= call.S - call.T; ++r)
                    chunk_outputs(call, shape, buffers, memory, empty, b, g * R + r, span);
                if (span.end < call.S || span.end <= call.folded) {
                    write_memory<false>(memory, keep, buffers.keys.k_channels, GROUP * monomial_rows(shape.K), span.end - span.begin,
                                        buffers.keys.v_at_end, buffers.keys.left_at_end, buffers.keys.panel);
                    empty = false;
                }
                if (span.end == call.folded)
                    copy_to_state(call.new_memory + n * memory_size(call), memory, shape.K, call.normalize, ROOT);
            }
        });
    });
}

}  // namespace maclaurin::MACLAURIN_VARIANT
