// Calls the kernels of piecewise linear functions with hostile sizes and numbers, like first_order.cpp.
#include <algorithm>
#include <cmath>

#include "hostile.h"

namespace {

struct PiecewiseCase {
    int64_t count, knots, L, parts;
    bool relu;
};

void run(const PiecewiseCase& c, const char* isa, int threads, int number) {
    Numbers knots = random_numbers(c.knots, -1, 1), u = random_numbers(c.count, -2, 2);
    std::sort(knots.begin(), knots.end());
    if (c.knots > 16) knots.back() = INFINITY;
    if (c.count > 3) u[0] = knots.front(), u[1] = -1e30f, u[2] = 1e30f;
    const int64_t size = (c.knots + 1) * 2 * c.L;
    const Numbers table = random_numbers(size, -1, 1), dy = random_numbers(c.count * c.L, -1, 1);
    Numbers y = unwritten(c.count * c.L), du = unwritten(c.count), dtable = unwritten(c.parts * size);
    MaclaurinPiecewise call{};
    call.count = c.count, call.knots = c.knots, call.L = c.L, call.parts = c.parts, call.relu = c.relu, call.threads = threads;
    call.u = u.data(), call.knot = knots.data(), call.table = table.data(), call.y = y.data();
    call.dy = dy.data(), call.du = du.data(), call.dtable = dtable.data();
    const bool done = maclaurin_piecewise_forward(&call) == 0 && maclaurin_piecewise_backward(&call) == 0;
    check(done && finite(y) && finite(du) && finite(dtable), "piecewise", isa, threads, number);
    bool exact = true;
    for (int64_t i = 0; i < c.count; ++i) {
        int64_t below = 0;
        for (const float knot : knots) below += u[i] > knot;
        const float *slope = &table[below * 2 * c.L], *intercept = slope + c.L;
        double expected_du = 0, sizes = 0;
        for (int64_t l = 0; l < c.L; ++l) {
            const double z = static_cast<double>(slope[l]) * u[i] + intercept[l], wanted = c.relu && z <= 0 ? 0 : z;
            exact = exact && std::fabs(y[i * c.L + l] - wanted) <= 1e-6 * (1 + std::fabs(z));
            // at a zero the sign of z is rounding
            if (!c.relu || z > 0) expected_du += static_cast<double>(slope[l]) * dy[i * c.L + l];
            sizes += 1 + (std::fabs(z) < 1e-6 ? 1e6 : 0);
        }
        exact = exact && std::fabs(du[i] - expected_du) <= 1e-6 * sizes;
    }
    check(exact, "piecewise outputs", isa, threads, number);
}

}  // namespace

int main() {
    const PiecewiseCase cases[] = {
        // count, knots, L, parts, relu
        {0, 16, 1, 1, true}, {1, 16, 1, 1, false}, {5, 32, 4, 1, true}, {9000, 256, 4, 3, true}, {1000, 1040, 7, 16, false},
    };
    return over_isas(cases, [](const PiecewiseCase& c, const char* isa, int threads, int number) { run(c, isa, threads, number); });
}
