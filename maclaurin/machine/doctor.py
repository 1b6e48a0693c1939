"""What this machine has, what Maclaurin can use of it, and whether its arithmetic can be trusted."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
from collections.abc import Iterable
from typing import Any

import torch

from maclaurin.machine.bfloat16 import bf16_verdict
from maclaurin.machine.inventory import devices, versions
from maclaurin.machine.kernels import Finding, examine_native, examine_torch
from maclaurin.machine.natives import what_is_native
from maclaurin.ops import gpu, native
from maclaurin.ops.crossover import tuned_file
from maclaurin.ops.native.library import BACKEND_VARIABLE

WRONG = "WRONG"


def examine() -> dict[str, Any]:
    """Versions, devices, backends, checks, a list of what is wrong and a list of what is missing."""
    torch_findings, native_findings = list(examine_torch()), list(examine_native()) if native.available() else []
    checks = {
        "torch backend in float64": verdict(torch_findings, "of what float64 may be off by"),
        **{f"native {op}": text for op, text in _by_op(native_findings).items()},
        "bfloat16 matrix product": bf16_verdict(),
    }
    report: dict[str, Any] = {
        "versions": versions(),
        "devices": devices(),
        "backends": _backends(),
        "native": what_is_native(),
        "compiler": shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++"),
        "checks": checks,
        "wrong": [f"{x.op}, {x.what}: {x.wrong}" for x in torch_findings + native_findings if x.wrong],
    }
    report["missing"] = _missing(report)
    return report


def verdict(findings: Iterable[Finding], unit: str) -> str:
    """All of them in a line: the first that is wrong, or how close the worst came to what is allowed."""
    found = list(findings)
    wrong = [x for x in found if x.wrong]
    if wrong:
        more = f" ({len(wrong)} of {len(found)} checks)" if len(wrong) > 1 else ""
        return f"{WRONG}: {wrong[0].what}: {wrong[0].wrong}{more}; do not train here"
    return f"ok ({len(found)} {'check' if len(found) == 1 else 'checks'}, at most {max(x.share for x in found):.0%} {unit})"


def _by_op(findings: list[Finding]) -> dict[str, str]:
    names = dict.fromkeys(x.op for x in findings)
    return {name: verdict((x for x in findings if x.op == name), "of the error allowed") for name in names}


def _backends() -> dict[str, str]:
    tuned = tuned_file()
    return {
        "torch": "ready: every op, on every device of PyTorch",
        "native": _native(),
        "triton": _triton(),
        BACKEND_VARIABLE: os.environ.get(BACKEND_VARIABLE) or "not set: the faster one that can",
        "lengths at which forms change": f"measured here: {tuned}" if tuned.exists() else f"built in ({tuned} is not there)",
    }


def _triton() -> str:
    if not gpu.has_triton():
        return "not installed: on a GPU the torch backend computes everything"
    if not torch.cuda.is_available():
        return "installed, without a CUDA or ROCm GPU that PyTorch sees; other devices run the torch backend"
    return f"ready: {torch.cuda.get_device_name()} (`maclaurin doctor --gpu` checks it)"


def _native() -> str:
    if not native.available():
        return "not built: reinstall maclaurin where a C++ compiler is found, or use the slower torch backend"
    return f"ready: {native.isa()}, {torch.get_num_threads()} threads"


def _missing(report: dict[str, Any]) -> list[str]:
    missing = []
    if report["compiler"] is None:
        missing.append("no C++ compiler: torch.compile and building the native backend will not work, everything else does")
    if not torch.cuda.is_available() and not torch.backends.mps.is_available():
        missing.append("no GPU: the CPU is used")
    if importlib.util.find_spec("transformers") is None:
        missing.append("no transformers: the comparison with its Mamba-2 is skipped by the tests")
    return missing
