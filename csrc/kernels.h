// What every variant of the kernels offers. To add a kernel: a header with its code, an entry here and in kernels.cpp, an
// exported function in maclaurin.h and dispatch.cpp, and an operator in maclaurin/ops/native.
#pragma once
#include "maclaurin.h"

namespace maclaurin {

struct Kernels {
    const char* name;
    bool (*quadratic_forward)(const MaclaurinAttention&);
    bool (*quadratic_backward)(const MaclaurinAttention&);
    bool (*chunked_forward)(const MaclaurinAttention&);
    bool (*chunked_backward)(const MaclaurinAttention&);
    bool (*linear_forward)(const MaclaurinLinear&);
    bool (*linear_backward)(const MaclaurinLinear&);
    bool (*delta_forward)(const MaclaurinDelta&);
    bool (*delta_backward)(const MaclaurinDelta&);
    bool (*conv_forward)(const MaclaurinConv&);
    bool (*conv_backward)(const MaclaurinConv&);
    bool (*scan_forward)(const MaclaurinScan&);
    bool (*scan_backward)(const MaclaurinScan&);
    bool (*gated_forward)(const MaclaurinGated&);
    bool (*gated_backward)(const MaclaurinGated&);
    bool (*selective_forward)(const MaclaurinSelective&);
    bool (*selective_backward)(const MaclaurinSelective&);
    bool (*piecewise_forward)(const MaclaurinPiecewise&);
    bool (*piecewise_backward)(const MaclaurinPiecewise&);
    bool (*turn_forward)(const MaclaurinTurn&);
    bool (*mean_filter_forward)(const MaclaurinMeanFilter&);
    bool (*mean_filter_backward)(const MaclaurinMeanFilter&);
    bool (*conv_step)(const MaclaurinConvStep&);
    bool (*mlp_forward)(const MaclaurinMlp&);
    bool (*any_nan)(const float* numbers, int64_t count);
};

namespace avx512 {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}
namespace portable {
extern const Kernels kernels;
}

}  // namespace maclaurin
