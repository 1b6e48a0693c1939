// All kernels of one variant: compiled several times, with the flags of each instruction set.
#include "kernels.h"

#include "quadratic.h"

namespace maclaurin::MACLAURIN_VARIANT {

const Kernels kernels = {
#define MACLAURIN_STRING(name) #name
#define MACLAURIN_NAME(name) MACLAURIN_STRING(name)
    MACLAURIN_NAME(MACLAURIN_VARIANT),
    quadratic_forward,
};

}  // namespace maclaurin::MACLAURIN_VARIANT
