"""What there is: the versions of packages, and the devices that PyTorch can compute on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

import torch

PACKAGES = ("torch", "numpy", "safetensors", "typer", "rich", "transformers", "triton")


def versions() -> dict[str, str | None]:
    """Of Maclaurin, Python and the packages it uses; None where one is not installed."""
    return {
        "maclaurin": _version("maclaurin"),
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def devices() -> dict[str, str]:
    """What PyTorch can compute on."""
    found = {"cpu": f"{_cpu_name()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"}
    for index in range(torch.cuda.device_count()):
        found[f"cuda:{index}"] = torch.cuda.get_device_name(index)
    if torch.backends.mps.is_available():
        found["mps"] = "Apple GPU"
    return found


def load() -> float | None:
    """The load average of the last minute, what is measured here included; None where the system does not say."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def load_text(average: float | None) -> str:
    return "at an unknown load" if average is None else f"at a load of {average:.1f} on {os.cpu_count()} cores"


def _cpu_name() -> str:
    """Linux names the model in a file only; `platform` then knows no more than the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()
