// One new token against keys: squared scores and the sums that y is the quotient of.
#pragma once
#include "attend.h"
#include "shapes.h"

namespace maclaurin::MACLAURIN_VARIANT {

constexpr int64_t STEP_KEYS = LANES;  // at a time

// What is left of every key when the query comes, and of the state. Keys before `first`, in whole blocks, have decayed to
// nothing: they are not read, and `left` is not written there.
struct Left {
    int64_t first;
    float state;
};

// Sums in float64, from the last key back. Each addition waits for the one before, so four keys share one.
inline Left pack_left(float* left, const MaclaurinAttention& call, int64_t b, int64_t g) {
    const auto decay = [&](int64_t j) {
        const double a = call.log_decay.data == nullptr ? 0 : *row(call.log_decay, b, j, g);
        return a < SMALLEST_LOG_DECAY ? SMALLEST_LOG_DECAY : a;
    };
    double sum = 0;
    int64_t j = call.S - 1;
    fill(left + call.S, round_up(call.S, LANES) - call.S, -__builtin_inff());
    // not(<=), so that NaN goes through
    for (; j >= 3 && !(sum <= SMALLEST_LOG_FACTOR); j -= 4) {
        const double one = decay(j), two = one + decay(j - 1), three = two + decay(j - 2);
        left[j] = static_cast<float>(sum);
        left[j - 1] = static_cast<float>(sum + one);
        left[j - 2] = static_cast<float>(sum + two);
        left[j - 3] = static_cast<float>(sum + three);
        sum += three + decay(j - 3);
    }
    for (; j >= 0 && !(sum <= SMALLEST_LOG_FACTOR); --j) {
        left[j] = static_cast<float>(sum);
        sum += decay(j);
    }
    const int64_t first = (j + 1) / STEP_KEYS * STEP_KEYS;
    fill(left + first, j + 1 - first, -__builtin_inff());
    for (int64_t i = first; i < call.S; i += LANES) store(left + i, factor(load(left + i)));
    return {first, factor(all(static_cast<float>(sum)))[0]};
}

// The products of q with `count` keys over whole vectors of channels, one after the other.
MACLAURIN_INLINE void step_products(vec (&parts)[LANES], const float* q, const float* k, int64_t k_time, int64_t whole,
                                    int64_t count) {
    for (int64_t l = 0; l < count; ++l)
        for (int64_t c = 0; c < whole; c += LANES) parts[l] += load(q + c) * load(k + l * k_time + c);
}

// The same for LANES keys, side by side: no sum waits for another one.
MACLAURIN_INLINE void step_products(vec (&parts)[LANES], const float* q, const float* k, int64_t k_time, int64_t whole) {
    for (int64_t c = 0; c < whole; c += LANES) {
        const vec x = load(q + c);
#pragma GCC unroll 16
        for (int l = 0; l < LANES; ++l) parts[l] += x * load(k + l * k_time + c);
    }
}

// LANES scores q·k at a time. Rows are K numbers, of which the last may not fill a vector.
MACLAURIN_INLINE vec step_scores(const float* q, const float* k, int64_t k_time, int64_t K, int64_t count) {
    vec parts[LANES] = {};
    const int64_t whole = K / LANES * LANES;
    if (count == LANES) step_products(parts, q, k, k_time, whole);
    else step_products(parts, q, k, k_time, whole, count);
    transpose_square<LANES / 2>(parts);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; ++l) parts[l] += parts[l + half];
    vec score = parts[0];
    for (int64_t l = 0; l < count && whole < K; ++l)
        for (int64_t c = whole; c < K; ++c) score[l] += q[c] * k[l * k_time + c];
    return score;
}

// sums += Σ_j weights_j v_j over columns of whole vectors, N at a time. Even and odd keys have sums of their own, so that
// each addition waits half as often.
template <int N>
MACLAURIN_INLINE void step_values(float* sums, const float* weights, const float* v, int64_t v_time, int64_t count) {
    vec even[N], odd[N] = {};
    for (int n = 0; n < N; ++n) even[n] = load(sums + n * LANES);
    int64_t j = 0;
    for (; j + 2 <= count; j += 2)
        for (int n = 0; n < N; ++n) {
            even[n] += load(v + j * v_time + n * LANES) * weights[j];
            odd[n] += load(v + (j + 1) * v_time + n * LANES) * weights[j + 1];
        }
    for (; j < count; ++j)
        for (int n = 0; n < N; ++n) even[n] += load(v + j * v_time + n * LANES) * weights[j];
    for (int n = 0; n < N; ++n) store(sums + n * LANES, even[n] + odd[n]);
}

// sums += Σ_j weights_j v_j over the keys from `begin` on.
inline void step_weighted(float* sums, const float* weights, const MaclaurinAttention& call, int64_t b, int64_t g,
                          int64_t begin, int64_t count) {
    const float* v = row(call.v, b, begin, g);
    int64_t c = 0;
    for (; c + 4 * LANES <= call.V; c += 4 * LANES) step_values<4>(sums + c, weights, v + c, call.v.time, count);
    for (; c + 2 * LANES <= call.V; c += 2 * LANES) step_values<2>(sums + c, weights, v + c, call.v.time, count);
    for (; c + LANES <= call.V; c += LANES) step_values<1>(sums + c, weights, v + c, call.v.time, count);
    for (; c < call.V; ++c)
        for (int64_t j = 0; j < count; ++j) sums[c] += weights[j] * v[j * call.v.time + c];
}

// The factors of the orders 0, 1 and 2 of a query head.
struct Orders {
    float zero = 1, one = 1, two = 1;

    Orders(const MaclaurinAttention& call, int64_t h) {
        if (call.order_weights == nullptr) return;
        const float* weights = call.order_weights + h * 3;
        zero = weights[0], one = weights[1], two = weights[2];
    }
};

// (q·k)², or with a constant channel the terms of (q·k)² + (q₀k₀)², each times its factor: x² + 2x·q₀k₀ + 2(q₀k₀)² for the
// score x of the other channels.
inline vec step_squares(const float* q, const float* k, const MaclaurinAttention& call, int64_t count, const Orders& orders) {
    const int64_t own = call.constant ? 1 : 0;
    const vec score = step_scores(q + own, k + own, call.k.time, call.K - own, count) * call.scale;
    if (!own) return score * score;
    vec first{};
    for (int64_t l = 0; l < count; ++l) first[l] = q[0] * k[l * call.k.time] * call.scale;
    return score * score * orders.two + (score * orders.one + first * orders.zero) * first * 2.0f;
}

// One query head and a block of keys: Σ w v and, behind the values, Σ w in LANES parts.
inline void step_keys(float* sums, int64_t v_row, const float* q, const MaclaurinAttention& call, int64_t b, int64_t g,
                      int64_t begin, int64_t count, const float* left, const Orders& orders) {
    float weights[STEP_KEYS];
    vec total = load(sums + v_row);
    for (int64_t j = 0; j < count; j += LANES) {
        const float* k = row(call.k, b, begin + j, g);
        const vec weight = step_squares(q, k, call, smaller(LANES, count - j), orders) * load(left + j);
        total += weight;
        store(weights + j, weight);
    }
    store(sums + v_row, total);
    step_weighted(sums, weights, call, b, g, begin, count);
}

// y, and the divisor for the backward: with a minus sign where the state was not used.
inline void step_finish(const MaclaurinAttention& call, const float* sums, int64_t v_row, bool silent, int64_t b,
                        int64_t h) {
    const float total = sum(load(sums + v_row)), times = call.normalize ? inverse(total) : 1;
    float* y = row(call.y, b, 0, h);
    for (int64_t c = 0; c < call.V; ++c) y[c] = sums[c] * times;
    if (call.total.data != nullptr) *row(call.total, b, 0, h) = silent ? -total : total;
}

struct StepOverKeysBuffers {
    float *q, *sums;  // [R][k_row] and [R][s_row]
    float* left;      // [keys]
    int64_t k_row, v_row, s_row;

    StepOverKeysBuffers(Arena& arena, const MaclaurinAttention& call)
        : k_row(round_up(call.K, LANES)), v_row(round_up(call.V, LANES)), s_row(v_row + LANES) {
        const int64_t R = call.H / call.G;
        q = arena.take(R * k_row);
        sums = arena.take(R * s_row);
        left = arena.take(round_up(call.S, LANES));
    }
};

// Without a state: one task per key-value head, a block of its keys for all of its queries before the next block.
inline bool step_over_keys(const MaclaurinAttention& call) {
    return over_heads(call, [&](int64_t b, int64_t g) {
        return with_buffers<StepOverKeysBuffers>(call, [&](const StepOverKeysBuffers& at) {
            const int64_t R = call.H / call.G;
            copy_rows(at.q, at.k_row, R, row(call.q, b, 0, g * R), call.q.head, R, call.K, 1);
            fill(at.sums, R * at.s_row, 0);
            for (int64_t begin = pack_left(at.left, call, b, g).first; begin < call.S; begin += STEP_KEYS) {
                const int64_t next = smaller(begin + STEP_KEYS, call.S);
                for (int64_t r = 0; r < R; ++r)
                    step_keys(at.sums + r * at.s_row, at.v_row, at.q + r * at.k_row, call, b, g, begin, next - begin,
                              at.left + begin, Orders(call, g * R + r));
            }
            for (int64_t r = 0; r < R; ++r) step_finish(call, at.sums + r * at.s_row, at.v_row, false, b, g * R + r);
        });
    });
}

}  // namespace maclaurin::MACLAURIN_VARIANT
