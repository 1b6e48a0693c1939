// The quadratic form: every query meets every earlier key. No T x T matrix exists, only blocks of it.
#pragma once
#include "attend.h"
#include "shapes.h"

namespace maclaurin::MACLAURIN_VARIANT {

constexpr int64_t QUERIES = 4 * GROUP;  // queries a task: each block of keys is copied once for all of them

// The sums of log decay of every key-value head, (B, G, S).
class AllSums {
  public:
    explicit AllSums(const MaclaurinAttention& call) : call_(call) {
        if (call.log_decay.data == nullptr) return;
        data_ = static_cast<double*>(__builtin_malloc(sizeof(double) * call.B * call.G * call.S));
        if (data_ == nullptr) return;
        const double smallest = call.exponential ? SMALLEST_LOG_DECAY_OF_SCORES : SMALLEST_LOG_DECAY;
        parallel_for(call.B * call.G, call.threads, [&](int64_t n) {
            const float* log_decay = row(call.log_decay, n / call.G, 0, n % call.G);
            cumulative(data_ + n * call.S, log_decay, call.log_decay.time, call.S, smallest);
        });
    }
    ~AllSums() { __builtin_free(data_); }
    AllSums(const AllSums&) = delete;
    AllSums& operator=(const AllSums&) = delete;

    bool failed() const { return call_.log_decay.data != nullptr && data_ == nullptr; }
    // null where there is no decay
    const double* of_head(int64_t b, int64_t g) const {
        return data_ == nullptr ? nullptr : data_ + (b * call_.G + g) * call_.S;
    }

  private:
    const MaclaurinAttention& call_;
    double* data_ = nullptr;
};

struct QuadraticBuffers {
    float *q, *y, *total, *largest;  // groups of [K][GROUP], [GROUP][v_row], [GROUP], [GROUP]
    float *k, *v, *weights;

    QuadraticBuffers(Arena& arena, const Shape& shape)
        : q(arena.take(QUERIES * shape.K)),
          y(arena.take(QUERIES * shape.v_row)),
          total(arena.take(QUERIES)),
          largest(arena.take(QUERIES)),
          k(arena.take(KEYS * shape.k_row)),
          v(arena.take(KEYS * shape.v_row)),
          weights(arena.take(KEYS * GROUP)) {}
};

template <bool EXPONENTIAL>
void quadratic_outputs(const MaclaurinAttention& call, const Shape& shape, const QuadraticBuffers& buffers,
                       const double* decay_sums, int64_t b, int64_t h, int64_t start) {
    const int64_t g = h / (call.H / call.G), queries = smaller(QUERIES, call.T - start);
    const int64_t position = call.S - call.T + start, end = position + queries;  // among the keys
    const auto sums_of = [&](int64_t i) {
        return Sums{buffers.y + i * shape.v_row, buffers.total + i, buffers.largest + i};
    };
    SeenBuffers seen;

    for (int64_t i = 0; i < queries; i += GROUP) {
        const int64_t count = smaller(GROUP, queries - i);
        transpose_rows(buffers.q + i * shape.K, GROUP, GROUP, row(call.q, b, start + i, h), call.q.time, count, shape.K, 1);
        sums_of(i).start(shape.v_row);
    }
    for (int64_t begin = 0; begin < end; begin += KEYS) {
        const int64_t keys = smaller(KEYS, end - begin);
        pack_keys(buffers.k, buffers.v, call, shape, b, g, begin, keys, round_up(keys, ROWS));
        for (int64_t i = 0; i < queries; i += GROUP) {
            const int64_t count = smaller(GROUP, queries - i), met = smaller(keys, position + i + count - begin);
            if (met <= 0) continue;
            const KeyBlock block{buffers.k, buffers.v, shape.k_row, shape.v_row, met, round_up(met, ROWS),
                                 call.constant != 0};
            const Between between{decay_sums, position + i, count, begin};
            attend<EXPONENTIAL>(sums_of(i), buffers.q + i * shape.K, shape.K, block, between, seen, buffers.weights);
        }
    }
    bool nan = false;
    for (int64_t i = 0; i < queries; i += GROUP)
        nan |= finish<EXPONENTIAL>(sums_of(i), smaller(GROUP, queries - i), shape.V, shape.v_row, call.normalize,
                                   row(call.y, b, start + i, h), call.y.time, row(call.total, b, start + i, h),
                                   call.total.time);
    report_nan(call.nan, nan);
}

inline bool quadratic_forward(const MaclaurinAttention& call) {
    const Shape shape(call.K, call.V);
    const AllSums sums(call);
    bool failed = sums.failed();
    if (failed) return false;
    const int64_t heads = call.B * call.H, blocks = round_up(call.T, QUERIES) / QUERIES;
    parallel_for(heads * blocks, call.threads, [&](int64_t task) {
        const FlushSubnormals flush;
        // the last queries first: they meet the most keys, and short tasks fill the gaps at the end
        const int64_t start = (blocks - 1 - task / heads) * QUERIES, b = task % heads / call.H, h = task % call.H;
        const double* decay_sums = sums.of_head(b, h / (call.H / call.G));
        const bool done = with_buffers<QuadraticBuffers>(shape, [&](const QuadraticBuffers& buffers) {
            if (call.exponential) quadratic_outputs<true>(call, shape, buffers, decay_sums, b, h, start);
            else quadratic_outputs<false>(call, shape, buffers, decay_sums, b, h, start);
        });
        if (!done) __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
    });
    return !failed;
}

}  // namespace maclaurin::MACLAURIN_VARIANT
