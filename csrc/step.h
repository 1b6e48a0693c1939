// A decoding step: the new token goes to its slot, and the step becomes a call of attention over the slots in use.
#pragma once
#include <cstring>

#include "maclaurin.h"

namespace maclaurin {

inline const float* of_head(const float* token, const int64_t* strides, int64_t b, int64_t g) {
    return token + b * strides[0] + g * strides[1];
}

// NaN is no positive decay: it goes through, as in every other form.
inline bool grows(const MaclaurinRoom& room, const MaclaurinToken& token) {
    for (int64_t b = 0; b < room.B && room.log_decays != nullptr; ++b)
        for (int64_t g = 0; g < room.G; ++g)
            if (*of_head(token.log_decay, room.log_decay_strides, b, g) > 0) return true;
    return false;
}

inline void put_token(const MaclaurinRoom& room, const MaclaurinToken& token) {
    for (int64_t b = 0; b < room.B; ++b)
        for (int64_t g = 0; g < room.G; ++g) {
            const int64_t slot = (b * room.G + g) * room.slots + token.S - 1;
            std::memcpy(room.keys + slot * room.K, of_head(token.k, room.k_strides, b, g), room.K * sizeof(float));
            std::memcpy(room.values + slot * room.V, of_head(token.v, room.v_strides, b, g), room.V * sizeof(float));
            if (room.log_decays != nullptr)
                room.log_decays[slot] = *of_head(token.log_decay, room.log_decay_strides, b, g);
        }
}

inline MaclaurinAttention as_attention(const MaclaurinRoom& room, const MaclaurinToken& token) {
    const auto slots_of = [&](float* data, int64_t channels) -> MaclaurinTensor {
        return {data, room.G * room.slots * channels, channels, room.slots * channels};
    };
    MaclaurinAttention call{};
    call.B = room.B, call.T = 1, call.S = token.S, call.H = room.H, call.G = room.G, call.K = room.K, call.V = room.V;
    call.q = {const_cast<float*>(token.q), room.q_strides[0], 0, room.q_strides[1]};
    call.k = slots_of(room.keys, room.K);
    call.v = slots_of(room.values, room.V);
    call.log_decay = slots_of(room.log_decays, 1);
    call.y = {token.y, room.H * room.V, room.H * room.V, room.V};
    call.memory = room.memory;
    call.new_memory = token.new_memory;
    call.chunk = 1;
    call.folded = token.new_memory != nullptr ? token.S : 0;
    call.scale = room.scale;
    call.normalize = room.normalize;
    call.threads = static_cast<int32_t>(token.threads);
    return call;
}

}  // namespace maclaurin
