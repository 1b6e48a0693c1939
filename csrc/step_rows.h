// A decoding step of rows of different lengths: each is a step of its own, over its own tokens and its own state, so that
// what a row gets does not depend on those beside it.
#pragma once
#include "kernels.h"
#include "step.h"

namespace maclaurin {

inline MaclaurinBuffer buffer_of_row(const MaclaurinRows& rows, const MaclaurinRow& row) {
    MaclaurinBuffer buffer{};
    buffer.B = 1, buffer.H = rows.H, buffer.G = rows.G, buffer.K = rows.K, buffer.V = rows.V, buffer.slots = row.slots;
    std::memcpy(buffer.q_strides, rows.q_strides, sizeof rows.q_strides);
    std::memcpy(buffer.k_strides, rows.k_strides, sizeof rows.k_strides);
    std::memcpy(buffer.v_strides, rows.v_strides, sizeof rows.v_strides);
    std::memcpy(buffer.log_decay_strides, rows.log_decay_strides, sizeof rows.log_decay_strides);
    buffer.keys = row.keys, buffer.values = row.values, buffer.log_decays = row.log_decays;
    buffer.state = row.state, buffer.halves = row.halves;
    buffer.scale = rows.scale;
    buffer.normalize = rows.normalize;
    return buffer;
}

inline MaclaurinToken token_of_row(const MaclaurinRows& rows, MaclaurinRow& row, int64_t b) {
    MaclaurinToken token{};
    token.S = row.S + 1;
    token.q = rows.q + b * rows.q_strides[0];
    token.k = rows.k + b * rows.k_strides[0];
    token.v = rows.v + b * rows.v_strides[0];
    token.log_decay = row.log_decays == nullptr ? nullptr : rows.log_decay + b * rows.log_decay_strides[0];
    token.y = rows.y + b * rows.H * rows.V;
    if (token.S >= row.limit) token.new_state = row.state, token.new_halves = row.halves;
    token.threads = 1;
    return token;
}

// The last `count` tokens go to the first slots.
inline void to_front(const MaclaurinRows& rows, MaclaurinRow& row, int64_t count) {
    const auto move = [&](float* data, int64_t channels) {
        for (int64_t g = 0; g < rows.G && data != nullptr; ++g) {
            float* head = data + g * row.slots * channels;
            std::memmove(head, head + (row.S - count) * channels, count * channels * sizeof(float));
        }
    };
    move(row.keys, rows.K), move(row.values, rows.V), move(row.log_decays, 1);
    row.S = count;
}

inline bool step_of_row(const Kernels& kernels, const MaclaurinRows& rows, int64_t b) {
    MaclaurinRow& row = rows.rows[b];
    const MaclaurinBuffer buffer = buffer_of_row(rows, row);
    const MaclaurinToken token = token_of_row(rows, row, b);
    put_token(buffer, token);
    MaclaurinAttention call = as_attention(buffer, token);
    call.exponential = rows.exponential;
    call.constant = rows.constant;
    call.order_weights = rows.order_weights;
    row.S = call.folded ? 0 : token.S;
    if (!rows.exponential) return has_state(call) ? kernels.chunked_forward(call) : kernels.quadratic_forward(call);
    const int64_t unseen = row.limit > 0 && token.S > row.limit ? token.S - row.limit : 0;
    call.S -= unseen;
    call.k.data += unseen * call.k.time;
    call.v.data += unseen * call.v.time;
    if (call.log_decay.data != nullptr) call.log_decay.data += unseen;
    const bool done = kernels.quadratic_forward(call);
    if (row.limit > 0 && row.S == row.slots) to_front(rows, row, row.limit - 1);
    return done;
}

inline bool any_grows(const MaclaurinRows& rows) {
    for (int64_t b = 0; b < rows.B && rows.log_decay != nullptr; ++b)
        for (int64_t g = 0; g < rows.G; ++g)
            if (*of_head(rows.log_decay, rows.log_decay_strides, b, g) > 0) return true;
    return false;
}

inline bool step_rows(const Kernels& kernels, const MaclaurinRows& rows) {
    bool failed = false;
    parallel_for(rows.B, rows.threads, [&](int64_t b) {
        if (!step_of_row(kernels, rows, b)) __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
    });
    return !failed;
}

}  // namespace maclaurin
