// Power attention of order 2 in chunks: linear time, one state per head, and nothing that grows with T.
#pragma once
#include "chunks.h"

namespace maclaurin::MACLAURIN_VARIANT {

constexpr float ROUNDING = 4 * 1.1920929e-7f;  // machine epsilons of the largest term: ops/power_chunked.py

struct ForwardBuffers {
    float *s, *z;
    KeyChunk keys;
    float* q;  // [monomial_rows][GROUP]
    float *y, *total, *largest;
    float *read, *read_total;  // what the state says
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

// Adds to the sums of a group what it reads from the state. Where the total that was read is smaller than the rounding
// error of its largest term, |q|² Σ_j w_j |k_j|², nothing of it is used; that row's total then gets a minus sign at the end.
inline void add_read(const Sums& sums, bool (&silent)[GROUP], const ForwardBuffers& buffers, const float* from_start,
                     const Shape& shape, bool guarded, float trace_of_state) {
    for (int n = 0; n < GROUP; n += LANES) {
        vec square{};
        for (int64_t c = 0; c < shape.K; ++c) square += load(buffers.q + c * GROUP + n) * load(buffers.q + c * GROUP + n);
        for (int l = 0; l < LANES; ++l) {
            const int i = n + l;
            silent[i] = guarded && !(buffers.read_total[i] > ROUNDING * square[l] * trace_of_state);
            const float times = silent[i] ? 0 : from_start[i];
            sums.total[i] += buffers.read_total[i] * times;
            for (int64_t c = 0; c < shape.v_row; c += LANES) {
                float* y = sums.y + i * shape.v_row + c;
                store(y, load(y) + load(buffers.read + i * shape.v_row + c) * times);
            }
        }
    }
}

inline void chunk_outputs(const MaclaurinAttention& call, const Shape& shape, const ForwardBuffers& buffers,
                          const State& state, bool empty, int64_t b, int64_t h, Span span) {
    const int64_t offset = call.S - call.T, keys = span.end - span.begin;
    const float size_of_state = empty ? 0 : trace(state, shape.K);
    const Sums sums{buffers.y, buffers.total, buffers.largest};
    SeenBuffers seen;
    for (int64_t first = 0; first < keys; first += GROUP) {
        const int64_t t = span.begin - offset + first, count = smaller(GROUP, keys - first);
        transpose_rows(buffers.q, GROUP, GROUP, row(call.q, b, t, h), call.q.time, count, shape.K, 1);
        add_monomial_rows(buffers.q, shape.K);
        float *y = row(call.y, b, t, h), *total = call.total.data == nullptr ? nullptr : row(call.total, b, t, h);
        if (call.way == MACLAURIN_FORTH)
            sums.resume(shape.v_row, shape.V, count, y, call.y.time, total, call.total.time);
        else
            sums.start(shape.v_row);
        for (int64_t begin = 0; begin < first + count && call.way != MACLAURIN_ALL; begin += KEYS) {
            const Between between{buffers.keys.decay_sums(call), first, count, begin, call.way == MACLAURIN_BACK};
            attend<false>(sums, buffers.q, shape.K, buffers.keys.block(call, shape, begin, first + count), between, seen,
                          buffers.weights);
        }
        bool silent[GROUP] = {};
        if (!empty) {
            read_state<true>(buffers.read, buffers.read_total, state, buffers.q, buffers.keys.panel);
            add_read(sums, silent, buffers, buffers.keys.from_start + first, shape,
                     call.normalize && one_call(call), size_of_state);
        }
        const bool nan = finish<false>(sums, count, shape.V, shape.v_row, call.normalize && call.way != MACLAURIN_BACK, y,
                                       call.y.time, total, call.total.time);
        report_nan(call.nan, nan);
        for (int64_t i = 0; total != nullptr && i < count; ++i)
            if (silent[i]) total[i * call.total.time] *= -1;
    }
}

// What one task computes of a key-value head: some of its query heads, and some value columns of them. Where there are
// fewer heads than threads, several tasks build the same state, or columns of it, for different outputs.
struct Part {
    int64_t b, g, first_head, end_head;
    int64_t first_column, columns;
};

class Parts {
  public:
    explicit Parts(const MaclaurinAttention& call) : call_(call), R_(call.H / call.G) {
        const int64_t heads = larger(1, call.B * call.G), wanted = (call.threads + heads - 1) / heads;
        by_heads_ = larger(1, smaller(R_, wanted));
        // in whole groups of columns, for the sake of the tiles; all of them where a row's total is read and written
        const int64_t pieces = call.way == MACLAURIN_CAUSAL ? larger(1, wanted / by_heads_) : 1;
        width_ = larger(GROUP, round_up((call.V + pieces - 1) / pieces, GROUP));
        by_columns_ = larger(1, (call.V + width_ - 1) / width_);
    }
    int64_t count() const { return call_.B * call_.G * by_heads_ * by_columns_; }
    Part operator[](int64_t index) const {
        const int64_t column = index % by_columns_, head = index / by_columns_ % by_heads_,
                      n = index / by_columns_ / by_heads_;
        const int64_t g = n % call_.G, first = column * width_;
        return {n / call_.G,
                g,
                g * R_ + R_ * head / by_heads_,
                g * R_ + R_ * (head + 1) / by_heads_,
                first,
                smaller(width_, call_.V - first)};
    }

  private:
    const MaclaurinAttention& call_;
    int64_t R_, by_heads_, by_columns_, width_;
};

inline void forward_part(const MaclaurinAttention& whole, const Part& part, const Shape& shape,
                         const ForwardBuffers& buffers, const Pairs& pairs) {
    MaclaurinAttention call = whole;
    call.V = part.columns;
    call.v.data += part.first_column;
    call.y.data += part.first_column;
    if (part.first_column > 0) call.total.data = nullptr;
    const int64_t n = part.b * call.G + part.g;
    const bool first_of_head = part.first_head == part.g * (call.H / call.G);
    const State state{buffers.s, buffers.z, pairs.count, shape.v_row, shape.V, pairs.data};
    clear_state(state);
    bool empty = call.state == nullptr;
    if (!empty) {
        StateColumns<const float> columns(whole, whole.state + n * whole.state_head);
        columns.values += part.first_column;
        add_columns(state, columns, shape.K, 1 / ROOT);
    }
    const Spans spans(call);
    const auto outputs = [&](Span span) {
        for (int64_t h = part.first_head; h < part.end_head && span.begin >= call.S - call.T; ++h)
            chunk_outputs(call, shape, buffers, state, empty, part.b, h, span);
    };
    Span span{0, 0};
    while (span.end < call.S) {
        span = spans.from(span.end);
        const float keep = buffers.keys.pack(call, shape, part.b, part.g, span);
        if (call.way != MACLAURIN_ALL) outputs(span);
        if (span.end < call.S || span.end <= call.folded || call.way == MACLAURIN_ALL) {
            write_state<false>(state, keep, buffers.keys.k_channels, GROUP * monomial_rows(shape.K), span.end - span.begin,
                                buffers.keys.v_at_end, buffers.keys.left_at_end, buffers.keys.panel);
            empty = false;
        }
        if (span.end == call.folded && first_of_head) {
            StateColumns<float> columns(whole, whole.new_state + n * state_size(whole));
            columns.values += part.first_column;
            if (part.first_column > 0) columns.totals = nullptr;
            copy_to_columns(columns, state, shape.K, ROOT);
        }
    }
    if (call.way != MACLAURIN_ALL) return;
    buffers.keys.no_decay();
    for (span = {0, 0}; span.end < call.S;) outputs(span = spans.from(span.end));
}

inline bool chunked_forward(const MaclaurinAttention& call) {
    const Pairs pairs(call.K, call.constant);
    if (pairs.data == nullptr) return false;
    const Parts parts(call);
    bool failed = false;
    parallel_for(parts.count(), call.threads, [&](int64_t index) {
        const FlushSubnormals flush;
        const Part part = parts[index];
        const Shape shape(call.K, part.columns);
        const bool done = with_buffers<ForwardBuffers>(
            shape, [&](const ForwardBuffers& buffers) { forward_part(call, part, shape, buffers, pairs); });
        if (!done) __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
    });
    return !failed;
}

}  // namespace maclaurin::MACLAURIN_VARIANT
