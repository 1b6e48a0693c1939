// All kernels of one variant: compiled several times, with the flags of each instruction set.
#include "kernels.h"

#include "chunked_backward.h"
#include "chunked_forward.h"
#include "conv.h"
#include "conv_step.h"
#include "delta_backward.h"
#include "delta_forward.h"
#include "delta_step.h"
#include "gated.h"
#include "linear_backward.h"
#include "linear_forward.h"
#include "linear_step.h"
#include "mean_filter.h"
#include "mlp.h"
#include "nan.h"
#include "piecewise.h"
#include "quadratic_backward.h"
#include "quadratic_forward.h"
#include "selective.h"
#include "step.h"
#include "step_softmax.h"
#include "step_state.h"
#include "turn.h"

namespace maclaurin::MACLAURIN_VARIANT {

// One new token has kernels of its own, behind the same interface.
inline bool quadratic(const MaclaurinAttention& call) {
    if (call.T == 1 && !call.exponential) return step_over_keys(call);
    return call.T == 1 && call.total.data == nullptr ? step_softmax(call) : quadratic_forward(call);
}

inline bool chunked(const MaclaurinAttention& call) {
    const bool step = call.T == 1 && has_state(call) && (call.folded == 0 || call.folded == call.S);
    return step ? step_through_state(call) : chunked_forward(call);
}

inline bool delta(const MaclaurinDelta& call) {
    return call.T == 1 && call.state != nullptr ? delta_step(call) : delta_forward(call);
}

inline bool linear(const MaclaurinLinear& call) {
    return call.T == 1 && call.state != nullptr ? linear_step(call) : linear_forward(call);
}

#define MACLAURIN_STRING(name) #name
#define MACLAURIN_NAME(name) MACLAURIN_STRING(name)

const Kernels kernels = {
    MACLAURIN_NAME(MACLAURIN_VARIANT),
    quadratic,
    quadratic_backward,
    chunked,
    chunked_backward,
    linear,
    linear_backward,
    delta,
    delta_backward,
    conv_forward,
    conv_backward,
    scan_forward,
    scan_backward,
    gated_forward,
    gated_backward,
    selective_forward,
    selective_backward,
    piecewise_forward,
    piecewise_backward,
    turn_forward,
    mean_filter_forward,
    mean_filter_backward,
    conv_step,
    mlp_forward,
    any_nan,
};

}  // namespace maclaurin::MACLAURIN_VARIANT
