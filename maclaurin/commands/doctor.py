"""`maclaurin doctor`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from maclaurin.commands.output import Json, print_json, screen

GPU_REPORT = Path("maclaurin-gpu.json")


def doctor(
    tune: Annotated[
        bool, typer.Option("--tune", help="Measure which form is fastest at which length, and store it.")
    ] = False,
    gpu: Annotated[
        bool, typer.Option("--gpu", help="Check the Triton kernels on this GPU, measure them, and write maclaurin-gpu.json.")
    ] = False,
    gpu_compile: Annotated[
        str,
        typer.Option(
            "--gpu-compile", help="Compile every Triton kernel for sm_80,sm_90,… or all, without a GPU; kept: as it was."
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Print versions, devices, backends and what is missing, and check the arithmetic of this machine.

    Every native operator is compared with float64, forward and backward, in every form. If one is wrong, the exit code is 1.
    """
    from maclaurin.machine.doctor import WRONG, examine

    if gpu:
        return _check_gpu(as_json)
    if gpu_compile:
        return _compile_for_gpus(gpu_compile, as_json)
    if tune:
        from maclaurin.bench.tune import measure
        from maclaurin.ops.crossover import store, tuned_file

        store(measure(partial(print, file=sys.stderr)))
        print(f"stored in {tuned_file()}", file=sys.stderr)
    report = examine()
    if as_json:
        print_json(report)
    else:
        screen().print(_table(report))
    if report["wrong"]:
        for sentence in report["wrong"]:
            print(f"{WRONG}: {sentence}", file=sys.stderr)
        raise typer.Exit(1)


def _check_gpu(as_json: bool) -> None:
    """Numerics and times of this GPU, as a file to keep or to send in; the exit code is 1 if a kernel is wrong."""
    from maclaurin.common.files import write_json
    from maclaurin.machine.gpu_check import examine

    report = examine(partial(print, file=sys.stderr, flush=True))
    write_json(GPU_REPORT, report)
    if as_json:
        print_json(report)
    else:
        said = f"wrong: {', '.join(report['wrong'])}" if report["wrong"] else "every kernel is right"
        print(f"{report['gpu']}: {said}; all figures are in {GPU_REPORT}")
    if report["wrong"]:
        raise typer.Exit(1)


def _compile_for_gpus(targets: str, as_json: bool) -> None:
    """A row per kernel, and the largest figures; the exit code is 1 if a kernel spills more registers than it may."""
    from maclaurin.machine.gpu_compile import checked_targets, table
    from maclaurin.machine.gpu_table import kept, largest

    found = []
    for one in kept() if targets == "kept" else table(checked_targets(targets)):
        found.append(one)
        if not as_json:
            print(one, flush=True)
    if as_json:
        print_json([asdict(one) for one in found])
    else:
        for row in largest(found):
            print(row)
    if not all(one.allowed for one in found):
        raise typer.Exit(1)


def _table(report: dict[str, Any]) -> Table:
    table = Table(show_header=False)
    for section in ("versions", "devices", "backends"):
        for key, value in report[section].items():
            table.add_row(section, key, "not installed" if value is None else value)
    for op, calls in report["native"].items():
        for what, runs in calls.items():
            table.add_row("native", f"{op}, {what}", runs)
    for key, value in report["checks"].items():
        table.add_row("checks", key, value)
    table.add_row("compiler", "C++", report["compiler"] or "not found")
    for sentence in report["missing"]:
        table.add_row("missing", "", sentence)
    return table
