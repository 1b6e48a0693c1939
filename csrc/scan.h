// The elementwise recurrence h_t = exp(a_t) h_{t-1} + x_t and its gradient: one pass over time each, some channels a task.
#pragma once
#include "pack.h"
#include "pool.h"

namespace maclaurin::MACLAURIN_VARIANT {

constexpr int SCAN_CHANNELS = 64;                    // a task's channels: chains that wait for nothing but themselves
constexpr int SCAN_VECTORS = SCAN_CHANNELS / LANES;  // side by side, so that each hides the latency of the others

// Some channels of one token in registers. Those from `count` on are zero and are not read or written.
template <bool WHOLE>
MACLAURIN_INLINE void load_channels(vec (&to)[SCAN_VECTORS], const float* from, int64_t count) {
    if constexpr (WHOLE) {
        for (int v = 0; v < SCAN_VECTORS; ++v) to[v] = load(from + v * LANES);
    } else {
        float padded[SCAN_CHANNELS] = {};
        std::memcpy(padded, from, count * sizeof(float));
        for (int v = 0; v < SCAN_VECTORS; ++v) to[v] = load(padded + v * LANES);
    }
}
template <bool WHOLE>
MACLAURIN_INLINE void store_channels(float* to, const vec (&from)[SCAN_VECTORS], int64_t count) {
    if constexpr (WHOLE) {
        for (int v = 0; v < SCAN_VECTORS; ++v) store(to + v * LANES, from[v]);
    } else {
        float padded[SCAN_CHANNELS];
        for (int v = 0; v < SCAN_VECTORS; ++v) store(padded + v * LANES, from[v]);
        std::memcpy(to, padded, count * sizeof(float));
    }
}

template <bool WHOLE>
inline void scan_forward_channels(const MaclaurinScan& call, int64_t b, int64_t first, int64_t count) {
    vec h[SCAN_VECTORS] = {}, x[SCAN_VECTORS], a[SCAN_VECTORS];
    if (call.start != nullptr) load_channels<WHOLE>(h, call.start + b * call.C + first, count);
    for (int64_t t = 0; t < call.T; ++t) {
        load_channels<WHOLE>(x, row(call.x, b, t, 0) + first, count);
        load_channels<WHOLE>(a, row(call.log_decay, b, t, 0) + first, count);
        for (int v = 0; v < SCAN_VECTORS; ++v) h[v] = factor(a[v]) * h[v] + x[v];
        store_channels<WHOLE>(row(call.y, b, t, 0) + first, h, count);
    }
}

// g: the gradient of h_t, of which exp(a_t) g reaches the token before.
template <bool WHOLE>
inline void scan_backward_channels(const MaclaurinScan& call, int64_t b, int64_t first, int64_t count) {
    vec reaching[SCAN_VECTORS] = {}, g[SCAN_VECTORS], a[SCAN_VECTORS], h[SCAN_VECTORS];
    for (int64_t t = call.T - 1; t >= 0; --t) {
        load_channels<WHOLE>(g, row(call.dy, b, t, 0) + first, count);
        load_channels<WHOLE>(a, row(call.log_decay, b, t, 0) + first, count);
        for (int v = 0; v < SCAN_VECTORS; ++v) {
            g[v] += reaching[v];
            reaching[v] = factor(a[v]) * g[v];
            h[v] = vec{};
        }
        store_channels<WHOLE>(row(call.dx, b, t, 0) + first, g, count);
        if (t > 0) load_channels<WHOLE>(h, row(call.y, b, t - 1, 0) + first, count);
        else if (call.start != nullptr) load_channels<WHOLE>(h, call.start + b * call.C + first, count);
        for (int v = 0; v < SCAN_VECTORS; ++v) h[v] *= reaching[v];
        store_channels<WHOLE>(row(call.dlog_decay, b, t, 0) + first, h, count);
    }
    if (call.dstart != nullptr) store_channels<WHOLE>(call.dstart + b * call.C + first, reaching, count);
}

// run(b, group, first channel, how many) for all rows and groups of channels.
template <class Call, class Run>
void over_channels(const Call& call, const Run& run) {
    const int64_t groups = round_up(call.C, SCAN_CHANNELS) / SCAN_CHANNELS;
    parallel_for(call.B * groups, call.threads, [&](int64_t task) {
        const FlushSubnormals flush;
        const int64_t group = task % groups, first = group * SCAN_CHANNELS;
        run(task / groups, group, first, smaller(SCAN_CHANNELS, call.C - first));
    });
}

inline bool scan_forward(const MaclaurinScan& call) {
    over_channels(call, [&](int64_t b, int64_t, int64_t first, int64_t count) {
        if (count == SCAN_CHANNELS) scan_forward_channels<true>(call, b, first, count);
        else scan_forward_channels<false>(call, b, first, count);
    });
    return true;
}

inline bool scan_backward(const MaclaurinScan& call) {
    over_channels(call, [&](int64_t b, int64_t, int64_t first, int64_t count) {
        if (count == SCAN_CHANNELS) scan_backward_channels<true>(call, b, first, count);
        else scan_backward_channels<false>(call, b, first, count);
    });
    return true;
}

}  // namespace maclaurin::MACLAURIN_VARIANT
