"""Triton kernels compile for GPUs that are not here, and stay in registers."""

import pytest

from maclaurin.machine import gpu_compile

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(gpu_compile.INTERPRETED, reason="interpreted kernels are not compiled")


@pytest.mark.parametrize("kernel", ["direct_forward", "step_join"])
def test_kernels_compile_without_spills(kernel):
    case = next(case for case in gpu_compile.cases("sm_80", "bf16", 32) if case.kernel == kernel)
    found = gpu_compile.compiled(case, "sm_80")
    assert found.registers > 0 and found.allowed, found


@pytest.mark.slow
@pytest.mark.parametrize("target", gpu_compile.TARGETS)
def test_every_kernel_of_the_tile_table_stays_in_registers(target):
    spilled = [found for found in gpu_compile.table([target]) if not found.allowed]
    assert not spilled, spilled


def test_unknown_targets_are_named_in_one_sentence():
    with pytest.raises(ValueError, match="--gpu-compile must be one of"):
        gpu_compile.checked_targets("sm_80,voodoo")
