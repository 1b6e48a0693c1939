// Calls the kernels of first-order attention, of the short convolution and of the scans with hostile shapes, like driver.cpp:
// every tensor is allocated to the byte, and outputs are compared with plain loops in double precision.
#include <cmath>
#include <cstdio>
#include <vector>

#include "hostile.h"

namespace {

struct LinearCase {
    int64_t B, T, H, G, K, V, chunk;
    bool decay, per_channel, normalize, state, centred = false;
};

// The last query of the last head, token by token.
bool last_output_is_exact(const LinearCase& c, const Numbers& q, const Numbers& k, const Numbers& v, const Numbers& a,
                          const Numbers& y) {
    const int64_t b = c.B - 1, h = c.H - 1, g = c.G - 1, A = c.per_channel ? c.K : 1;
    std::vector<double> sum(c.V, 0), values(c.V, 0), decay(c.K, 0);
    double total = 0;
    for (int64_t s = c.T - 1; s >= 0; --s) {
        double weight = 0;
        for (int64_t i = 0; i < c.K; ++i)
            weight += 0.5 * q[((b * c.T + c.T - 1) * c.H + h) * c.K + i] * k[((b * c.T + s) * c.G + g) * c.K + i] *
                      std::exp(decay[i]);
        for (int64_t i = 0; i < c.V; ++i) {
            sum[i] += weight * v[((b * c.T + s) * c.G + g) * c.V + i];
            values[i] += v[((b * c.T + s) * c.G + g) * c.V + i];
        }
        total += weight;
        for (int64_t i = 0; i < c.K && c.decay; ++i) decay[i] += a[((b * c.T + s) * c.G + g) * A + (c.per_channel ? i : 0)];
    }
    double error = 0, size = 1e-12;
    for (int64_t i = 0; i < c.V; ++i) {
        double exact = c.normalize ? sum[i] / total : sum[i];
        if (c.centred) exact = (sum[i] + (1 - total / c.T) * values[i]) / c.T;
        error += std::pow(y[((b * c.T + c.T - 1) * c.H + h) * c.V + i] - exact, 2);
        size += exact * exact;
    }
    return std::sqrt(error / size) < 1e-4;
}

void run(const LinearCase& c, const char* isa, int threads, int number) {
    const int64_t A = c.per_channel ? c.K : 1, W = c.V + (c.normalize ? 1 : 0), tokens = c.B * c.T,
                  state_size = c.B * c.G * c.K * W;
    const Numbers q = random_numbers(tokens * c.H * c.K, 0.1f, 1), k = random_numbers(tokens * c.G * c.K, 0.1f, 1);
    const Numbers v = random_numbers(tokens * c.G * c.V, -1, 1), dy = random_numbers(tokens * c.H * c.V, -1, 1);
    const Numbers a = random_numbers(tokens * c.G * A, -0.5f, 0), state = random_numbers(state_size, 0, 1);
    const Numbers y = unwritten(tokens * c.H * c.V), total = unwritten(tokens * c.H), dq = unwritten(q.size()),
                  dk = unwritten(k.size());
    const Numbers dv = unwritten(v.size()), da = unwritten(a.size()), dtotal = unwritten(total.size());
    Numbers new_state = unwritten(state_size), dstate = unwritten(state_size);
    MaclaurinLinear call{};
    call.B = c.B, call.T = c.T, call.H = c.H, call.G = c.G, call.K = c.K, call.V = c.V, call.chunk = c.chunk;
    call.q = view(q, c.T, c.H, c.K), call.k = view(k, c.T, c.G, c.K), call.v = view(v, c.T, c.G, c.V);
    call.y = view(y, c.T, c.H, c.V), call.dy = view(dy, c.T, c.H, c.V), call.dq = view(dq, c.T, c.H, c.K);
    call.dk = view(dk, c.T, c.G, c.K), call.dv = view(dv, c.T, c.G, c.V), call.total = view(total, c.T, c.H, 1);
    if (c.decay) call.log_decay = view(a, c.T, c.G, A), call.dlog_decay = view(da, c.T, c.G, A);
    if (c.state) call.state = state.data(), call.dstate = dstate.data(), call.state_head = c.K * W;
    call.new_state = new_state.data(), call.dnew_state = state.data();
    call.q_scale = 0.5f, call.k_scale = 1, call.per_channel = c.per_channel, call.normalize = c.normalize,
    call.centred = c.centred, call.dtotal = view(dtotal, c.T, c.H, 1), call.threads = threads;
    const bool done = maclaurin_linear_forward(&call) == 0 && maclaurin_linear_backward(&call) == 0;
    check(done && finite(y) && finite(dq) && finite(dk) && finite(dv) && finite(new_state), "linear", isa, threads, number);
    check((!c.decay || finite(da)) && (!c.state || finite(dstate)), "linear gradients", isa, threads, number);
    if (!c.state) check(last_output_is_exact(c, q, k, v, a, y), "linear outputs", isa, threads, number);
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

struct ScanCase {
    int64_t B, T, C, N;
    bool start;
};

// N = 0: the elementwise recurrence, else the selective scan.
void run(const ScanCase& c, const char* isa, int threads, int number) {
    const int64_t tokens = c.B * c.T, groups = (c.C + 63) / 64;
    const Numbers x = random_numbers(tokens * c.C, -1, 1), dy = random_numbers(tokens * c.C, -1, 1);
    const Numbers y = unwritten(x.size()), dx = unwritten(x.size()), da = unwritten(x.size());
    bool done, exact = true;
    if (c.N == 0) {
        const Numbers a = random_numbers(tokens * c.C, -2, 0), start = random_numbers(c.B * c.C, -1, 1);
        Numbers dstart = unwritten(start.size());
        MaclaurinScan call{};
        call.B = c.B, call.T = c.T, call.C = c.C, call.threads = threads;
        call.x = view(x, c.T, 1, c.C), call.log_decay = view(a, c.T, 1, c.C), call.y = view(y, c.T, 1, c.C);
        call.dy = view(dy, c.T, 1, c.C), call.dx = view(dx, c.T, 1, c.C), call.dlog_decay = view(da, c.T, 1, c.C);
        if (c.start) call.start = start.data(), call.dstart = dstart.data();
        done = maclaurin_scan_forward(&call) == 0 && maclaurin_scan_backward(&call) == 0 && (!c.start || finite(dstart));
        for (int64_t i = 0; i < c.C; ++i) {
            double h = c.start ? start[(c.B - 1) * c.C + i] : 0;
            for (int64_t t = 0; t < c.T; ++t) {
                const int64_t at = ((c.B - 1) * c.T + t) * c.C + i;
                h = std::exp(a[at]) * h + x[at];
                exact = exact && std::abs(y[at] - h) < 1e-5;
            }
        }
    } else {
        const int64_t size = c.B * c.C * c.N;
        const Numbers dt = random_numbers(tokens * c.C, 0, 1), rate = random_numbers(c.C * c.N, 0, 2);
        const Numbers b = random_numbers(tokens * c.N, -1, 1), out = random_numbers(tokens * c.N, -1, 1);
        const Numbers start = random_numbers(size, -1, 1), dnew = random_numbers(size, -1, 1);
        const Numbers db = unwritten(tokens * groups * c.N), dc = unwritten(tokens * groups * c.N);
        Numbers drate = unwritten(size), state = unwritten(size), dstart = unwritten(size);
        MaclaurinSelective call{};
        call.B = c.B, call.T = c.T, call.C = c.C, call.N = c.N, call.threads = threads;
        call.x = view(x, c.T, 1, c.C), call.dt = view(dt, c.T, 1, c.C), call.y = view(y, c.T, 1, c.C);
        call.b = view(b, c.T, 1, c.N), call.c = view(out, c.T, 1, c.N), call.dy = view(dy, c.T, 1, c.C);
        call.dx = view(dx, c.T, 1, c.C), call.ddt = view(da, c.T, 1, c.C);
        call.db = view(db, c.T, groups, c.N), call.dc = view(dc, c.T, groups, c.N);
        call.rate = rate.data(), call.drate = drate.data(), call.dnew_state = dnew.data();
        call.new_state = state.data();
        if (c.start) call.start = start.data(), call.dstart = dstart.data();
        done = maclaurin_selective_forward(&call) == 0 && maclaurin_selective_backward(&call) == 0;
        done = done && finite(state) && finite(db) && finite(dc) && finite(drate) && (!c.start || finite(dstart));
        for (int64_t i = 0; i < c.C; ++i) {
            std::vector<double> h(c.N);
            for (int64_t n = 0; n < c.N && c.start; ++n) h[n] = start[((c.B - 1) * c.C + i) * c.N + n];
            for (int64_t t = 0; t < c.T; ++t) {
                const int64_t token = (c.B - 1) * c.T + t, at = token * c.C + i;
                double total = 0;
                for (int64_t n = 0; n < c.N; ++n) {
                    h[n] = std::exp(-dt[at] * rate[i * c.N + n]) * h[n] + dt[at] * x[at] * b[token * c.N + n];
                    total += h[n] * out[token * c.N + n];
                }
                exact = exact && std::abs(y[at] - total) < 1e-4;
            }
        }
    }
    check(done && finite(y) && finite(dx) && finite(da), "scan", isa, threads, number);
    check(exact, "scan outputs", isa, threads, number);
}

struct GatedCase {
    int64_t B, T, C;
    bool start;
};

void run(const GatedCase& c, const char* isa, int threads, int number) {
    const int64_t size = c.B * c.T * c.C;
    const Numbers u = random_numbers(size, -1, 1), gates = random_numbers(3 * size, -100, 100), g = random_numbers(size, -9, 9);
    const Numbers dy = random_numbers(size, -1, 1), start = random_numbers(c.B * c.C, -1, 1);
    const Numbers y = unwritten(size), h = unwritten(size), du = unwritten(size), dgates = unwritten(3 * size), dg = unwritten(size);
    Numbers dstart = random_numbers(c.B * c.C, -1, 1);
    MaclaurinGated call{};
    call.B = c.B, call.T = c.T, call.C = c.C, call.threads = threads;
    call.u = view(u, c.T, 1, c.C), call.gates = view(gates, c.T, 1, 3 * c.C), call.g = view(g, c.T, 1, c.C);
    call.y = view(y, c.T, 1, c.C), call.h = view(h, c.T, 1, c.C), call.dy = view(dy, c.T, 1, c.C);
    call.du = view(du, c.T, 1, c.C), call.dgates = view(dgates, c.T, 1, 3 * c.C), call.dg = view(dg, c.T, 1, c.C);
    call.start = c.start ? start.data() : nullptr, call.dstart = dstart.data();
    const bool done = maclaurin_gated_forward(&call) == 0 && maclaurin_gated_backward(&call) == 0;
    check(done && finite(y) && finite(h) && finite(du) && finite(dgates) && finite(dg) && finite(dstart), "gated", isa, threads,
          number);
    const auto open = [](double x) { return 1 / (1 + std::exp(-x)); };
    bool exact = true;
    for (int64_t i = 0; i < c.C; ++i) {
        double state = c.start ? start[(c.B - 1) * c.C + i] : 0;
        for (int64_t t = 0; t < c.T; ++t) {
            const int64_t token = (c.B - 1) * c.T + t, at = token * c.C + i;
            const float* gate = &gates[token * 3 * c.C + i];
            state = open(gate[0]) * state + open(gate[c.C]) * u[at];
            const double out = g[at] * 0.5 * std::erfc(-g[at] / std::sqrt(2.0)) * open(gate[2 * c.C]) * state;
            exact = exact && std::abs(h[at] - state) < 1e-5 && std::abs(y[at] - out) < 1e-4;
        }
    }
    check(exact, "gated outputs", isa, threads, number);
}

}  // namespace

int main() {
    const LinearCase linear[] = {
        // B, T, H, G, K, V, chunk, decay, per_channel, normalize, state
        {1, 1, 1, 1, 1, 1, 1, false, false, false, false},   {2, 37, 4, 2, 3, 5, 64, true, false, true, false},
        {1, 70, 3, 1, 17, 33, 7, true, true, false, true},   {2, 33, 2, 2, 16, 16, 64, true, true, true, false},
        {1, 130, 5, 5, 64, 80, 64, true, false, true, true}, {3, 65, 6, 2, 20, 1, 1, false, false, true, true},
        {1, 16, 1, 1, 9, 31, 64, true, true, true, false},
        {2, 70, 6, 3, 17, 33, 64, false, false, true, false, true},
        {1, 33, 1, 1, 64, 5, 7, false, false, true, false, true},
    };
    const ConvCase conv[] = {
        // B, T, C, width, bias, before, silu
        {1, 1, 1, 1, false, false, false},   {2, 70, 20, 4, true, true, true},   {1, 2, 130, 5, true, false, true},
        {3, 64, 128, 2, false, true, false}, {1, 200, 300, 3, true, true, true},
    };
    const ScanCase scans[] = {
        // B, T, C, N, start
        {1, 1, 1, 0, false},    {2, 40, 70, 0, true},   {1, 17, 128, 0, false}, {1, 1, 1, 1, true},   {2, 33, 70, 5, true},
        {1, 16, 64, 16, false}, {3, 50, 130, 17, true}, {1, 15, 200, 1, false}, {1, 35, 65, 40, true},
    };
    const GatedCase gated[] = {{1, 1, 1, false}, {2, 40, 70, true}, {1, 17, 128, false}, {3, 5, 33, true}};
    for (const char* isa : {"avx512", "avx2", "portable"}) {
        if (maclaurin_choose_isa(isa) != 0) continue;
        for (const int threads : {1, 2, 3, 8}) {
            int number = 0;
            for (const LinearCase& c : linear) run(c, isa, threads, number++);
            for (const ConvCase& c : conv) run(c, isa, threads, number++);
            for (const ScanCase& c : scans) run(c, isa, threads, number++);
            for (const GatedCase& c : gated) run(c, isa, threads, number++);
        }
        std::printf("%s: done\n", isa);
    }
    return failures != 0;
}
