"""Triton kernels compile for GPUs that are not here, and stay in registers."""

import pytest

from maclaurin.cli import main
from maclaurin.machine import gpu_compile, gpu_table

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(gpu_compile.INTERPRETED, reason="interpreted kernels are not compiled")


def test_the_kept_table_is_that_of_the_tiles_and_nothing_spills_too_much():
    """A kernel whose tile has changed is to be compiled again: `scripts/keep_gpu_table.py`."""
    rows = gpu_table.kept()
    assert rows == [row for _, _, row in gpu_table.in_order(rows)]
    assert not [str(row) for row in rows if not row.allowed]


def test_a_table_is_kept_as_it_is_and_summed_up_by_its_largest(tmp_path):
    rows = [
        gpu_compile.Compiled("conv_forward", "sm_80", "bf16", 32, "32x32, 4, 2", 40, 0, 0),
        gpu_compile.Compiled("state_walk backward", "sm_80", "bf16", 64, "32x8, 4, 2", 255, 8, 2048),
        gpu_compile.Compiled("direct_backward_q", "sm_80", "tf32", 64, "64x32, 8, 2", 200, 64, 1024),
    ]
    gpu_table.keep(rows, tmp_path / "kept.csv")
    assert gpu_table.kept(tmp_path / "kept.csv") == rows
    forward, backward = gpu_table.largest(rows)
    assert forward == gpu_table.Largest("sm_80", "forward", 1, 40, 0, 0)
    assert str(backward) == "sm_80   backward   2 kernels: 255 registers, 64 B of spills, 2 KB shared at most"


@pytest.mark.parametrize("kernel", ["direct_forward", "step_join"])
def test_kernels_compile_without_spills(kernel):
    case = next(case for case in gpu_compile.cases("sm_80", "bf16", 32) if case.kernel == kernel)
    found = gpu_compile.compiled(case, "sm_80")
    assert found.registers > 0 and found.allowed, found


@pytest.mark.slow
@pytest.mark.parametrize("target", gpu_compile.TARGETS)
def test_every_kernel_of_the_tile_table_stays_in_registers(target):
    spilled = [str(found) for found in gpu_compile.table([target]) if not found.allowed]
    assert not spilled, spilled


def test_unknown_targets_are_named_in_one_sentence():
    with pytest.raises(ValueError, match="--gpu-compile must be one of"):
        gpu_compile.checked_targets("sm_80,voodoo")
    with pytest.raises(ValueError, match=r"--gpu-compile must be one of 'all', 'kept', .*, got 'voodoo'"):
        gpu_compile.checked_targets("voodoo")


def test_the_kept_table_is_printed(capsys):
    with pytest.raises(SystemExit) as end:
        main(["doctor", "--gpu-compile", "kept"])
    printed = capsys.readouterr().out
    assert end.value.code == 0
    assert "sm_80   bf16  64 chunk_forward       tile 128x64, 8, 2" in printed
    assert "sm_80   backward  54 kernels: " in printed
