"""What this machine has, what Maclaurin can use of it, and whether its arithmetic can be trusted."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
from typing import Any

import torch

from maclaurin.machine.bfloat16 import bf16_verdict
from maclaurin.machine.inventory import devices, versions
from maclaurin.ops import native, power_attention, reference


def examine() -> dict[str, Any]:
    """Versions, devices, backends, checks, and a list of what is missing."""
    report: dict[str, Any] = {
        "versions": versions(),
        "devices": devices(),
        "backends": {"torch": "ready: every op", "native": _native()},
        "compiler": shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++"),
        "checks": {"forms agree": _forms_agree(), "bfloat16 matrix product": bf16_verdict()},
    }
    report["missing"] = _missing(report)
    return report


def _native() -> str:
    if not native.available():
        return "not built: reinstall maclaurin where a C++ compiler is found, or use the slower torch backend"
    return f"ready ({native.isa()}): power_attention of order 2 and softmax_attention with decay, in float32 on the CPU"


def _forms_agree() -> str:
    """The hand-derived backward pass against autograd through the reference, on this machine."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, 40, 2, 8, dtype=torch.float64, device="cpu", generator=generator).requires_grad_() for _ in range(3)
    )
    log_decay = -torch.rand(1, 40, 2, dtype=torch.float64, device="cpu", generator=generator)
    y, _ = power_attention(q, k, v, log_decay, form="chunked", chunk_size=16)
    expected = reference.power_attention(q, k, v, log_decay)
    error = (y - expected).abs().max()
    gradients = zip(torch.autograd.grad(y.sum(), (q, k, v)), torch.autograd.grad(expected.sum(), (q, k, v)), strict=True)
    gradient_error = max((got - wanted).abs().max() for got, wanted in gradients)
    verdict = "ok" if error < 1e-10 and gradient_error < 1e-8 else "WRONG: do not train here"
    return f"{verdict} (float64 error {error:.0e}, gradients {gradient_error:.0e})"


def _missing(report: dict[str, Any]) -> list[str]:
    missing = []
    if report["compiler"] is None:
        missing.append("no C++ compiler: torch.compile and building the native backend will not work, everything else does")
    if not torch.cuda.is_available() and not torch.backends.mps.is_available():
        missing.append("no GPU: the CPU is used")
    if importlib.util.find_spec("transformers") is None:
        missing.append("no transformers: the comparison with its Mamba-2 is skipped by the tests")
    return missing
