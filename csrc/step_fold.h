// The tokens that are folded into the state, as its rows take them: keys and decayed values beside each other, and monomials
// of the keys for some rows at a time.
#pragma once
#include "monomials.h"
#include "step_read.h"

namespace maclaurin::MACLAURIN_VARIANT {

struct FoldBuffers {
    float* k;         // [channel][token], and a channel of zeros, of which monomials that pad a tile are made
    float *rows, *v;  // [token][channel]: keys; values times what is left of them
    float* left;      // [token]
    float* weighted;  // [token]: one channel times what is left
    float* totals;    // [monomial]: Σ_j left φ(k_j)
    float* panel;     // [ROWS][token]
    int64_t keys, k_row, v_row;

    // v_row: columns of a state, those of padding included
    FoldBuffers(Arena& arena, const MaclaurinAttention& call, int64_t v_row)
        : keys(round_up(call.folded, LANES)), k_row(round_up(call.K, LANES) + LANES), v_row(v_row) {
        const int64_t tokens = call.folded ? keys : 0;
        k = arena.take((call.K + 1) * tokens);
        rows = arena.take(k_row * tokens);
        v = arena.take(v_row * tokens);
        left = arena.take(tokens);
        weighted = arena.take(tokens);
        totals = arena.take(call.folded && call.normalize ? monomial_count(call.K) + LANES : 0);
        panel = arena.take(ROWS * tokens);
    }

    // place(c): where a column of the values goes.
    template <class Place>
    void pack(const MaclaurinAttention& call, int64_t b, int64_t g, const float* what_is_left, int64_t first,
              const Place& place) const {
        transpose_rows(k, keys, keys, row(call.k, b, 0, g), call.k.time, call.S, call.K, call.scale);
        fill(k + call.K * keys, keys, 0);
        fill(v, keys * v_row, 0);
        fill(left, keys, 0);
        for (int64_t j = first; j < call.S; ++j) {
            const float* from = row(call.v, b, j, g);
            left[j] = what_is_left[j];
            for (int64_t c = 0; c < call.V; ++c) v[j * v_row + place(c)] = from[c] * left[j];
        }
        if (call.normalize) pack_totals(call, b, g, first);
    }

    // φ(k_j) of ROWS monomials.
    Broadcast monomials(const Pair* pairs) const {
        for (int64_t f = 0; f < ROWS; ++f) {
            const float *one = k + pairs[f].first * keys, *other = k + pairs[f].second * keys;
            const float root = pairs[f].is_weighted() ? ROOT : 1;
            for (int64_t j = 0; j < keys; j += LANES) store(panel + f * keys + j, load(one + j) * load(other + j) * root);
        }
        return {panel, keys, 1};
    }

  private:
    // A row of monomials p, p .. p, K-1 is channel p, times what is left, by the channels from there on. Whole vectors run
    // into the next row, which comes after.
    void pack_totals(const MaclaurinAttention& call, int64_t b, int64_t g, int64_t first) const {
        copy_rows(rows, k_row, call.S, row(call.k, b, 0, g), call.k.time, call.S, call.K, call.scale);
        float* to = totals;
        for (int64_t p = 0; p < call.K; to += call.K - p, ++p) {
            for (int64_t j = 0; j < keys; j += LANES) store(weighted + j, load(k + p * keys + j) * load(left + j));
            for (int64_t r = p; r < call.K; r += LANES) {
                vec total{};
                for (int64_t j = first; j < call.S; ++j) total += load(rows + j * k_row + r) * weighted[j];
                store(to + r - p, total * ROOT);
                if (r == p && !(call.constant && p == 0)) to[0] = total[0];
            }
        }
    }
};

}  // namespace maclaurin::MACLAURIN_VARIANT
