// Calls the kernel that turns pairs of channels with odd sizes and angles that heads share, like first_order.cpp.
#include <cmath>

#include "hostile.h"

namespace {

struct TurnCase {
    int64_t B, T, H, P;
    bool shared, interleaved, back;  // shared: one row of angles for all sequences and heads
};

void run(const TurnCase& c, const char* isa, int threads, int number) {
    const int64_t rows = c.B * c.T * c.H;
    const Numbers x = random_numbers(rows * 2 * c.P, -2, 2), angles = random_numbers((c.shared ? c.T : rows) * c.P, -9, 9);
    Numbers cos = angles, sin = angles, y = unwritten(x.size());
    for (float& a : cos) a = std::cos(a);
    for (float& a : sin) a = std::sin(a);
    MaclaurinTurn call{};
    call.B = c.B, call.T = c.T, call.H = c.H, call.P = c.P;
    call.x = view(x, c.T, c.H, 2 * c.P), call.y = view(y, c.T, c.H, 2 * c.P);
    call.cos = view(cos, c.T, c.H, c.P), call.sin = view(sin, c.T, c.H, c.P);
    if (c.shared)
        for (MaclaurinTensor* angle : {&call.cos, &call.sin}) angle->batch = 0, angle->time = c.P, angle->head = 0;
    call.interleaved = c.interleaved, call.back = c.back, call.threads = threads;
    check(maclaurin_turn_forward(&call) == 0 && finite(y), "turn", isa, threads, number);
    bool exact = true;
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t p = 0; p < c.P; ++p) {
            const int64_t first = r * 2 * c.P + (c.interleaved ? 2 * p : p), second = first + (c.interleaved ? 1 : c.P);
            const int64_t angle = (c.shared ? r / c.H % c.T : r) * c.P + p;
            const double cosine = cos[angle], sine = c.back ? -sin[angle] : sin[angle];
            exact = exact && std::fabs(y[first] - (x[first] * cosine - x[second] * sine)) < 1e-6 &&
                    std::fabs(y[second] - (x[second] * cosine + x[first] * sine)) < 1e-6;
        }
    check(exact, "turn outputs", isa, threads, number);
}

}  // namespace

int main() {
    const TurnCase cases[] = {
        // B, T, H, P, shared, interleaved, back
        {1, 1, 1, 1, true, false, false}, {2, 65, 3, 32, true, false, true},   {3, 7, 2, 19, false, false, false},
        {2, 130, 1, 16, false, true, true}, {1, 5, 4, 7, true, true, false},
    };
    return over_isas(cases, [](const TurnCase& c, const char* isa, int threads, int number) { run(c, isa, threads, number); });
}
