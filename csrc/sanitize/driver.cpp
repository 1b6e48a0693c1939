// Calls every kernel with hostile shapes and compares the results with plain loops in double precision. Built with a
// sanitizer by scripts/sanitize.sh: inputs and outputs are allocated to the byte, so an access outside of them is found.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <vector>

#include "../maclaurin.h"

namespace {

struct Case {
    int64_t B, T, S, H, G, K, V, chunk, folded;
    bool decay, normalize, exponential, state, constant = false;
};

int64_t features(const Case& c) { return c.K * (c.K + 1) / 2; }
int64_t width(const Case& c) { return c.V + (c.normalize ? 1 : 0); }

// A dense (batch, time, heads, channels) tensor, allocated to the byte.
class Tensor {
  public:
    Tensor(int64_t B, int64_t T, int64_t H, int64_t C)
        : time_(H * C),
          batch_(T * H * C),
          head_(C),
          data_(new float[B * T * H * C]) {
        for (int64_t i = 0; i < B * T * H * C; ++i) data_[i] = NAN;
        count_ = B * T * H * C;
    }
    void randomize(float low, float high) {
        for (int64_t i = 0; i < count_; ++i) data_[i] = low + (high - low) * static_cast<float>(std::rand()) / RAND_MAX;
    }
    float& at(int64_t b, int64_t t, int64_t h, int64_t c = 0) const { return data_[b * batch_ + t * time_ + h * head_ + c]; }
    MaclaurinTensor view() const { return {data_.get(), batch_, time_, head_}; }
    int64_t count() const { return count_; }
    float* data() const { return count_ == 0 ? nullptr : data_.get(); }
    bool finite() const {
        for (int64_t i = 0; i < count_; ++i)
            if (!std::isfinite(data_[i])) return false;
        return true;
    }
    double distance(const Tensor& other) const {
        double error = 0, size = 1e-12;
        for (int64_t i = 0; i < count_; ++i) {
            error += std::pow(data_[i] - other.data_[i], 2);
            size += std::pow(other.data_[i], 2);
        }
        return std::sqrt(error / size);
    }

  private:
    int64_t time_, batch_, head_, count_;
    std::unique_ptr<float[]> data_;
};

// A state in halves, as halves.h has it, allocated to the byte.
class Halves {
  public:
    Halves(const Tensor& x, const Case& c)
        : heads_(c.B * c.G),
          F_(features(c)),
          V_(c.V),
          W_(width(c)),
          columns_((c.V + 31) / 32 * 32),
          count_((F_ + 15) / 16 * 16 * columns_),
          size_(2 * count_ + (W_ - V_) * 2 * ((F_ + 15) / 16 * 16)),
          data_(new (std::align_val_t(64)) uint16_t[heads_ * size_]()) {
        for (int64_t head = 0; head < heads_; ++head)
            for (int64_t f = 0; f < F_; ++f)
                for (int64_t c = 0; c < W_; ++c) put(head, f, c, x.data()[(head * F_ + f) * W_ + c]);
    }
    uint16_t* data() const { return data_.get(); }
    // To the bit.
    bool are(const Tensor& x) const {
        for (int64_t head = 0; head < heads_; ++head)
            for (int64_t f = 0; f < F_; ++f)
                for (int64_t c = 0; c < W_; ++c) {
                    const float expected = x.data()[(head * F_ + f) * W_ + c], found = at(head, f, c);
                    if (std::memcmp(&expected, &found, sizeof found) != 0) return false;
                }
        return true;
    }

  private:
    struct Aligned {
        void operator()(uint16_t* data) const { operator delete[](data, std::align_val_t(64)); }
    };
    float* total(int64_t head, int64_t f) const {
        return reinterpret_cast<float*>(data_.get() + head * size_ + 2 * count_) + f;
    }
    void put(int64_t head, int64_t f, int64_t c, float x) {
        if (c == V_) {
            *total(head, f) = x;
            return;
        }
        uint32_t bits;
        std::memcpy(&bits, &x, sizeof bits);
        uint16_t* upper = data_.get() + head * size_ + f * columns_ + c;
        upper[0] = static_cast<uint16_t>((bits + 0x8000) >> 16), upper[count_] = static_cast<uint16_t>(bits);
    }
    float at(int64_t head, int64_t f, int64_t c) const {
        if (c == V_) return *total(head, f);
        const uint16_t* upper = data_.get() + head * size_ + f * columns_ + c;
        const uint32_t bits = (uint32_t{upper[0]} << 16) + static_cast<uint32_t>(static_cast<int16_t>(upper[count_]));
        float x;
        std::memcpy(&x, &bits, sizeof x);
        return x;
    }
    int64_t heads_, F_, V_, W_, columns_, count_, size_;
    std::unique_ptr<uint16_t[], Aligned> data_;
};

struct Inputs {
    Tensor q, k, v, log_decay, dy, state, dnew_state;

    explicit Inputs(const Case& c)
        : q(c.B, c.T, c.H, c.K),
          k(c.B, c.S, c.G, c.K),
          v(c.B, c.S, c.G, c.V),
          log_decay(c.B, c.S, c.G, 1),
          dy(c.B, c.T, c.H, c.V),
          state(c.B, c.G, features(c), c.state ? width(c) : 0),
          dnew_state(c.B, c.G, features(c), c.folded ? width(c) : 0) {
        for (Tensor* x : {&q, &k, &v, &dy, &dnew_state}) x->randomize(-1, 1);
        state.randomize(0, 1);
        log_decay.randomize(-0.3f, 0);
    }
};

struct Outputs {
    Tensor y, total, dq, dk, dv, dlog_decay, new_state, dstate;

    explicit Outputs(const Case& c)
        : y(c.B, c.T, c.H, c.V),
          total(c.B, c.T, c.H, 1),
          dq(c.B, c.T, c.H, c.K),
          dk(c.B, c.S, c.G, c.K),
          dv(c.B, c.S, c.G, c.V),
          dlog_decay(c.B, c.S, c.G, 1),
          new_state(c.B, c.G, features(c), c.folded ? width(c) : 0),
          dstate(c.B, c.G, features(c), c.state ? width(c) : 0) {}
};

MaclaurinAttention call_of(const Case& c, const Inputs& in, const Outputs& out, int threads) {
    MaclaurinAttention call{};
    call.B = c.B, call.T = c.T, call.S = c.S, call.H = c.H, call.G = c.G, call.K = c.K, call.V = c.V;
    call.q = in.q.view(), call.k = in.k.view(), call.v = in.v.view(), call.dy = in.dy.view();
    if (c.decay) call.log_decay = in.log_decay.view(), call.dlog_decay = out.dlog_decay.view();
    call.y = out.y.view(), call.total = out.total.view();
    call.dq = out.dq.view(), call.dk = out.dk.view(), call.dv = out.dv.view();
    call.state = in.state.data(), call.dnew_state = in.dnew_state.data();
    call.new_state = out.new_state.data(), call.dstate = out.dstate.data();
    call.chunk = c.chunk, call.folded = c.folded, call.state_head = features(c) * width(c), call.constant = c.constant;
    call.scale = 0.4f, call.exponential = c.exponential, call.normalize = c.normalize, call.threads = threads;
    return call;
}

// y as the sum over all pairs that it stands for, without a state; `whole`: those of later keys too, where nothing decays.
Tensor expected(const Case& c, const Inputs& in, bool whole = false) {
    Tensor y(c.B, c.T, c.H, c.V);
    for (int64_t b = 0; b < c.B; ++b)
        for (int64_t h = 0; h < c.H; ++h)
            for (int64_t t = 0; t < c.T; ++t) {
                const int64_t g = h / (c.H / c.G), last = whole ? c.S - 1 : c.S - c.T + t;
                std::vector<double> sum(c.V, 0);
                double total = 0, decay = 0;
                for (int64_t s = last; s >= 0; --s) {
                    double score = 0;
                    for (int64_t i = 0; i < c.K; ++i) score += 0.4 * in.q.at(b, t, h, i) * in.k.at(b, s, g, i);
                    const double first = c.constant ? 0.4 * in.q.at(b, t, h) * in.k.at(b, s, g) : 0;
                    const double weight = (c.exponential ? std::exp(score) : score * score + first * first) * std::exp(decay);
                    for (int64_t i = 0; i < c.V; ++i) sum[i] += weight * in.v.at(b, s, g, i);
                    total += weight;
                    if (c.decay && !whole) decay += in.log_decay.at(b, s, g);
                }
                for (int64_t i = 0; i < c.V; ++i)
                    y.at(b, t, h, i) = static_cast<float>(c.normalize ? sum[i] / total : sum[i]);
            }
    return y;
}

int failures = 0;

void check(bool good, const char* what, const Case& c, const char* isa, int threads) {
    if (good) return;
    ++failures;
    std::printf("WRONG %s: %s, %d threads, B %ld T %ld S %ld H %ld G %ld K %ld V %ld chunk %ld folded %ld\n", what, isa,
                threads, long(c.B), long(c.T), long(c.S), long(c.H), long(c.G), long(c.K), long(c.V), long(c.chunk),
                long(c.folded));
}

// The same tokens as rows that are stepped in place; then one step of exponential scores, which have no recurrent state and
// whose window moves to the front.
void run_rows(const Case& c, const MaclaurinBuffer& buffer, const MaclaurinToken& token, const Tensor& y,
              const Tensor& new_state, const char* isa, int threads) {
    Outputs out(c);
    const bool stateful = c.state || c.folded;
    const int64_t size = c.G * features(c) * width(c), window = c.S > 2 ? 3 : 1;
    std::vector<float> states(stateful ? c.B * size : 0);
    for (size_t i = 0; i < states.size() && c.state; ++i) states[i] = buffer.state[i];
    std::vector<MaclaurinRow> table(c.B);
    for (int64_t b = 0; b < c.B; ++b) {
        const int64_t slot = b * c.G * c.S;
        float* decays = buffer.log_decays == nullptr ? nullptr : buffer.log_decays + slot;
        float* state = stateful ? states.data() + b * size : nullptr;
        const int64_t limit = c.folded ? c.S : c.S + 1;
        table[b] = {buffer.keys + slot * c.K, buffer.values + slot * c.V, decays, state, nullptr, c.S, c.S - 1, limit};
    }
    MaclaurinRows rows{};
    rows.B = c.B, rows.H = c.H, rows.G = c.G, rows.K = c.K, rows.V = c.V;
    for (int i = 0; i < 2; ++i) {
        rows.q_strides[i] = buffer.q_strides[i], rows.k_strides[i] = buffer.k_strides[i];
        rows.v_strides[i] = buffer.v_strides[i], rows.log_decay_strides[i] = buffer.log_decay_strides[i];
    }
    rows.q = token.q, rows.k = token.k, rows.v = token.v;
    rows.log_decay = buffer.log_decays == nullptr ? nullptr : token.log_decay;
    rows.y = out.y.data(), rows.rows = table.data();
    rows.scale = buffer.scale, rows.normalize = buffer.normalize, rows.threads = threads;
    bool good = maclaurin_step_rows(&rows) == 0 && out.y.distance(y) < 1e-5;
    for (size_t i = 0; i < states.size() && c.folded; ++i)
        good = good && std::fabs(states[i] - new_state.data()[i]) < 1e-4 * (1 + std::fabs(states[i]));
    check(good, "decoding step of rows", c, isa, threads);
    rows.exponential = 1;
    for (MaclaurinRow& row : table) row.S = c.S - 1, row.limit = window, row.state = nullptr;
    good = maclaurin_step_rows(&rows) == 0 && out.y.finite();
    for (const MaclaurinRow& row : table) good = good && row.S == window - 1;
    check(good, "decoding step of a window", c, isa, threads);
}

// The same step from a state in halves, whose next state is that of `out`.
void run_halves(const Case& c, const Inputs& in, MaclaurinBuffer buffer, MaclaurinToken token, const Outputs& out,
                const Tensor& y, const char* isa, int threads) {
    const Halves from(in.state, c), to(in.state, c);
    buffer.state = nullptr, token.new_state = nullptr, buffer.halves = from.data();
    if (c.folded) token.new_halves = to.data();
    check(maclaurin_step(&buffer, &token) == 0 && out.y.distance(y) < 0.02 && (!c.folded || to.are(out.new_state)),
          "decoding step over halves", c, isa, threads);
    if (!c.folded) return;
    token.new_halves = from.data();
    check(maclaurin_step(&buffer, &token) == 0 && out.y.distance(y) < 0.02 && from.are(out.new_state),
          "decoding step over halves in place", c, isa, threads);
}

// A decoding step from buffers of exactly its size: the last key, value and decay come as the new token.
void run_step(const Case& c, const Inputs& in, const Tensor& y, const Tensor& new_state, const char* isa, int threads) {
    Outputs out(c);
    std::vector<float> keys(c.B * c.G * c.S * c.K), values(c.B * c.G * c.S * c.V), decays(c.B * c.G * c.S);
    for (int64_t b = 0; b < c.B; ++b)
        for (int64_t g = 0; g < c.G; ++g)
            for (int64_t s = 0; s + 1 < c.S; ++s) {
                const int64_t slot = (b * c.G + g) * c.S + s;
                for (int64_t i = 0; i < c.K; ++i) keys[slot * c.K + i] = in.k.at(b, s, g, i);
                for (int64_t i = 0; i < c.V; ++i) values[slot * c.V + i] = in.v.at(b, s, g, i);
                decays[slot] = in.log_decay.at(b, s, g);
            }
    const auto last = [&](const Tensor& x) { return x.view().data + (c.S - 1) * x.view().time; };
    const auto strides = [](int64_t (&to)[2], const Tensor& x) { to[0] = x.view().batch, to[1] = x.view().head; };
    MaclaurinBuffer buffer{};
    buffer.B = c.B, buffer.H = c.H, buffer.G = c.G, buffer.K = c.K, buffer.V = c.V, buffer.slots = c.S;
    strides(buffer.q_strides, in.q), strides(buffer.k_strides, in.k), strides(buffer.v_strides, in.v);
    strides(buffer.log_decay_strides, in.log_decay);
    buffer.keys = keys.data(), buffer.values = values.data(), buffer.log_decays = c.decay ? decays.data() : nullptr;
    buffer.state = in.state.data(), buffer.scale = 0.4f, buffer.normalize = c.normalize;
    MaclaurinToken token{};
    token.S = c.S, token.threads = threads;
    token.q = in.q.view().data, token.k = last(in.k), token.v = last(in.v), token.log_decay = last(in.log_decay);
    token.y = out.y.data(), token.new_state = out.new_state.data();
    check(maclaurin_step(&buffer, &token) == 0 && out.y.distance(y) < 1e-5 && out.new_state.distance(new_state) < 1e-5,
          "decoding step", c, isa, threads);
    if (c.state) run_halves(c, in, buffer, token, out, y, isa, threads);
    run_rows(c, buffer, token, y, new_state, isa, threads);  // moves tokens of the buffer
}

// The same call over the reversed sequence.
MaclaurinAttention reversed(MaclaurinAttention call) {
    for (MaclaurinTensor* x : {&call.q, &call.k, &call.v, &call.log_decay, &call.y, &call.total, &call.dy, &call.dq,
                               &call.dk, &call.dv, &call.dlog_decay})
        if (x->data != nullptr) x->data += (call.T - 1) * x->time, x->time *= -1;
    return call;
}

// Whole sequences: through one state, both ways without a decay, which must be the same, and both ways with one.
void run_whole(const Case& c, const Inputs& in, const char* isa, int threads) {
    Outputs out[] = {Outputs(c), Outputs(c), Outputs(c)};
    bool good = true;
    for (int n = 0; n < 3; ++n) {
        MaclaurinAttention call = call_of(c, in, out[n], threads);
        if (n < 2) call.log_decay.data = call.dlog_decay.data = nullptr;
        MaclaurinAttention back = reversed(call);
        call.way = n == 0 ? MACLAURIN_ALL : MACLAURIN_FORTH, back.way = MACLAURIN_BACK;
        good = good && (n == 0 || maclaurin_chunked_forward(&back) == 0) && maclaurin_chunked_forward(&call) == 0;
        good = good && (n == 0 || maclaurin_chunked_backward(&back) == 0) && maclaurin_chunked_backward(&call) == 0;
        for (const Tensor* x : {&out[n].y, &out[n].dq, &out[n].dk, &out[n].dv}) good = good && x->finite();
    }
    check(good, "whole sequences", c, isa, threads);
    const Tensor exact = expected(c, in, true);
    check(out[0].y.distance(exact) < 1e-4 && out[1].y.distance(exact) < 1e-4, "whole outputs", c, isa, threads);
}

void run(const Case& c, const char* isa, int threads) {
    const Inputs in(c);
    Outputs direct(c), chunked(c);
    const MaclaurinAttention chunks = call_of(c, in, chunked, threads);
    MaclaurinAttention pairs = call_of(c, in, direct, threads);
    if (!c.exponential) {
        bool good = maclaurin_chunked_forward(&chunks) == 0 && maclaurin_chunked_backward(&chunks) == 0;
        for (const Tensor* x : {&chunked.y, &chunked.dq, &chunked.dk, &chunked.dv, &chunked.new_state, &chunked.dstate})
            good = good && x->finite();
        check(good && (!c.decay || chunked.dlog_decay.finite()), "chunked", c, isa, threads);
        if (c.T == 1 && c.state && !c.constant) run_step(c, in, chunked.y, chunked.new_state, isa, threads);
    }
    if (c.state || c.folded || c.T == 0) return;
    check(maclaurin_quadratic_forward(&pairs) == 0 && maclaurin_quadratic_backward(&pairs) == 0, "quadratic", c, isa,
          threads);
    const Tensor exact = expected(c, in);
    check(direct.y.distance(exact) < 1e-4, "quadratic outputs", c, isa, threads);
    if (c.exponential) return;
    if (c.T == 1 && !c.constant) run_step(c, in, direct.y, direct.new_state, isa, threads);
    if (c.T == c.S) run_whole(c, in, isa, threads);
    check(chunked.y.distance(exact) < 1e-4, "chunked outputs", c, isa, threads);
    check(chunked.dq.distance(direct.dq) < 1e-3 || c.K == 1, "gradients of q", c, isa, threads);
    check(chunked.dk.distance(direct.dk) < 1e-3 || c.K == 1, "gradients of k", c, isa, threads);
    check(chunked.dv.distance(direct.dv) < 1e-3, "gradients of v", c, isa, threads);
}

// No columns at all, beside a state that is there: nothing to read, and nothing to divide by.
void run_without_values(const char* isa) {
    const Case c{1, 1, 5, 1, 1, 3, 0, 8, 5, true, false, false, false};
    const Inputs in(c);
    Outputs out(c);
    MaclaurinAttention call = call_of(c, in, out, 1);
    float nothing = 0;
    call.state = call.new_state = &nothing;
    check(maclaurin_chunked_forward(&call) == 0, "no values", c, isa, 1);
}

}  // namespace

int main() {
    const Case cases[] = {
        // B, T, S, H, G, K, V, chunk, folded, decay, normalize, exponential, state
        {1, 1, 1, 1, 1, 1, 1, 1, 0, false, false, false, false},
        {1, 1, 1, 1, 1, 1, 1, 256, 1, true, true, false, true},
        {1, 1, 40, 6, 2, 3, 1, 256, 40, true, true, false, true},
        {2, 1, 33, 5, 5, 20, 17, 256, 0, true, false, false, true},
        {1, 1, 70, 9, 9, 33, 64, 256, 70, false, true, false, true},
        {2, 1, 130, 10, 5, 17, 9, 256, 0, true, true, false, false},
        {2, 37, 37, 4, 2, 3, 5, 7, 0, true, true, false, false},
        {1, 130, 200, 3, 1, 17, 33, 64, 0, true, false, false, false},
        {3, 70, 70, 2, 2, 16, 16, 128, 0, false, true, false, false},
        {1, 5, 300, 2, 1, 8, 80, 100, 130, true, true, false, true},
        {1, 300, 300, 1, 1, 33, 1, 256, 299, true, false, false, false},
        {2, 129, 129, 2, 1, 20, 64, 256, 64, false, true, false, true},
        {1, 0, 90, 2, 2, 6, 7, 32, 70, true, true, false, false},
        {1, 140, 140, 1, 1, 9, 100, 128, 70, true, true, false, true},
        {1, 140, 140, 5, 1, 9, 100, 128, 0, true, true, false, false},
        {2, 65, 90, 4, 2, 7, 9, 1, 0, true, true, true, false},
        {1, 257, 257, 2, 2, 64, 64, 1, 0, false, true, true, false},
        {1, 257, 257, 3, 3, 40, 24, 128, 0, true, true, false, false},
        {2, 37, 37, 4, 2, 3, 5, 7, 0, true, true, false, false, true},
        {1, 130, 200, 3, 1, 17, 33, 64, 0, true, false, false, false, true},
        {1, 1, 40, 6, 2, 3, 1, 256, 40, true, true, false, true, true},
        {2, 1, 33, 5, 5, 21, 17, 256, 0, true, true, false, false, true},
        {2, 129, 129, 2, 1, 20, 64, 256, 64, false, true, false, true, true},
    };
    for (const char* isa : {"avx512", "avx2", "portable"}) {
        if (maclaurin_choose_isa(isa) != 0) continue;
        for (const int threads : {1, 2, 3, 8})
            for (const Case& c : cases) run(c, isa, threads);
        run_without_values(isa);
        std::printf("%s: done\n", isa);
    }
    return failures != 0;
}
