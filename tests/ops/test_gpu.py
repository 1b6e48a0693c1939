"""The Triton backend as far as it can be seen without a GPU: who is refused, what is imported, and its laws, interpreted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from maclaurin.ops import gpu, linear_attention, power_attention

ROOT = Path(__file__).parents[2]


def run(*command, **environment):
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False
    )


def inputs(T=4, **options):
    return [torch.randn(1, T, 1, 4, **options) for _ in range(3)]


@pytest.mark.skipif(gpu.INTERPRETED, reason="here the CPU stands for a GPU")
def test_triton_on_the_cpu_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match=r"backend='triton' needs tensors on a CUDA or ROCm GPU .* not on cpu"):
        power_attention(*inputs(), backend="triton")
    with pytest.raises(ValueError, match="backend='triton' needs an op that has Triton kernels"):
        linear_attention(*inputs(), backend="triton")


def test_kernels_are_imported_when_they_are_used():
    """`import maclaurin` imports no Triton, and the ops, to which PyTorch's FLOP counter brings it, none of the kernels."""
    code = "import sys, maclaurin; print('triton' in sys.modules)"
    assert run("-c", code).stdout.strip() == "False"
    code = "import sys, maclaurin.ops; print([name for name in sys.modules if name.endswith('_kernels')])"
    assert "maclaurin" not in run("-c", code).stdout


def test_the_environment_can_ask_for_triton():
    """What has kernels says why they cannot run, the rest runs in torch."""
    code = (
        "import torch; from maclaurin import ops; x = torch.randn(1, 4, 1, 4); ops.linear_attention(x, x, x)\n"
        "try: ops.power_attention(x, x, x)\n"
        "except ValueError as error: print(error)"
    )
    said = run("-c", code, MACLAURIN_BACKEND="triton", TRITON_INTERPRET="0")
    assert "MACLAURIN_BACKEND=triton needs tensors on a CUDA or ROCm GPU" in said.stdout, said.stderr


def test_operators_know_their_shapes_in_bfloat16():
    """What the kernels belong to says what they return: outputs as the queries are, divisors and states in float32."""
    q, k, v = inputs(T=9, device="meta", dtype=torch.bfloat16)
    y, total, state = torch.ops.maclaurin.chunked(q, k, v, None, None, 0.5, True, 4, 8)
    assert y.dtype == torch.bfloat16 and total.dtype == state.dtype == torch.float32
    assert y.shape == (1, 9, 1, 4) and state.shape == (1, 1, 10, 5)


@pytest.mark.parametrize("marks", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_laws_hold_in_the_interpreter(marks):
    pytest.importorskip("triton")
    command = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", marks, "tests/ops/interpreted")
    found = run(*command, TRITON_INTERPRET="1")
    assert found.returncode == 0, found.stdout[-4000:]
