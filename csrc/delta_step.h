// One new token of the delta rule: the state is read once as the caller has it, by the key and all queries, and written anew
// beside it.
#pragma once
#include "delta_block.h"
#include "step_state.h"

namespace maclaurin::MACLAURIN_VARIANT {

struct DeltaStepBuffers {
    int64_t F, v_row;
    float *keep, *key, *reader;  // [F]: the decay, φ(k), and the decayed φ of a reader
    float *x, *read;             // [K]; [1 + R][v_row]: what the key and every query read

    DeltaStepBuffers(Arena& arena, const MaclaurinDelta& call)
        : F(call.order == 2 ? monomial_count(call.K) : call.K),
          v_row(round_up(call.V, LANES)),
          keep(arena.take(round_up(F, LANES))),
          key(arena.take(F)),
          reader(arena.take((1 + call.H / call.G) * F)),
          x(arena.take(call.K)),
          read(arena.take((1 + call.H / call.G) * v_row)) {}

    void pack_decay(const MaclaurinDelta& call, int64_t b, int64_t g) const {
        fill(keep, round_up(F, LANES), 0);
        const float* a = call.log_decay.data == nullptr ? nullptr : row(call.log_decay, b, 0, g);
        for (int64_t f = 0; f < F && a != nullptr; ++f) keep[f] = a[call.per_channel ? f : 0];
        exponentiate(keep, F);
    }

    // φ(scale·x) to `features`, and decayed to the place of reader number n.
    void pack_reader(const MaclaurinDelta& call, float* features, const float* from, float scale, int64_t n) const {
        for (int64_t c = 0; c < call.K; ++c) x[c] = from[c] * scale;
        if (call.order == 2) step_features(features, x, call.K);
        else copy_rows(features, F, 1, x, F, 1, F, 1);
        for (int64_t f = 0; f < F; ++f) reader[n * F + f] = features[f] * keep[f];
    }
};

// All readers of a head's state [F][V]; in the last rows whole vectors would reach out of it.
inline void delta_step_read(const DeltaStepBuffers& at, const float* state, int64_t V, int64_t readers) {
    const int64_t vectors = at.v_row / LANES, careful = V == 0 ? 0 : round_up(at.v_row, V) / V - 1;
    fill(at.read, readers * at.v_row, 0);
    for (int64_t begin = 0; begin < at.F; begin += STEP_ROWS) {
        const int64_t rows = smaller(STEP_ROWS, at.F - begin), fast = larger(0, smaller(rows, at.F - careful - begin));
        for (int64_t n = 0; n < readers; ++n) {
            float* read = at.read + n * at.v_row;
            const float* features = at.reader + n * at.F;
            step_read(read, features + begin, state + begin * V, V, fast, vectors);
            for (int64_t f = begin + fast; f < begin + rows; ++f)
                for (int64_t c = 0; c < V; ++c) read[c] += features[f] * state[f * V + c];
        }
    }
}

inline void delta_step_of_head(const MaclaurinDelta& call, const DeltaStepBuffers& at, int64_t b, int64_t g) {
    const int64_t R = call.H / call.G, V = call.V, state_at = (b * call.G + g) * at.F * V;
    const float *state = call.state + state_at, *k = row(call.k, b, 0, g), *v = row(call.v, b, 0, g);
    at.pack_decay(call, b, g);
    at.pack_reader(call, at.key, k, 1, 0);
    for (int64_t r = 0; r < R; ++r)
        at.pack_reader(call, at.reader + (1 + r) * at.F, row(call.q, b, 0, g * R + r), call.scale, 1 + r);
    delta_step_read(at, state, V, 1 + R);

    float *error = row(call.error, b, 0, g), *u = at.read;
    const float beta = *row(call.beta, b, 0, g);
    for (int64_t c = 0; c < V; ++c) {
        error[c] = v[c] - at.read[c];
        u[c] = beta * error[c];
    }
    for (int64_t r = 0; r < R; ++r) {
        const float score = call.scale * dot_product(row(call.q, b, 0, g * R + r), k, call.K);
        const float own = call.order == 2 ? score * score : score;
        float* y = row(call.y, b, 0, g * R + r);
        for (int64_t c = 0; c < V; ++c) y[c] = at.read[(1 + r) * at.v_row + c] + own * u[c];
    }
    if (call.new_state == nullptr) return;
    float* to = call.new_state + state_at;
    for (int64_t f = 0; f < at.F; ++f)
        for (int64_t c = 0; c < V; ++c) to[f * V + c] = at.keep[f] * state[f * V + c] + at.key[f] * u[c];
}

inline bool delta_step(const MaclaurinDelta& call) {
    if (call.new_state != nullptr && call.order == 2)
        prefer_large_pages(call.new_state, call.B * call.G * monomial_count(call.K) * call.V * sizeof(float));
    return over_heads(call, [&](int64_t b, int64_t g) {
        return with_buffers<DeltaStepBuffers>(
            call, [&](const DeltaStepBuffers& buffers) { delta_step_of_head(call, buffers, b, g); });
    });
}

}  // namespace maclaurin::MACLAURIN_VARIANT
