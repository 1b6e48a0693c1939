// The gated recurrence h_t = σ(f_t) h_{t-1} + σ(i_t) u_t, y_t = gelu(g_t) σ(o_t) h_t, and its gradient: one pass over the tokens
// each. Gates are computed where they are used, again in the backward, and never written.
#pragma once
#include "gelu.h"
#include "pack.h"
#include "pool.h"

namespace maclaurin::MACLAURIN_VARIANT {

// σ(x) and σ(-x), both exact to the last digits: their difference from 1 would not be.
struct Sigmoids {
    vec open, shut;
};
MACLAURIN_INLINE Sigmoids sigmoids(vec x) {
    const vec e = exp(x < 0 ? x : -x), larger = 1.0f / (1.0f + e), smaller = e * larger;
    return {x < 0 ? smaller : larger, x < 0 ? larger : smaller};
}

// The state before token t: of the token before it, of the caller, or zero.
MACLAURIN_INLINE const float* state_before(const MaclaurinGated& call, int64_t b, int64_t t) {
    if (t > 0) return row(call.h, b, t - 1, 0);
    return call.start == nullptr ? nullptr : call.start + b * call.C;
}

inline void gated_forward_channels(const MaclaurinGated& call, int64_t b, int64_t first, int64_t end) {
    for (int64_t t = 0; t < call.T; ++t) {
        const float *u = row(call.u, b, t, 0), *gates = row(call.gates, b, t, 0), *g = row(call.g, b, t, 0);
        const float* before = state_before(call, b, t);
        float *h = row(call.h, b, t, 0), *y = row(call.y, b, t, 0);
        over_vectors(first, end, [&](int64_t c, auto vector) {
            const vec f = sigmoids(vector.read(gates + c)).open, i = sigmoids(vector.read(gates + call.C + c)).open;
            const vec o = sigmoids(vector.read(gates + 2 * call.C + c)).open;
            const vec kept = before == nullptr ? vec{} : vector.read(before + c), now = f * kept + i * vector.read(u + c);
            vector.write(h + c, now);
            vector.write(y + c, gelu(vector.read(g + c)).y * o * now);
        });
    }
}

// dstart has the gradient of the state after the token at hand; at first, that of the last state.
inline void gated_backward_channels(const MaclaurinGated& call, int64_t b, int64_t first, int64_t end) {
    float* after = call.dstart + b * call.C;
    for (int64_t t = call.T - 1; t >= 0; --t) {
        const float *u = row(call.u, b, t, 0), *gates = row(call.gates, b, t, 0), *g = row(call.g, b, t, 0);
        const float *h = row(call.h, b, t, 0), *dy = row(call.dy, b, t, 0), *before = state_before(call, b, t);
        float *du = row(call.du, b, t, 0), *dgates = row(call.dgates, b, t, 0), *dg = row(call.dg, b, t, 0);
        over_vectors(first, end, [&](int64_t c, auto vector) {
            const Sigmoids f = sigmoids(vector.read(gates + c)), i = sigmoids(vector.read(gates + call.C + c));
            const Sigmoids o = sigmoids(vector.read(gates + 2 * call.C + c));
            const Gelu gate = gelu(vector.read(g + c));
            const vec kept = before == nullptr ? vec{} : vector.read(before + c);
            const vec dout = vector.read(dy + c), dopen = dout * vector.read(h + c) * o.open;
            const vec dh = dout * gate.y * o.open + vector.read(after + c), dx = dh * i.open;
            vector.write(dgates + c, dh * kept * f.open * f.shut);
            vector.write(dgates + call.C + c, dx * vector.read(u + c) * i.shut);
            vector.write(dgates + 2 * call.C + c, dopen * gate.y * o.shut);
            vector.write(dg + c, dopen * gate.slope);
            vector.write(du + c, dx);
            vector.write(after + c, dh * f.open);
        });
    }
}

// run(b, first channel, end): as many channels a task as leave work for all threads, since they lie side by side in a token.
template <class Run>
void over_ranges_of_channels(const MaclaurinGated& call, const Run& run) {
    const int64_t most = round_up(call.C, LANES) / LANES, parts = larger(1, smaller(most, call.threads / larger(1, call.B)));
    const int64_t width = round_up((call.C + parts - 1) / parts, LANES);
    parallel_for(call.B * parts, call.threads, [&](int64_t task) {
        const FlushSubnormals flush;
        const int64_t first = task % parts * width;
        run(task / parts, first, smaller(call.C, first + width));
    });
}

inline bool gated_forward(const MaclaurinGated& call) {
    over_ranges_of_channels(call, [&](int64_t b, int64_t first, int64_t end) { gated_forward_channels(call, b, first, end); });
    return true;
}

inline bool gated_backward(const MaclaurinGated& call) {
    over_ranges_of_channels(call, [&](int64_t b, int64_t first, int64_t end) { gated_backward_channels(call, b, first, end); });
    return true;
}

}  // namespace maclaurin::MACLAURIN_VARIANT
