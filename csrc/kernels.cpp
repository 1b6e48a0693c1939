// All kernels of one variant: compiled several times, with the flags of each instruction set.
#include "kernels.h"

#include "chunked_backward.h"
#include "chunked_forward.h"
#include "conv.h"
#include "linear_backward.h"
#include "linear_forward.h"
#include "quadratic_backward.h"
#include "quadratic_forward.h"

namespace maclaurin::MACLAURIN_VARIANT {

const Kernels kernels = {
#define MACLAURIN_STRING(name) #name
#define MACLAURIN_NAME(name) MACLAURIN_STRING(name)
    MACLAURIN_NAME(MACLAURIN_VARIANT),
    quadratic_forward,
    quadratic_backward,
    chunked_forward,
    chunked_backward,
    linear_forward,
    linear_backward,
    conv_forward,
    conv_backward,
};

}  // namespace maclaurin::MACLAURIN_VARIANT
