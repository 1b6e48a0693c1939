// The C interface, and the run-time choice of the fastest variant that this CPU can run.
#include <atomic>
#include <cstring>
#include <initializer_list>

#include "kernels.h"
#include "pool.h"
#include "step.h"
#include "step_rows.h"

namespace maclaurin {
namespace {

struct Variant {
    const Kernels* kernels;
    bool usable;
};

// The fastest first.
const Variant* variants(int& count) {
    static const Variant all[] = {
#if defined(MACLAURIN_HAS_AVX512)
        {&avx512::kernels, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
                               __builtin_cpu_supports("fma")},
#endif
#if defined(MACLAURIN_HAS_AVX2)
        {&avx2::kernels, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")},
#endif
        {&portable::kernels, true},
    };
    count = sizeof all / sizeof all[0];
    return all;
}

const Kernels* named(const char* name) {
    int count;
    const Variant* all = variants(count);
    for (int i = 0; i < count; ++i)
        if (all[i].usable && (name == nullptr || std::strcmp(all[i].kernels->name, name) == 0)) return all[i].kernels;
    return nullptr;
}

std::atomic<const Kernels*>& chosen() {
    static std::atomic<const Kernels*> current{named(nullptr)};
    return current;
}

}  // namespace
}  // namespace maclaurin

int64_t maclaurin_layout() {
    uint64_t layout = 0;
    for (const uint64_t size : {sizeof(MaclaurinAttention), sizeof(MaclaurinLinear), sizeof(MaclaurinDelta),
                                sizeof(MaclaurinConv), sizeof(MaclaurinScan), sizeof(MaclaurinGated),
                                sizeof(MaclaurinSelective), sizeof(MaclaurinPiecewise), sizeof(MaclaurinTurn),
                                 sizeof(MaclaurinMeanFilter), sizeof(MaclaurinConvStep), sizeof(MaclaurinMlp)})
        layout = (layout * 1021 + size) % (uint64_t{1} << 53);
    return static_cast<int64_t>(layout);
}

void maclaurin_prefer_large_pages(void* data, int64_t bytes) {
    maclaurin::prefer_large_pages(data, static_cast<size_t>(bytes));
}

const char* maclaurin_isa() { return maclaurin::chosen().load()->name; }

int32_t maclaurin_choose_isa(const char* name) {
    const maclaurin::Kernels* kernels = maclaurin::named(name);
    if (kernels == nullptr) return 1;
    maclaurin::chosen().store(kernels);
    return 0;
}

void maclaurin_use_openmp(void* parallel) {
    maclaurin::use_openmp(reinterpret_cast<maclaurin::OpenmpParallel>(parallel));
}

using maclaurin::chosen;

int32_t maclaurin_quadratic_forward(const MaclaurinAttention* call) { return !chosen().load()->quadratic_forward(*call); }
int32_t maclaurin_quadratic_backward(const MaclaurinAttention* call) { return !chosen().load()->quadratic_backward(*call); }
int32_t maclaurin_chunked_forward(const MaclaurinAttention* call) { return !chosen().load()->chunked_forward(*call); }
int32_t maclaurin_chunked_backward(const MaclaurinAttention* call) { return !chosen().load()->chunked_backward(*call); }
int32_t maclaurin_step(const MaclaurinBuffer* buffer, const MaclaurinToken* token) {
    if (maclaurin::grows(*buffer, *token)) return 2;
    maclaurin::put_token(*buffer, *token);
    const MaclaurinAttention call = maclaurin::as_attention(*buffer, *token);
    const maclaurin::Kernels* kernels = chosen().load();
    return !(maclaurin::has_state(call) ? kernels->chunked_forward(call) : kernels->quadratic_forward(call));
}
int32_t maclaurin_step_rows(const MaclaurinRows* rows) {
    if (maclaurin::any_grows(*rows)) return 2;
    return !maclaurin::step_rows(*chosen().load(), *rows);
}
int32_t maclaurin_linear_forward(const MaclaurinLinear* call) { return !chosen().load()->linear_forward(*call); }
int32_t maclaurin_linear_backward(const MaclaurinLinear* call) { return !chosen().load()->linear_backward(*call); }
int32_t maclaurin_delta_forward(const MaclaurinDelta* call) { return !chosen().load()->delta_forward(*call); }
int32_t maclaurin_delta_backward(const MaclaurinDelta* call) { return !chosen().load()->delta_backward(*call); }
int32_t maclaurin_conv_forward(const MaclaurinConv* call) { return !chosen().load()->conv_forward(*call); }
int32_t maclaurin_conv_backward(const MaclaurinConv* call) { return !chosen().load()->conv_backward(*call); }
int32_t maclaurin_scan_forward(const MaclaurinScan* call) { return !chosen().load()->scan_forward(*call); }
int32_t maclaurin_scan_backward(const MaclaurinScan* call) { return !chosen().load()->scan_backward(*call); }
int32_t maclaurin_gated_forward(const MaclaurinGated* call) { return !chosen().load()->gated_forward(*call); }
int32_t maclaurin_gated_backward(const MaclaurinGated* call) { return !chosen().load()->gated_backward(*call); }
int32_t maclaurin_selective_forward(const MaclaurinSelective* call) { return !chosen().load()->selective_forward(*call); }
int32_t maclaurin_selective_backward(const MaclaurinSelective* call) { return !chosen().load()->selective_backward(*call); }
int32_t maclaurin_piecewise_forward(const MaclaurinPiecewise* call) { return !chosen().load()->piecewise_forward(*call); }
int32_t maclaurin_piecewise_backward(const MaclaurinPiecewise* call) { return !chosen().load()->piecewise_backward(*call); }
int32_t maclaurin_turn_forward(const MaclaurinTurn* call) { return !chosen().load()->turn_forward(*call); }
int32_t maclaurin_mean_filter_forward(const MaclaurinMeanFilter* call) { return !chosen().load()->mean_filter_forward(*call); }
int32_t maclaurin_mean_filter_backward(const MaclaurinMeanFilter* call) { return !chosen().load()->mean_filter_backward(*call); }
int32_t maclaurin_conv_step(const MaclaurinConvStep* call) { return !chosen().load()->conv_step(*call); }
int32_t maclaurin_mlp_forward(const MaclaurinMlp* call) { return !chosen().load()->mlp_forward(*call); }
int32_t maclaurin_any_nan(const float* numbers, int64_t count) {
    return chosen().load()->any_nan(numbers, count);
}
