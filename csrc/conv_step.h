// A decoding step of the short convolution: one more token of every sequence, whose last inputs move on where they are.
#pragma once
#include "conv.h"

namespace maclaurin::MACLAURIN_VARIANT {

struct ConvStepBuffers {
    float *weight, *bias;  // [tap][channels], [channels]
    int64_t channels;

    ConvStepBuffers(Arena& arena, const MaclaurinConvStep& call) : channels(round_up(call.C, LANES)) {
        weight = arena.take(call.width * channels);
        bias = arena.take(channels);
    }
};

inline void conv_step_row(const MaclaurinConvStep& call, const ConvStepBuffers& at, int64_t b) {
    const int64_t C = call.C, last = call.width - 1;
    const float* x = call.x + b * call.x_row;
    float *inputs = call.inputs + b * last * C, *y = call.y + b * C;
    over_vectors(0, C, [&](int64_t c, auto vector) {
        const vec token = vector.read(x + c);
        vec total = load(at.bias + c) + token * load(at.weight + last * at.channels + c);
        for (int64_t tap = 0; tap < last; ++tap) {
            float* place = inputs + tap * C + c;
            total += vector.read(place) * load(at.weight + tap * at.channels + c);
            vector.write(place, tap + 1 < last ? vector.read(place + C) : token);
        }
        vector.write(y + c, activate(total, call.silu));
    });
}

inline bool conv_step(const MaclaurinConvStep& call) {
    return with_buffers<ConvStepBuffers>(call, [&](const ConvStepBuffers& at) {
        transpose_rows(at.weight, at.channels, at.channels, call.weight, call.width, call.C, call.width, 1);
        fill(at.bias, at.channels, 0);
        for (int64_t c = 0; c < call.C && call.bias != nullptr; ++c) at.bias[c] = call.bias[c];
        parallel_for(call.B, call.threads, [&](int64_t b) {
            const FlushSubnormals flush;
            conv_step_row(call, at, b);
        });
    });
}

}  // namespace maclaurin::MACLAURIN_VARIANT
