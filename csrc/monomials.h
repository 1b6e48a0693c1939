// Products with m(x), the K(K+1)/2 monomials x_p x_r, p <= r: built for a few tokens in a first-level cache beside the
// multiplication, and never anywhere else. They come in the order of `symmetric_power`, row by row of the upper triangle.
//
// x is [channel][token]: a monomial of a group of tokens is one product of two rows. (x·y)² = Σ c_pr m_pr(x) m_pr(y) with
// c = 2 off the diagonal; rows K+1 .. 2K+1 of x are twice its rows 0 .. K, so that c·m costs no more than m. Row K is zero:
// monomials that pad the last tile are made of it. Where the first channel is a constant, its square has c = 2 as well.
#pragma once
#include "pack.h"
#include "tile.h"

namespace maclaurin::MACLAURIN_VARIANT {

constexpr int64_t FEATURES = 64;  // monomials per block: with the state's rows they fit in a first-level cache

MACLAURIN_INLINE int64_t monomial_count(int64_t K) { return K * (K + 1) / 2; }
MACLAURIN_INLINE int64_t monomial_rows(int64_t K) { return 2 * (K + 1); }  // of x

// Which rows of x a monomial multiplies; `weighted` ones carry the factor c.
struct Pair {
    int32_t first, second, weighted_first, weighted_second;

    bool is_weighted() const { return first != weighted_first; }
};

// All of them, in whole tiles; data is null where memory ran out.
struct Pairs {
    int64_t count;
    Pair* data;

    explicit Pairs(int64_t K, bool constant = false)
        : count(round_up(monomial_count(K), ROWS)),
          data(static_cast<Pair*>(__builtin_malloc(count * sizeof(Pair)))) {
        if (data == nullptr) return;
        Pair* next = data;
        const int32_t zero = static_cast<int32_t>(K), twice = zero + 1;
        for (int32_t p = 0; p < zero; ++p)
            for (int32_t r = p; r < zero; ++r) *next++ = p == r ? Pair{p, r, p, r} : Pair{p, r, p + twice, r + twice};
        if (constant && K > 0) data[0] = {0, 0, twice, twice};
        while (next < data + count) *next++ = {zero, zero, zero, zero};
    }
    ~Pairs() { __builtin_free(data); }
    Pairs(const Pairs&) = delete;
    Pairs& operator=(const Pairs&) = delete;
};

// Fills rows K .. 2K+1 of a transposed group.
inline void add_monomial_rows(float* x, int64_t K) {
    fill(x + K * GROUP, GROUP, 0);
    for (int64_t i = 0; i < (K + 1) * GROUP; i += LANES) store(x + (K + 1) * GROUP + i, load(x + i) * 2.0f);
}

// S [monomial][value channel] and z [monomial], the column that counts tokens.
struct State {
    float *s, *z;
    int64_t features, v_row, V;  // features: padded to whole tiles
    const Pair* pairs;
};

// y_i = Σ_f m_f(x_i) S_f and total_i = Σ_f m_f(x_i) z_f for one group; with c·m instead of m if WEIGHTED.
template <bool WEIGHTED>
inline void read_state(float* y, float* total, const State& state, const float* x, float* panel) {
    vec sums[COLS] = {};
    fill(y, GROUP * state.v_row, 0);
    for (int64_t begin = 0; begin < state.features; begin += FEATURES) {
        const int64_t count = smaller(FEATURES, state.features - begin);
        for (int64_t f = 0; f < count; ++f) {
            const Pair pair = state.pairs[begin + f];
            const float *left = x + pair.first * GROUP, *right = x + (WEIGHTED ? pair.weighted_second : pair.second) * GROUP;
            for (int n = 0; n < COLS; ++n) {
                const vec monomial = load(left + n * LANES) * load(right + n * LANES);
                sums[n] += monomial * state.z[begin + f];
                store(panel + f * GROUP + n * LANES, monomial);
            }
        }
        add_product(y, state.v_row, 1, GROUP, state.v_row, {panel, 1, GROUP}, state.s + begin * state.v_row,
                    state.v_row, count);
    }
    for (int n = 0; n < COLS; ++n) store(total + n * LANES, sums[n]);
}

// S_f = keep·S_f + Σ_j m_f(x_j) v_j and z_f = keep·z_f + Σ_j m_f(x_j) w_j over `tokens` tokens in groups of x_group numbers.
// v [token][v_row]; w is padded to whole groups; panel [ROWS][tokens in whole groups].
template <bool WEIGHTED>
inline void write_state(const State& state, float keep, const float* x, int64_t x_group, int64_t tokens, const float* v,
                         const float* w, float* panel) {
    const int64_t padded = round_up(tokens, GROUP);
    for (int64_t begin = 0; begin < state.features; begin += ROWS) {
        for (int64_t f = 0; f < ROWS; ++f) {
            const Pair pair = state.pairs[begin + f];
            const float *left = x + pair.first * GROUP, *right = x + (WEIGHTED ? pair.weighted_second : pair.second) * GROUP;
            float* to = panel + f * padded;
            vec sums{};
            for (int64_t j = 0; j < padded; j += GROUP, left += x_group, right += x_group)
                for (int n = 0; n < COLS; ++n) {
                    const vec monomial = load(left + n * LANES) * load(right + n * LANES);
                    sums += monomial * load(w + j + n * LANES);
                    store(to + j + n * LANES, monomial);
                }
            state.z[begin + f] = keep * state.z[begin + f] + sum(sums);
        }
        add_product(state.s + begin * state.v_row, state.v_row, keep, ROWS, state.v_row, {panel, padded, 1}, v,
                    state.v_row, tokens);
    }
}

// The gradient by x of Σ_i y_i·dy_i + total_i·dtotal_i, where y and total are those of read_state: added to dx
// [channel][GROUP], which has K+1 rows. dy is [value channel][GROUP].
template <bool WEIGHTED>
inline void read_state_backward(float* dx, const State& state, const float* x, const float* dy, const float* dtotal) {
    for (int64_t begin = 0; begin < state.features; begin += ROWS) {
        Tile<COLS> dm;
        for (int f = 0; f < ROWS; ++f)
            for (int n = 0; n < COLS; ++n) dm.at[f][n] = load(dtotal + n * LANES) * state.z[begin + f];
        dm.add_product({state.s + begin * state.v_row, state.v_row, 1}, dy, GROUP, state.V);
        for (int f = 0; f < ROWS; ++f) {
            const Pair pair = state.pairs[begin + f];
            const float* left = x + (WEIGHTED ? pair.weighted_first : pair.first) * GROUP;
            const float* right = x + (WEIGHTED ? pair.weighted_second : pair.second) * GROUP;
            float *d_left = dx + pair.first * GROUP, *d_right = dx + pair.second * GROUP;
            for (int n = 0; n < GROUP; n += LANES) {
                store(d_left + n, load(d_left + n) + dm.at[f][n / LANES] * load(right + n));
                store(d_right + n, load(d_right + n) + dm.at[f][n / LANES] * load(left + n));
            }
        }
    }
}

}  // namespace maclaurin::MACLAURIN_VARIANT
