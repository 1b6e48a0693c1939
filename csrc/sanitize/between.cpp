// Calls the kernels of decoding steps that stand around a mixer's mechanism, the convolution's step and what lies between two
// mixers, like turn.cpp.
#include <cmath>

#include "hostile.h"

namespace {

struct StepCase {
    int64_t B, D, E, C, width;
    bool bias, silu;
};

double activated(double x) { return x / (1 + std::exp(-x)); }

void run_conv(const StepCase& c, const char* isa, int threads, int number) {
    const int64_t last = c.width - 1, x_row = c.C + 3;
    const Numbers x = random_numbers(c.B * x_row, -2, 2), weight = random_numbers(c.C * c.width, -1, 1);
    const Numbers bias = random_numbers(c.C, -1, 1), before = random_numbers(c.B * last * c.C, -2, 2);
    Numbers inputs = before, y = unwritten(c.B * c.C);
    MaclaurinConvStep call{};
    call.B = c.B, call.C = c.C, call.width = c.width, call.x_row = x_row;
    call.x = x.data(), call.weight = weight.data(), call.bias = c.bias ? bias.data() : nullptr;
    call.inputs = inputs.data(), call.y = y.data(), call.silu = c.silu, call.threads = threads;
    bool exact = maclaurin_conv_step(&call) == 0;
    for (int64_t b = 0; b < c.B; ++b)
        for (int64_t i = 0; i < c.C; ++i) {
            double total = c.bias ? bias[i] : 0;
            for (int64_t tap = 0; tap < c.width; ++tap) {
                const float input = tap < last ? before[(b * last + tap) * c.C + i] : x[b * x_row + i];
                total += double{input} * weight[i * c.width + tap];
                if (tap > 0) exact = exact && inputs[(b * last + tap - 1) * c.C + i] == input;
            }
            exact = exact && std::fabs(y[b * c.C + i] - (c.silu ? activated(total) : total)) < 1e-5;
        }
    check(exact, "step of a convolution", isa, threads, number);
}

// norm(from) ⊙ weight of one token.
std::vector<double> normed(const std::vector<double>& from, const Numbers& weight, double epsilon) {
    double squares = 0;
    for (const double x : from) squares += x * x;
    std::vector<double> to(from);
    for (size_t i = 0; i < to.size(); ++i) to[i] *= weight[i] / std::sqrt(squares / static_cast<double>(to.size()) + epsilon);
    return to;
}

double product(const Numbers& weights, int64_t row, const std::vector<double>& x) {
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i) sum += weights[row * x.size() + i] * x[i];
    return sum;
}

void run_mlp(const StepCase& c, const char* isa, int threads, int number) {
    const int64_t D = c.D, E = c.E;
    const Numbers x = random_numbers(c.B * D, -2, 2), added = random_numbers(c.B * D, -2, 2), norm = random_numbers(D, 0, 2);
    const Numbers gate = random_numbers(E * D, -1, 1), up = random_numbers(E * D, -1, 1), down = random_numbers(D * E, -1, 1);
    const Numbers next = random_numbers(D, 0, 2);
    Numbers y = unwritten(c.B * D), out = unwritten(c.B * D);
    MaclaurinMlp call{};
    call.B = c.B, call.D = D, call.E = E, call.x = x.data(), call.added = added.data(), call.norm = norm.data();
    call.gate = gate.data(), call.up = up.data(), call.down = down.data(), call.next_norm = next.data();
    call.y = y.data(), call.normed = out.data(), call.epsilon = 1e-5f, call.next_epsilon = 1e-3f, call.threads = threads;
    bool good = maclaurin_mlp_forward(&call) == 0;
    for (int64_t b = 0; b < c.B; ++b) {
        std::vector<double> token(D), inner(E);
        for (int64_t i = 0; i < D; ++i) token[i] = double{x[b * D + i]} + added[b * D + i];
        const std::vector<double> n = normed(token, norm, 1e-5);
        for (int64_t i = 0; i < E; ++i) inner[i] = activated(product(gate, i, n)) * product(up, i, n);
        for (int64_t i = 0; i < D; ++i) token[i] += product(down, i, inner);
        const std::vector<double> last = normed(token, next, 1e-3);
        for (int64_t i = 0; i < D; ++i)
            good = good && std::fabs(y[b * D + i] - token[i]) < 1e-3 * (1 + std::fabs(token[i])) &&
                   std::fabs(out[b * D + i] - last[i]) < 1e-3;
    }
    check(good, "between two mixers", isa, threads, number);
}

}  // namespace

int main() {
    const StepCase cases[] = {
        // B, D, E, C, width, bias, silu
        {1, 16, 16, 1, 1, true, false},   {3, 32, 48, 37, 2, false, true}, {16, 48, 32, 64, 4, true, true},
        {17, 16, 80, 130, 3, true, false}, {70, 32, 16, 5, 5, false, true},
    };
    return over_isas(cases, [](const StepCase& c, const char* isa, int threads, int number) {
        run_conv(c, isa, threads, number);
        run_mlp(c, isa, threads, number);
    });
}
