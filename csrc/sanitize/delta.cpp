// Calls the kernels of the delta rule with hostile shapes, like first_order.cpp.
#include <cmath>
#include <cstdio>
#include <vector>

#include "hostile.h"

namespace {

struct DeltaCase {
    int64_t B, T, H, G, K, V, chunk;
    int order;
    bool decay, per_channel, state;
};

std::vector<double> features(const float* x, int64_t K, int order, double scale) {
    std::vector<double> found;
    for (int64_t p = 0; p < K; ++p) {
        if (order == 1) found.push_back(scale * x[p]);
        for (int64_t r = p; r < K && order == 2; ++r) found.push_back(scale * scale * x[p] * x[r] * (p == r ? 1 : std::sqrt(2.0)));
    }
    return found;
}

// The last head's state, token by token; the output of the last token.
bool last_output_is_exact(const DeltaCase& c, const Numbers& q, const Numbers& k, const Numbers& v, const Numbers& beta,
                          const Numbers& a, const Numbers& start, const Numbers& y) {
    const int64_t b = c.B - 1, g = c.G - 1, F = c.order == 1 ? c.K : c.K * (c.K + 1) / 2, A = c.per_channel ? c.K : 1;
    std::vector<double> state(F * c.V, 0);
    for (int64_t i = 0; i < F * c.V && c.state; ++i) state[i] = start[(b * c.G + g) * F * c.V + i];
    for (int64_t t = 0; t < c.T; ++t) {
        const int64_t token = (b * c.T + t) * c.G + g;
        const std::vector<double> key = features(&k[token * c.K], c.K, c.order, 1);
        for (int64_t f = 0; f < F && c.decay; ++f)
            for (int64_t w = 0; w < c.V; ++w) state[f * c.V + w] *= std::exp(a[token * A + (c.per_channel ? f : 0)]);
        for (int64_t w = 0; w < c.V; ++w) {
            double held = 0;
            for (int64_t f = 0; f < F; ++f) held += key[f] * state[f * c.V + w];
            for (int64_t f = 0; f < F; ++f) state[f * c.V + w] += key[f] * beta[token] * (v[token * c.V + w] - held);
        }
    }
    const int64_t last = ((b + 1) * c.T * c.H - 1);
    const std::vector<double> query = features(&q[last * c.K], c.K, c.order, 0.5);
    double error = 0, size = 1e-12;
    for (int64_t w = 0; w < c.V; ++w) {
        double exact = 0;
        for (int64_t f = 0; f < F; ++f) exact += query[f] * state[f * c.V + w];
        error += std::pow(y[last * c.V + w] - exact, 2);
        size += exact * exact;
    }
    return std::sqrt(error / size) < 1e-4;
}

void run(const DeltaCase& c, const char* isa, int threads, int number) {
    const int64_t A = c.per_channel ? c.K : 1, F = c.order == 1 ? c.K : c.K * (c.K + 1) / 2, tokens = c.B * c.T,
                  state_size = c.B * c.G * F * c.V;
    const float longest = 1 / std::sqrt(static_cast<float>(c.K));  // keys of at most unit length
    const Numbers q = random_numbers(tokens * c.H * c.K, 0.1f, 1), k = random_numbers(tokens * c.G * c.K, -longest, longest);
    const Numbers v = random_numbers(tokens * c.G * c.V, -1, 1), dy = random_numbers(tokens * c.H * c.V, -1, 1);
    const Numbers beta = random_numbers(tokens * c.G, 0, 2), a = random_numbers(tokens * c.G * A, -0.5f, 0);
    const Numbers state = random_numbers(state_size, 0, 1);
    const Numbers y = unwritten(tokens * c.H * c.V), error = unwritten(v.size()), dq = unwritten(q.size()),
                  dk = unwritten(k.size()), dv = unwritten(v.size()), dbeta = unwritten(beta.size()), da = unwritten(a.size());
    Numbers new_state = unwritten(state_size), dstate = unwritten(state_size);
    MaclaurinDelta call{};
    call.B = c.B, call.T = c.T, call.H = c.H, call.G = c.G, call.K = c.K, call.V = c.V, call.chunk = c.chunk;
    call.q = view(q, c.T, c.H, c.K), call.k = view(k, c.T, c.G, c.K), call.v = view(v, c.T, c.G, c.V);
    call.beta = view(beta, c.T, c.G, 1), call.y = view(y, c.T, c.H, c.V), call.error = view(error, c.T, c.G, c.V);
    call.dy = view(dy, c.T, c.H, c.V), call.dq = view(dq, c.T, c.H, c.K), call.dk = view(dk, c.T, c.G, c.K);
    call.dv = view(dv, c.T, c.G, c.V), call.dbeta = view(dbeta, c.T, c.G, 1);
    if (c.decay) call.log_decay = view(a, c.T, c.G, A), call.dlog_decay = view(da, c.T, c.G, A);
    if (c.state) call.state = state.data(), call.dstate = dstate.data();
    call.new_state = new_state.data(), call.dnew_state = state.data();
    call.scale = 0.5f, call.order = c.order, call.per_channel = c.per_channel, call.threads = threads;
    const bool done = maclaurin_delta_forward(&call) == 0 && maclaurin_delta_backward(&call) == 0;
    check(done && finite(y) && finite(error) && finite(new_state), "delta", isa, threads, number);
    check(finite(dq) && finite(dk) && finite(dv) && finite(dbeta) && (!c.decay || finite(da)) && (!c.state || finite(dstate)),
          "delta gradients", isa, threads, number);
    check(last_output_is_exact(c, q, k, v, beta, a, state, y), "delta outputs", isa, threads, number);
}

}  // namespace

int main() {
    const DeltaCase cases[] = {
        // B, T, H, G, K, V, chunk, order, decay, per_channel, state
        {1, 1, 1, 1, 1, 1, 1, 1, false, false, false},   {2, 37, 4, 2, 3, 5, 64, 1, true, false, false},
        {1, 70, 3, 1, 17, 33, 7, 1, true, true, true},   {2, 33, 2, 2, 16, 16, 64, 1, true, true, false},
        {1, 130, 5, 5, 64, 80, 64, 1, true, false, true}, {3, 1, 6, 2, 20, 1, 1, 1, true, true, true},
        {2, 37, 4, 2, 3, 5, 64, 2, true, false, false},  {1, 65, 2, 1, 17, 19, 64, 2, false, false, true},
        {2, 1, 4, 2, 9, 7, 64, 2, true, false, true},    {1, 9, 1, 1, 5, 1, 4, 2, true, false, true},
    };
    return over_isas(cases, [](const DeltaCase& c, const char* isa, int threads, int number) { run(c, isa, threads, number); });
}
