"""Peak memory of training: power_attention forward and backward beyond its inputs, at T and 2T, each in its own process.

Linear means a ratio of 2. The limit that the project sets itself is 2.2.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

LENGTHS = (8192, 16384, 32768)
LIMIT = 2.2
HEADS, DIM = 4, 64


def run(console: Console) -> list[dict[str, Any]]:
    rows = [json.loads(_child(T)) for T in LENGTHS]
    table = Table(title=f"power_attention forward + backward, {HEADS} heads of {DIM}: peak memory beyond the inputs")
    for column in ("T", "peak extra", "bytes a token", "ratio to T/2"):
        table.add_column(column, justify="right")
    before = None
    for row in rows:
        row["ratio"] = None if before is None else row["extra"] / before
        before = row["extra"]
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        table.add_row(str(row["T"]), f"{row['extra'] / 2**20:.0f} MiB", f"{row['extra'] / row['T']:.0f}", ratio)
    console.print(table)
    worst = max(row["ratio"] for row in rows if row["ratio"])
    console.print(f"largest ratio {worst:.2f}, limit {LIMIT}: {'holds' if worst <= LIMIT else 'DOES NOT HOLD'}")
    return rows


def _child(T: int) -> str:
    command = [sys.executable, "-m", "benchmarks.memory", str(T)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _measure(T: int) -> dict[str, int]:
    """Peak resident memory after the inputs exist and a short call has loaded every library."""
    import torch

    from maclaurin.ops import power_attention

    def inputs(length: int) -> list[torch.Tensor]:
        tensors = [torch.randn(1, length, HEADS, DIM) for _ in range(3)] + [-torch.rand(1, length, HEADS)]
        return [tensor.requires_grad_() for tensor in tensors]

    power_attention(*inputs(600), form="chunked")[0].sum().backward()
    arguments = inputs(T)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    y, _ = power_attention(*arguments, form="chunked")
    y.sum().backward()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1 if sys.platform == "darwin" else 1024
    return {"T": T, "extra": (after - before) * unit}


if __name__ == "__main__":
    print(json.dumps(_measure(int(sys.argv[1]))))
