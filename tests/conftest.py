"""One thread a worker, one seed a test, and uninitialised memory of the package poisoned with NaN."""

import os

# before torch is imported: some virtual CPUs advertise AMX and then kill the process that uses it
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import sys

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("suite")


@pytest.fixture(autouse=True)
def _one_thread_one_seed():
    torch.set_num_threads(1)
    torch.manual_seed(0)


def _poisoned(allocate):
    def wrapper(*args, **kwargs):
        tensor = allocate(*args, **kwargs)
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.startswith("maclaurin") and tensor.is_floating_point():
            tensor.fill_(float("nan"))
        return tensor

    return wrapper


@pytest.fixture(autouse=True)
def _uninitialised_memory_is_nan(monkeypatch):
    """A read of memory that nobody wrote shows up as NaN instead of as a test that usually passes."""
    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, _poisoned(getattr(torch, name)))
    for name in ("new_empty",):
        monkeypatch.setattr(torch.Tensor, name, _poisoned(getattr(torch.Tensor, name)))
