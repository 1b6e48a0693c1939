// Calls the kernels of first-order attention and of the short convolution with hostile shapes, like driver.cpp: every tensor
// is allocated to the byte, and outputs are compared with plain loops in double precision.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "../maclaurin.h"

namespace {

using Numbers = std::vector<float>;

Numbers random_numbers(int64_t count, float low, float high) {
    Numbers numbers(count);
    for (float& x : numbers) x = low + (high - low) * static_cast<float>(std::rand()) / RAND_MAX;
    return numbers;
}
Numbers unwritten(int64_t count) { return Numbers(count, NAN); }

bool finite(const Numbers& numbers) {
    for (const float x : numbers)
        if (!std::isfinite(x)) return false;
    return true;
}

MaclaurinTensor view(const Numbers& numbers, int64_t T, int64_t H, int64_t C) {
    return {const_cast<float*>(numbers.data()), T * H * C, H * C, C};
}

int failures = 0;

void check(bool good, const char* what, const char* isa, int threads, int number) {
    if (good) return;
    ++failures;
    std::printf("WRONG %s, case %d: %s, %d threads\n", what, number, isa, threads);
}

struct LinearCase {
    int64_t B, T, H, G, K, V, chunk;
    bool decay, per_channel, normalize, memory;
};

// The last query of the last head, token by token.
bool last_output_is_exact(const LinearCase& c, const Numbers& q, const Numbers& k, const Numbers& v, const Numbers& a,
                          const Numbers& y) {
    const int64_t b = c.B - 1, h = c.H - 1, g = c.G - 1, A = c.per_channel ? c.K : 1;
    std::vector<double> sum(c.V, 0), decay(c.K, 0);
    double total = 0;
    for (int64_t s = c.T - 1; s >= 0; --s) {
        double weight = 0;
        for (int64_t i = 0; i < c.K; ++i)
            weight += 0.5 * q[((b * c.T + c.T - 1) * c.H + h) * c.K + i] * k[((b * c.T + s) * c.G + g) * c.K + i] *
                      std::exp(decay[i]);
        for (int64_t i = 0; i < c.V; ++i) sum[i] += weight * v[((b * c.T + s) * c.G + g) * c.V + i];
        total += weight;
        for (int64_t i = 0; i < c.K && c.decay; ++i) decay[i] += a[((b * c.T + s) * c.G + g) * A + (c.per_channel ? i : 0)];
    }
    double error = 0, size = 1e-12;
    for (int64_t i = 0; i < c.V; ++i) {
        const double exact = c.normalize ? sum[i] / total : sum[i];
        error += std::pow(y[((b * c.T + c.T - 1) * c.H + h) * c.V + i] - exact, 2);
        size += exact * exact;
    }
    return std::sqrt(error / size) < 1e-4;
}

void run(const LinearCase& c, const char* isa, int threads, int number) {
    const int64_t A = c.per_channel ? c.K : 1, W = c.V + (c.normalize ? 1 : 0), tokens = c.B * c.T,
                  memory_size = c.B * c.G * c.K * W;
    const Numbers q = random_numbers(tokens * c.H * c.K, 0.1f, 1), k = random_numbers(tokens * c.G * c.K, 0.1f, 1);
    const Numbers v = random_numbers(tokens * c.G * c.V, -1, 1), dy = random_numbers(tokens * c.H * c.V, -1, 1);
    const Numbers a = random_numbers(tokens * c.G * A, -0.5f, 0), memory = random_numbers(memory_size, 0, 1);
    const Numbers y = unwritten(tokens * c.H * c.V), total = unwritten(tokens * c.H), dq = unwritten(q.size()),
                  dk = unwritten(k.size());
    const Numbers dv = unwritten(v.size()), da = unwritten(a.size());
    Numbers new_memory = unwritten(memory_size), dmemory = unwritten(memory_size);
    MaclaurinLinear call{};
    call.B = c.B, call.T = c.T, call.H = c.H, call.G = c.G, call.K = c.K, call.V = c.V, call.chunk = c.chunk;
    call.q = view(q, c.T, c.H, c.K), call.k = view(k, c.T, c.G, c.K), call.v = view(v, c.T, c.G, c.V);
    call.y = view(y, c.T, c.H, c.V), call.dy = view(dy, c.T, c.H, c.V), call.dq = view(dq, c.T, c.H, c.K);
    call.dk = view(dk, c.T, c.G, c.K), call.dv = view(dv, c.T, c.G, c.V), call.total = view(total, c.T, c.H, 1);
    if (c.decay) call.log_decay = view(a, c.T, c.G, A), call.dlog_decay = view(da, c.T, c.G, A);
    if (c.memory) call.memory = memory.data(), call.dmemory = dmemory.data();
    call.new_memory = new_memory.data(), call.dnew_memory = memory.data();
    call.q_scale = 0.5f, call.k_scale = 1, call.per_channel = c.per_channel, call.normalize = c.normalize,
    call.threads = threads;
    const bool done = maclaurin_linear_forward(&call) == 0 && maclaurin_linear_backward(&call) == 0;
    check(done && finite(y) && finite(dq) && finite(dk) && finite(dv) && finite(new_memory), "linear", isa, threads, number);
    check((!c.decay || finite(da)) && (!c.memory || finite(dmemory)), "linear gradients", isa, threads, number);
    if (!c.memory) check(last_output_is_exact(c, q, k, v, a, y), "linear outputs", isa, threads, number);
}

struct ConvCase {
    int64_t B, T, C, width;
    bool bias, before, silu;
};

void run(const ConvCase& c, const char* isa, int threads, int number) {
    const Numbers x = random_numbers(c.B * c.T * c.C, -1, 1), dy = random_numbers(c.B * c.T * c.C, -1, 1);
    const Numbers weight = random_numbers(c.C * c.width, -1, 1), bias = random_numbers(c.C, -1, 1);
    const Numbers before = random_numbers(c.B * (c.width - 1) * c.C, -1, 1), y = unwritten(x.size()),
                  dx = unwritten(x.size());
    const Numbers dbefore = unwritten(before.size());
    Numbers dweight = unwritten(weight.size()), dbias = unwritten(c.C);
    MaclaurinConv call{};
    call.B = c.B, call.T = c.T, call.C = c.C, call.width = c.width, call.silu = c.silu, call.threads = threads;
    call.x = view(x, c.T, 1, c.C), call.y = view(y, c.T, 1, c.C), call.dy = view(dy, c.T, 1, c.C),
    call.dx = view(dx, c.T, 1, c.C);
    call.weight = weight.data(), call.dweight = dweight.data();
    if (c.bias) call.bias = bias.data(), call.dbias = dbias.data();
    const bool has_before = c.before && c.width > 1;
    if (has_before) call.before = view(before, c.width - 1, 1, c.C), call.dbefore = view(dbefore, c.width - 1, 1, c.C);
    const bool done = maclaurin_conv_forward(&call) == 0 && maclaurin_conv_backward(&call) == 0;
    check(done && finite(y) && finite(dx) && finite(dweight), "convolution", isa, threads, number);
    check((!c.bias || finite(dbias)) && (!has_before || finite(dbefore)), "convolution gradients", isa, threads, number);
}

}  // namespace

int main() {
    const LinearCase linear[] = {
        // B, T, H, G, K, V, chunk, decay, per_channel, normalize, memory
        {1, 1, 1, 1, 1, 1, 1, false, false, false, false},   {2, 37, 4, 2, 3, 5, 64, true, false, true, false},
        {1, 70, 3, 1, 17, 33, 7, true, true, false, true},   {2, 33, 2, 2, 16, 16, 64, true, true, true, false},
        {1, 130, 5, 5, 64, 80, 64, true, false, true, true}, {3, 65, 6, 2, 20, 1, 1, false, false, true, true},
        {1, 16, 1, 1, 9, 31, 64, true, true, true, false},
    };
    const ConvCase conv[] = {
        // B, T, C, width, bias, before, silu
        {1, 1, 1, 1, false, false, false},   {2, 70, 20, 4, true, true, true},   {1, 2, 130, 5, true, false, true},
        {3, 64, 128, 2, false, true, false}, {1, 200, 300, 3, true, true, true},
    };
    for (const char* isa : {"avx512", "avx2", "portable"}) {
        if (maclaurin_choose_isa(isa) != 0) continue;
        for (const int threads : {1, 2, 3, 8}) {
            int number = 0;
            for (const LinearCase& c : linear) run(c, isa, threads, number++);
            for (const ConvCase& c : conv) run(c, isa, threads, number++);
        }
        std::printf("%s: done\n", isa);
    }
    return failures != 0;
}
