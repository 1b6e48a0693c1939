// Calls the kernels of InLine's filter with odd sizes, like first_order.cpp: outputs against the sums they stand for, and
// gradients against the change of a random sum of the outputs.
#include <cmath>

#include "hostile.h"

namespace {

struct FilterCase {
    int64_t B, T, H, I, C, V, W;
    bool dsum;
};

struct FilterInputs {
    Numbers x, v, first, first_bias, second, second_bias;
};

// y, and behind it the sums, in double.
std::vector<double> stated(const FilterCase& c, const FilterInputs& in) {
    std::vector<double> y(c.B * c.T * c.H * c.V), sums(c.B * c.H * c.I), active(c.C);
    for (int64_t b = 0; b < c.B; ++b)
        for (int64_t t = 0; t < c.T; ++t)
            for (int64_t h = 0; h < c.H; ++h) {
                double* sum = sums.data() + (b * c.H + h) * c.I;
                for (int64_t i = 0; i < c.I; ++i) sum[i] += in.x[((b * c.T + t) * c.H + h) * c.I + i];
                for (int64_t n = 0; n < c.C; ++n) {
                    double a = in.first_bias[h * c.C + n];
                    for (int64_t i = 0; i < c.I; ++i) a += sum[i] / (t + 1) * in.first[(h * c.I + i) * c.C + n];
                    active[n] = a * 0.5 * std::erfc(-a / std::sqrt(2.0));
                }
                for (int64_t w = 0; w < c.W; ++w)
                    for (int64_t k = 0; k < c.V && t - (c.W - 1) + w >= 0; ++k) {
                        const int64_t e = w * c.V + k, E = c.W * c.V, s = t - (c.W - 1) + w;
                        double tap = in.second_bias[h * E + e];
                        for (int64_t n = 0; n < c.C; ++n) tap += active[n] * in.second[(h * c.C + n) * E + e];
                        y[((b * c.T + t) * c.H + h) * c.V + k] += tap * in.v[((b * c.T + s) * c.H + h) * c.V + k];
                    }
            }
    y.insert(y.end(), sums.begin(), sums.end());
    return y;
}

double loss(const FilterCase& c, const FilterInputs& in, const Numbers& dy, const Numbers& dsum) {
    const std::vector<double> outputs = stated(c, in);
    double total = 0;
    for (size_t i = 0; i < dy.size(); ++i) total += outputs[i] * dy[i];
    for (size_t i = 0; i < dsum.size() && c.dsum; ++i) total += outputs[dy.size() + i] * dsum[i];
    return total;
}

void run(const FilterCase& c, const char* isa, int threads, int number) {
    const int64_t E = c.W * c.V, tokens = c.B * c.T * c.H;
    FilterInputs in{random_numbers(tokens * c.I, -2, 2),   random_numbers(tokens * c.V, -1, 1),
                    random_numbers(c.H * c.I * c.C, -1, 1), random_numbers(c.H * c.C, -1, 1),
                    random_numbers(c.H * c.C * E, -1, 1),   random_numbers(c.H * E, -1, 1)};
    const Numbers dy = random_numbers(tokens * c.V, -1, 1), dsum = random_numbers(c.B * c.H * c.I, -1, 1);
    Numbers y = unwritten(dy.size()), sum = unwritten(dsum.size()), dx = unwritten(in.x.size()), dv = unwritten(in.v.size());
    Numbers dfirst = unwritten(c.B * in.first.size()), dfirst_bias = unwritten(c.B * in.first_bias.size());
    Numbers dsecond = unwritten(c.B * in.second.size()), dsecond_bias = unwritten(c.B * in.second_bias.size());
    MaclaurinMeanFilter call{};
    call.B = c.B, call.T = c.T, call.H = c.H, call.I = c.I, call.C = c.C, call.V = c.V, call.W = c.W, call.threads = threads;
    call.x = view(in.x, c.T, c.H, c.I), call.v = view(in.v, c.T, c.H, c.V), call.y = view(y, c.T, c.H, c.V);
    call.first = in.first.data(), call.first_bias = in.first_bias.data();
    call.second = in.second.data(), call.second_bias = in.second_bias.data(), call.sum = sum.data();
    check(maclaurin_mean_filter_forward(&call) == 0, "filter", isa, threads, number);
    const std::vector<double> expected = stated(c, in);
    bool exact = true;
    for (size_t i = 0; i < y.size(); ++i) exact = exact && std::fabs(y[i] - expected[i]) < 1e-4;
    for (size_t i = 0; i < sum.size(); ++i) exact = exact && std::fabs(sum[i] - expected[y.size() + i]) < 1e-4;
    check(exact, "filter outputs", isa, threads, number);

    call.dy = view(dy, c.T, c.H, c.V), call.dx = view(dx, c.T, c.H, c.I), call.dv = view(dv, c.T, c.H, c.V);
    call.dsum = c.dsum ? dsum.data() : nullptr;
    call.dfirst = dfirst.data(), call.dfirst_bias = dfirst_bias.data();
    call.dsecond = dsecond.data(), call.dsecond_bias = dsecond_bias.data();
    check(maclaurin_mean_filter_backward(&call) == 0, "filter backward", isa, threads, number);
    Numbers* leaves[] = {&in.x, &in.v, &in.first, &in.first_bias, &in.second, &in.second_bias};
    const Numbers* found[] = {&dx, &dv, &dfirst, &dfirst_bias, &dsecond, &dsecond_bias};
    for (int leaf = 0; leaf < 6; ++leaf) {
        check(finite(*found[leaf]), "filter gradients", isa, threads, number);
        const size_t size = leaves[leaf]->size(), parts = found[leaf]->size() / size;
        for (const size_t at : {size_t{0}, size / 2, size - 1}) {
            float& x = (*leaves[leaf])[at];
            const float before = x, step = 1.0f / 256;
            x = before + step;
            const double above = loss(c, in, dy, dsum), up = x;
            x = before - step;
            const double below = loss(c, in, dy, dsum), change = (above - below) / (up - x);
            x = before;
            double gradient = 0;
            for (size_t part = 0; part < parts; ++part) gradient += (*found[leaf])[part * size + at];
            check(std::fabs(gradient - change) < 1e-2 * (1 + std::fabs(change)), "filter gradient", isa, threads, number);
        }
    }
}

}  // namespace

int main() {
    const FilterCase cases[] = {
        // B, T, H, I, C, V, W, dsum
        {1, 1, 1, 1, 1, 1, 1, false}, {2, 33, 3, 17, 8, 19, 3, true},  {3, 7, 2, 16, 32, 16, 9, true},
        {1, 65, 1, 3, 16, 33, 4, false}, {1, 32, 2, 8, 1, 4, 2, true},
    };
    return over_isas(cases, [](const FilterCase& c, const char* isa, int threads, int number) { run(c, isa, threads, number); });
}
