"""One thread a worker, one seed a test, and uninitialised memory of the package poisoned with NaN."""

import os

# before torch is imported: some virtual CPUs advertise AMX and then kill the process that uses it
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import json
import signal

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests import poison

settings.register_profile(
    "suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("suite")

# a shell starts background processes with Ctrl-C ignored, and those that tests interrupt would inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)

# a device context learns at its first use which functions make tensors: it must see them before they are wrapped below
with torch.device("meta"):
    torch.empty(0)


@pytest.fixture(autouse=True)
def _one_thread_one_seed():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _uninitialised_memory_is_nan(monkeypatch):
    """A read of memory that nobody wrote shows up as NaN instead of as a test that usually passes."""
    poison.install(monkeypatch.setattr)


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
