"""One thread a worker, one seed a test, and uninitialised memory of the package poisoned with NaN."""

import os

# before torch is imported: some virtual CPUs advertise AMX and then kill the process that uses it
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import json
import signal
import sys

import pytest
import torch
import torch.utils._device
from hypothesis import HealthCheck, settings

settings.register_profile(
    "suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("suite")

# a shell starts background processes with Ctrl-C ignored, and those that tests interrupt would inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)


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


torch.utils._device._device_constructors()  # keeps the functions that it finds first: torch's own, not the poisoned ones


@pytest.fixture(autouse=True)
def _uninitialised_memory_is_nan(monkeypatch):
    """A read of memory that nobody wrote shows up as NaN instead of as a test that usually passes."""
    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, _poisoned(getattr(torch, name)))
    for name in ("new_empty",):
        monkeypatch.setattr(torch.Tensor, name, _poisoned(getattr(torch.Tensor, name)))


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The folder of a finished run: a small 2mamba model, its tokenizer, recipe and log."""
    from maclaurin.training import Recipe, train

    folder = tmp_path_factory.mktemp("trained")
    rows = (json.dumps({"text": f"{i} green bottles hanging on the wall\n" * (1 + i % 4)}) for i in range(150))
    (folder / "songs.jsonl").write_text("\n".join(rows))
    fields = {"length": 32, "batch_size": 2, "steps": 4, "eval_rows": 3, "warmup_steps": 1, "learning_rate": 3e-3}
    recipe = Recipe(output=str(folder / "run"), corpus=str(folder / "songs.jsonl"), **fields)
    train(recipe, cache=folder / "cache")
    return folder / "run"
