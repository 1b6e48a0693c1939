// A decoding step: the new token goes to its slot, and the step becomes a call of attention over the slots in use.
#pragma once
#include <cstring>

#include "maclaurin.h"

namespace maclaurin {

inline const float* of_head(const float* token, const int64_t* strides, int64_t b, int64_t g) {
    return token + b * strides[0] + g * strides[1];
}

// NaN is no positive decay: it goes through, as in every other form.
inline bool grows(const MaclaurinBuffer& buffer, const MaclaurinToken& token) {
    for (int64_t b = 0; b < buffer.B && buffer.log_decays != nullptr; ++b)
        for (int64_t g = 0; g < buffer.G; ++g)
            if (*of_head(token.log_decay, buffer.log_decay_strides, b, g) > 0) return true;
    return false;
}

inline void put_token(const MaclaurinBuffer& buffer, const MaclaurinToken& token) {
    for (int64_t b = 0; b < buffer.B; ++b)
        for (int64_t g = 0; g < buffer.G; ++g) {
            const int64_t slot = (b * buffer.G + g) * buffer.slots + token.S - 1;
            std::memcpy(buffer.keys + slot * buffer.K, of_head(token.k, buffer.k_strides, b, g), buffer.K * sizeof(float));
            std::memcpy(buffer.values + slot * buffer.V, of_head(token.v, buffer.v_strides, b, g), buffer.V * sizeof(float));
            if (buffer.log_decays != nullptr)
                buffer.log_decays[slot] = *of_head(token.log_decay, buffer.log_decay_strides, b, g);
        }
}

inline bool has_state(const MaclaurinAttention& call) { return call.state != nullptr || call.halves != nullptr; }

inline MaclaurinAttention as_attention(const MaclaurinBuffer& buffer, const MaclaurinToken& token) {
    const auto slots_of = [&](float* data, int64_t channels) -> MaclaurinTensor {
        return {data, buffer.G * buffer.slots * channels, channels, buffer.slots * channels};
    };
    MaclaurinAttention call{};
    call.B = buffer.B, call.T = 1, call.S = token.S, call.H = buffer.H, call.G = buffer.G, call.K = buffer.K, call.V = buffer.V;
    call.q = {const_cast<float*>(token.q), buffer.q_strides[0], 0, buffer.q_strides[1]};
    call.k = slots_of(buffer.keys, buffer.K);
    call.v = slots_of(buffer.values, buffer.V);
    call.log_decay = slots_of(buffer.log_decays, 1);
    call.y = {token.y, buffer.H * buffer.V, buffer.H * buffer.V, buffer.V};
    call.state = buffer.state;
    call.new_state = token.new_state;
    call.halves = buffer.halves;
    call.new_halves = token.new_halves;
    call.chunk = 1;
    call.state_head = buffer.K * (buffer.K + 1) / 2 * (buffer.V + (buffer.normalize ? 1 : 0));
    call.folded = token.new_state != nullptr || token.new_halves != nullptr ? token.S : 0;
    call.scale = buffer.scale;
    call.normalize = buffer.normalize;
    call.threads = static_cast<int32_t>(token.threads);
    return call;
}

}  // namespace maclaurin
