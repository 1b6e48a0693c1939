// The C interface: raw pointers, sizes and strides. maclaurin/ops/native mirrors these structs with ctypes.
//
// B batch, T queries, S keys (the queries are the last T of them), H query heads, G key-value heads, R = H/G,
// K key channels, V value channels, F = K(K+1)/2 monomials, W = V or V+1 columns of a state
#pragma once
#include <cstdint>

#define MACLAURIN_EXPORT extern "C" __attribute__((visibility("default")))

extern "C" {

// (batch, time, heads, channels) in float32. Strides count numbers, channels are next to each other. data == null: absent.
struct MaclaurinTensor {
    float* data;
    int64_t batch, time, head;
};

// Which keys a query of the chunked form meets. Over whole sequences that is ALL, without decays, T = S, and nothing carried
// in or out. With decays it takes two calls with the same y and total: one over the reversed sequence, BACK, and then one
// that adds to its sums and divides them, FORTH.
enum MaclaurinWay : int32_t {
    MACLAURIN_CAUSAL = 0,  // its own and the earlier ones
    MACLAURIN_BACK = 1,    // the earlier ones; y and total are the sums, not divided
    MACLAURIN_FORTH = 2,   // its own and the earlier ones; y and total have the sums over others when it starts
    MACLAURIN_ALL = 3,     // every one, through one state
};

// One call of attention with squared or exponential scores. A forward call leaves the gradients absent.
struct MaclaurinAttention {
    int64_t B, T, S, H, G, K, V;
    MaclaurinTensor q, k, v, log_decay;
    MaclaurinTensor y;
    // (B,T,H): the divisor of every row, with a minus sign where the state stayed below its rounding error and was not
    // used; the logarithm of the sum of weights if exponential. May be absent where T = 1 and scores are squared.
    MaclaurinTensor total;
    MaclaurinTensor dy, dq, dk, dv, dlog_decay;
    // Chunked only: the state before the first key and the one after `folded` keys, (B,G,F,W), absent or present.
    const float *state, *dnew_state;
    float *new_state, *dstate;
    // Instead of state and new_state, as halves.h has them, where T = 1 and none or all of the keys are folded.
    uint16_t *halves, *new_halves;
    int32_t* nan;  // becomes 1 if a forward writes a NaN into y; absent where nobody asks, and where T = 1
    // (H,3), where T = 1 and `constant`: factors of the orders 0, 1 and 2. Absent for ones. Weights may then be negative.
    const float* order_weights;
    int64_t chunk, folded;
    int64_t state_head;  // from head to head of `state`, at least F·W; all other states are dense
    int64_t constant;    // 1: the square of the first channel counts twice, (q·k)² + (q₀k₀)²; squared scores only
    float scale;
    int32_t exponential;  // scores exp(q·k) instead of (q·k)²
    int32_t normalize;    // divide by the sum of the weights; always so if exponential
    int32_t threads;
    MaclaurinWay way;
};

// Where decoding with squared scores keeps tokens, for rows without padding: a head's side by side, with slots for those to
// come. A call of `maclaurin_step` puts a token into the next slot; then its query reads all of them, and the state.
struct MaclaurinBuffer {
    int64_t B, H, G, K, V;
    int64_t slots;
    int64_t q_strides[2], k_strides[2], v_strides[2], log_decay_strides[2];  // of a new token: from row to row, head to head
    float *keys, *values, *log_decays;  // dense (B,G,slots,K), (B,G,slots,V), and (B,G,slots) or absent
    const float* state;                // dense (B,G,F,W), or absent
    uint16_t* halves;                  // instead of it, as halves.h has it
    float scale;
    int32_t normalize;
};

struct MaclaurinToken {
    int64_t S;  // tokens in the buffer, this one too
    const float *q, *k, *v, *log_decay;
    float* y;           // dense (B,1,H,V)
    float* new_state;  // if present, the state after all S keys
    uint16_t* new_halves;  // instead of it
    int64_t threads;
};

// A sequence among others of different lengths: its tokens, and the state that they are folded into.
struct MaclaurinRow {
    float *keys, *values, *log_decays;  // dense (G,slots,K), (G,slots,V), and (G,slots) or absent
    float* state;                      // dense (G,F,W), or absent
    uint16_t* halves;                  // instead of it
    int64_t slots;
    int64_t S;      // tokens in the slots; a call counts the new one
    int64_t limit;  // squared scores: so many are folded into the state; exponential: so many a query sees, 0 for all
};

// One decoding step of such rows, in place. Each needs a free slot for its new token, which is (B,1,heads,channels).
struct MaclaurinRows {
    int64_t B, H, G, K, V;
    int64_t q_strides[2], k_strides[2], v_strides[2], log_decay_strides[2];  // from row to row, head to head
    const float *q, *k, *v, *log_decay;
    float* y;  // dense (B,1,H,V)
    MaclaurinRow* rows;
    const float* order_weights;  // as in MaclaurinAttention
    float scale;
    int32_t exponential, normalize, constant, threads;
};

// One call of first-order attention. Decays are absent, one per head (B,T,G), or one per channel (B,T,G,K).
struct MaclaurinLinear {
    int64_t B, T, H, G, K, V;
    MaclaurinTensor q, k, v, log_decay;
    MaclaurinTensor y;
    MaclaurinTensor total;  // (B,T,H): the divisor of every row
    MaclaurinTensor dy, dq, dk, dv, dlog_decay;
    MaclaurinTensor dtotal;           // (B,T,H), where centred: a backward writes and reads it
    const float *state, *dnew_state;  // (B,G,K,W), absent or present
    float *new_state, *dstate;
    int32_t* nan;            // becomes 1 if a forward writes a NaN into y; absent where nobody asks
    int64_t chunk;           // tokens at a time, at most; kernels take fewer
    int64_t state_head;      // from head to head of `state`, at least K·W; all other states are dense
    float q_scale, k_scale;  // the state holds scaled keys
    int32_t per_channel;
    int32_t normalize;  // divide by the sum of the weights
    int32_t centred;    // instead, subtract their mean, add 1 and divide by the tokens so far; normalize is 1, the state absent
    int32_t threads;
};

// One call of the delta rule over features of order 1 or 2. Decays as in first-order attention, per channel for order 1 only.
struct MaclaurinDelta {
    int64_t B, T, H, G, K, V;
    MaclaurinTensor q, k, v, beta, log_decay;
    MaclaurinTensor y;
    MaclaurinTensor error;  // (B,T,G,V): a value less what the state held for its key; a backward reads it
    MaclaurinTensor dy, dq, dk, dv, dbeta, dlog_decay;
    const float *state, *dnew_state;  // dense (B,G,K or F,V), absent or present
    float *new_state, *dstate;
    int32_t* nan;   // becomes 1 if a forward writes a NaN into y; absent where nobody asks, and where T = 1
    int64_t chunk;  // tokens at a time, at most; kernels take fewer
    float scale;    // of q
    int32_t order, per_channel, threads;
};

// One call of the causal short convolution over C channels. Tensors are (B,T,C): one head of C channels.
struct MaclaurinConv {
    int64_t B, T, C, width;
    MaclaurinTensor x, before;  // before: the width-1 inputs before x; absent for zeros
    MaclaurinTensor y;
    MaclaurinTensor dy, dx, dbefore;
    const float *weight, *bias;  // dense (C,width) and (C); no bias: null
    float *dweight, *dbias;
    int32_t silu;  // y·sigmoid(y) instead of y
    int32_t threads;
};

// One call of the elementwise recurrence over C channels. Tensors are (B,T,C), the state before the first token (B,C) dense.
struct MaclaurinScan {
    int64_t B, T, C;
    MaclaurinTensor x, log_decay;
    MaclaurinTensor y;  // the state after every token
    MaclaurinTensor dy, dx, dlog_decay;
    const float* start;  // absent for zeros
    float* dstart;
    int32_t threads;
};

// One call of the gated recurrence over C channels. Tensors are (B,T,C); gates (B,T,3C) are those to forget, to let in and to put out.
struct MaclaurinGated {
    int64_t B, T, C;
    MaclaurinTensor u, gates, g;
    MaclaurinTensor y, h;  // h: the state after every token, which a backward reads
    MaclaurinTensor dy, du, dgates, dg;
    const float* start;  // dense (B,C), absent for zeros
    float* dstart;       // dense (B,C): comes with the gradient of the last state and leaves with that of the first
    int32_t threads;
};

// One call of the selective scan over C channels with N numbers each: x, dt, y (B,T,C), b and c (B,T,N), rate dense (C,N).
struct MaclaurinSelective {
    int64_t B, T, C, N;
    MaclaurinTensor x, dt, b, c;
    MaclaurinTensor y;
    MaclaurinTensor dy, dx, ddt;
    MaclaurinTensor db, dc;  // (B,T,groups,N): a part for every 64 channels
    const float* rate;
    float* drate;                      // dense (B,C,N): a part for every row of the batch
    const float *start, *dnew_state;  // dense (B,C,N), absent or present
    float *new_state, *dstart;
    int32_t threads;
};

// One call of L piecewise linear functions of the same number, for `count` numbers.
struct MaclaurinPiecewise {
    int64_t count, knots, L;  // knots: a multiple of 16
    const float *u, *knot;    // (count) and (knots), sorted
    const float* table;       // (knots + 1, 2L): slopes and intercepts, by how many knots lie below
    float* y;                 // (count, L)
    const float* dy;
    float *du, *dtable;  // dtable: (parts, knots + 1, 2L)
    int64_t parts;
    int32_t relu;  // y where it is positive, else 0
    int32_t threads;
};

// One call that turns P pairs of 2P channels by their angles: x, y (B,T,H,2P), cos, sin (B,T,H,P).
struct MaclaurinTurn {
    int64_t B, T, H, P;
    MaclaurinTensor x, cos, sin, y;
    int32_t interleaved;  // pairs of channels 2p and 2p + 1 instead of p and p + P
    int32_t back;         // by the opposite angles
    int32_t threads;
};

// One call of a causal filter of W taps over V channels of each head, made from the mean of the I inputs so far by way of C
// hidden numbers. first (H,I,C), first_bias (H,C), second (H,C,W·V), second_bias (H,W·V), all dense; tap W-1 is the token.
struct MaclaurinMeanFilter {
    int64_t B, T, H, I, C, V, W;
    MaclaurinTensor x, v, y;
    MaclaurinTensor dy, dx, dv;
    const float *first, *first_bias, *second, *second_bias;
    float* sum;         // dense (B,H,I): of all inputs
    const float* dsum;  // absent for zeros
    float *dfirst, *dfirst_bias, *dsecond, *dsecond_bias;  // (B, as the weights)
    int32_t threads;
};

// One more token of B sequences through a causal convolution: x (B,C) in rows that are x_row apart, y (B,C); inputs
// (B,width-1,C), those before it, move on where they are. weight (C,width), bias (C) or null.
struct MaclaurinConvStep {
    int64_t B, C, width, x_row;
    const float *x, *weight, *bias;
    float *inputs, *y;
    int32_t silu;
    int32_t threads;
};

// What stands between the mixers of two layers, for B tokens, all tensors dense: y = x + added; n = y / rms(y) · norm;
// y += down (silu(gate n) ⊙ up n); normed = y / rms(y) · next_norm. Multiples of 16 channels.
struct MaclaurinMlp {
    int64_t B, D, E;
    const float *x, *added;                // (B,D)
    const float *norm, *gate, *up, *down;  // (D), (E,D), (E,D), (D,E)
    const float* next_norm;                // (D)
    float *y, *normed;                     // (B,D)
    float epsilon, next_epsilon;
    int32_t threads;
};
}

// All return 0, or 1 where memory ran out.
MACLAURIN_EXPORT int32_t maclaurin_quadratic_forward(const MaclaurinAttention* call);
MACLAURIN_EXPORT int32_t maclaurin_quadratic_backward(const MaclaurinAttention* call);
MACLAURIN_EXPORT int32_t maclaurin_chunked_forward(const MaclaurinAttention* call);
MACLAURIN_EXPORT int32_t maclaurin_chunked_backward(const MaclaurinAttention* call);
// 2 where a decay is positive: then nothing was done.
MACLAURIN_EXPORT int32_t maclaurin_step(const MaclaurinBuffer* buffer, const MaclaurinToken* token);
MACLAURIN_EXPORT int32_t maclaurin_step_rows(const MaclaurinRows* rows);
MACLAURIN_EXPORT int32_t maclaurin_linear_forward(const MaclaurinLinear* call);
MACLAURIN_EXPORT int32_t maclaurin_linear_backward(const MaclaurinLinear* call);
MACLAURIN_EXPORT int32_t maclaurin_delta_forward(const MaclaurinDelta* call);
MACLAURIN_EXPORT int32_t maclaurin_delta_backward(const MaclaurinDelta* call);
MACLAURIN_EXPORT int32_t maclaurin_conv_forward(const MaclaurinConv* call);
MACLAURIN_EXPORT int32_t maclaurin_conv_backward(const MaclaurinConv* call);
MACLAURIN_EXPORT int32_t maclaurin_scan_forward(const MaclaurinScan* call);
MACLAURIN_EXPORT int32_t maclaurin_scan_backward(const MaclaurinScan* call);
MACLAURIN_EXPORT int32_t maclaurin_gated_forward(const MaclaurinGated* call);
MACLAURIN_EXPORT int32_t maclaurin_gated_backward(const MaclaurinGated* call);
MACLAURIN_EXPORT int32_t maclaurin_selective_forward(const MaclaurinSelective* call);
MACLAURIN_EXPORT int32_t maclaurin_selective_backward(const MaclaurinSelective* call);
MACLAURIN_EXPORT int32_t maclaurin_piecewise_forward(const MaclaurinPiecewise* call);
MACLAURIN_EXPORT int32_t maclaurin_piecewise_backward(const MaclaurinPiecewise* call);
MACLAURIN_EXPORT int32_t maclaurin_turn_forward(const MaclaurinTurn* call);
MACLAURIN_EXPORT int32_t maclaurin_mean_filter_forward(const MaclaurinMeanFilter* call);
MACLAURIN_EXPORT int32_t maclaurin_mean_filter_backward(const MaclaurinMeanFilter* call);
MACLAURIN_EXPORT int32_t maclaurin_conv_step(const MaclaurinConvStep* call);
MACLAURIN_EXPORT int32_t maclaurin_mlp_forward(const MaclaurinMlp* call);

// 1 where one of the numbers is NaN.
MACLAURIN_EXPORT int32_t maclaurin_any_nan(const float* numbers, int64_t count);

// For memory that nobody has touched yet.
MACLAURIN_EXPORT void maclaurin_prefer_large_pages(void* data, int64_t bytes);

// The sizes of the structs of calls, as one number: a caller with other ones was made for another build.
MACLAURIN_EXPORT int64_t maclaurin_layout();

// The function GOMP_parallel of an OpenMP that is already loaded: kernels then share its threads. Null for their own ones.
MACLAURIN_EXPORT void maclaurin_use_openmp(void* parallel);

// The instruction set in use, "avx512", "avx2" or "portable". `choose` returns 1 if this machine or build has no such one.
MACLAURIN_EXPORT const char* maclaurin_isa();
MACLAURIN_EXPORT int32_t maclaurin_choose_isa(const char* name);
