// A decoding step: the new token goes to its slot, and the step becomes a call of attention over the slots in use.
#pragma once
#include <cstring>

#include "maclaurin.h"

namespace maclaurin {

inline const float* of_head(const MaclaurinTensor& token, int64_t b, int64_t g) {
    return token.data + b * token.batch + g * token.head;
}

// NaN is no positive decay: it goes through, as in every other form.
inline bool grows(const MaclaurinStep& step) {
    for (int64_t b = 0; b < step.B && step.log_decays != nullptr; ++b)
        for (int64_t g = 0; g < step.G; ++g)
            if (*of_head(step.log_decay, b, g) > 0) return true;
    return false;
}

inline void put_token(const MaclaurinStep& step) {
    for (int64_t b = 0; b < step.B; ++b)
        for (int64_t g = 0; g < step.G; ++g) {
            const int64_t slot = (b * step.G + g) * step.slots + step.S - 1;
            std::memcpy(step.keys + slot * step.K, of_head(step.k, b, g), step.K * sizeof(float));
            std::memcpy(step.values + slot * step.V, of_head(step.v, b, g), step.V * sizeof(float));
            if (step.log_decays != nullptr) step.log_decays[slot] = *of_head(step.log_decay, b, g);
        }
}

inline MaclaurinAttention as_attention(const MaclaurinStep& step) {
    const auto slots_of = [&](float* data, int64_t channels) -> MaclaurinTensor {
        return {data, step.G * step.slots * channels, channels, step.slots * channels};
    };
    MaclaurinAttention call{};
    call.B = step.B, call.T = 1, call.S = step.S, call.H = step.H, call.G = step.G, call.K = step.K, call.V = step.V;
    call.q = step.q;
    call.k = slots_of(step.keys, step.K);
    call.v = slots_of(step.values, step.V);
    call.log_decay = slots_of(step.log_decays, 1);
    call.y = {step.y, step.H * step.V, step.H * step.V, step.V};
    call.memory = step.memory;
    call.new_memory = step.new_memory;
    call.chunk = 1;
    call.folded = step.new_memory != nullptr ? step.S : 0;
    call.scale = step.scale;
    call.normalize = step.normalize;
    call.threads = step.threads;
    return call;
}

}  // namespace maclaurin
