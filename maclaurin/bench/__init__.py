"""Speed and memory as ratios against peers, measured side by side in one process: `maclaurin bench`."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from rich.console import Console

from maclaurin.bench import (
    attention,
    decode,
    forms,
    gpu,
    limits,
    memory,
    mixers,
    model,
    peers,
    precision,
    roofline,
    scale,
    sequences,
    serve,
    training,
    transformers,
)
from maclaurin.bench.results import Results, Setting
from maclaurin.common.arguments import one_of
from maclaurin.machine.allocator import keep_freed_memory
from maclaurin.machine.inventory import devices
from maclaurin.ops import linear_attention, native, power_attention, reference

PARTS: dict[str, Callable[..., Any]] = {
    "limits": limits.run,
    "attention": attention.run,
    "forms": forms.run,
    "decode": decode.run,
    "mixers": mixers.run,
    "peers": peers.run,
    "precision": precision.run,
    "memory": memory.run,
    "training": training.run,
    "model": model.run,
    "transformers": transformers.run,
    "roofline": roofline.run,
    "sequences": sequences.run,
    "scale": scale.run,
    "serve": serve.run,
    "gpu": gpu.run,
}
ON_REQUEST = ("model", "transformers", "sequences", "serve")  # whole models and several processes take minutes each


def run(
    parts: Sequence[str],
    *,
    threads: int,
    long: bool,
    console: Console,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> Results:
    """The figures of the named parts, or of all that can run here. Results are checked first: no speed of a wrong result is
    printed. options: what single parts take besides, by the name of the part."""
    for part in parts:
        one_of("part", part, tuple(PARTS))
    torch.set_num_threads(threads)
    keep_freed_memory()
    _correct_first()
    setting = Setting(
        torch=torch.__version__,
        python=platform.python_version(),
        threads=threads,
        cpu=devices()["cpu"],
        native=native.isa() if native.available() else None,
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )
    console.print(", ".join(f"{name} {value}" for name, value in setting.to_json().items()))
    options = options or {}
    found = {part: PARTS[part](console, long=long, **options.get(part, {})) for part in parts or _here()}
    return Results(setting, **found)


def _here() -> list[str]:
    absent = {*ON_REQUEST, *(() if torch.cuda.is_available() else ("gpu",))}
    return [part for part in PARTS if part not in absent]


def _correct_first() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 300, 2, 16, dtype=torch.float32, device="cpu") for _ in range(3))
    log_decay = -torch.rand(1, 300, 2, dtype=torch.float32, device="cpu")
    for op, oracle in ((power_attention, reference.power_attention), (linear_attention, reference.linear_attention)):
        q_positive, k_positive = q.abs(), k.abs()
        expected = oracle(*(x.double() for x in (q_positive, k_positive, v, log_decay)))
        for form in ("chunked", "parallel"):
            y, _ = op(q_positive, k_positive, v, log_decay, form=form, chunk_size=64)
            error = float((y - expected).norm() / expected.norm())
            if error > 2e-4:
                raise ValueError(f"{op.__name__} is wrong here (relative error {error:.1e}): no speed is measured")
