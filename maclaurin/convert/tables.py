"""A conversion on the screen: a row a student and stage."""

from __future__ import annotations

import dataclasses
import shlex
import statistics
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from maclaurin.common.sizes import size_text
from maclaurin.convert.plan import Plan

STAGES = ("untrained", "transfer", "recover")


def result_table(results: Sequence[dict[str, Any]]) -> Table:
    plan = results[0]["plan"]
    table = Table(title=f"{plan['source']}: source and converted model on held-out data")
    for column in ("student", "after"):
        table.add_column(column)
    vectors = results[0]["kind"] not in ("decoder", "maclaurin")
    columns = ("cosine", "lowest tenth", "Spearman") if vectors else ("loss", "source's loss", "gap closed", "same token")
    for column in (*columns, "attention error", "attention KL", "seconds", "of all cores"):
        table.add_column(column, justify="right")
    for result in results:
        for stage in STAGES:
            if stage in result["stages"]:
                table.add_row(name_of(result["plan"]), stage, *_cells(result, stage, vectors))
    return table


def cost_table(results: Sequence[dict[str, Any]]) -> Table | None:
    """Speed and memory by length, where they were measured."""
    table = Table(title="one forward of one sequence, random weights, as many positions as needed")
    table.add_column("student")
    for column in ("length", "source", "converted", "times faster", "source's peak memory", "converted"):
        table.add_column(column, justify="right")
    for result in results:
        for row in result.get("cost", ()):
            times = [f"{row[name]:.0f} ms" for name in ("source_ms", "converted_ms")]
            sizes = [size_text(row[name]) for name in ("source_bytes", "converted_bytes")]
            table.add_row(name_of(result["plan"]), f"{row['length']:,}", *times, f"{row['ratio']:.2f}", *sizes)
    return table if table.row_count else None


def name_of(plan: dict[str, Any]) -> str:
    """What was put into the layers."""
    name: str = plan["layers"] or plan["student"]
    return name + (f", softmax in {plan['keep_softmax']}" if plan["keep_softmax"] else "")


def command_of(plan: dict[str, Any]) -> str:
    """The command of a stored plan: what is not the default."""
    defaults = {field.name: field.default for field in dataclasses.fields(Plan)}
    words = ["maclaurin", "convert", plan["source"]]
    for name, value in plan.items():
        if name != "source" and value != defaults.get(name):
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)


def _cells(result: dict[str, Any], stage: str, vectors: bool) -> list[str]:
    figures = result["stages"][stage]
    if vectors:
        cells = [f"{figures[name]:.4f}" for name in ("cosine", "lowest_tenth", "spearman")]
    else:
        cells = [f"{figures['loss']:.4f}", f"{figures['teacher_loss']:.4f}"]
        cells += [f"{gap_closed(result, stage):.0%}", f"{figures['same_token']:.1%}"]
    layers = figures["layers"]
    for name in ("error", "kl"):
        known = [layer[name] for layer in layers if name in layer]
        cells.append(f"{statistics.fmean(known):.4f}" if known else "")
    cells += [f"{figures[name]:.0f}" if name in figures else "" for name in ("seconds", "cpu_seconds")]
    return cells


def gap_closed(result: dict[str, Any], stage: str) -> float:
    """How much of the loss between the untrained conversion and the source was won back."""
    untrained, now = (result["stages"][name] for name in ("untrained", stage))
    gap: float = untrained["loss"] - untrained["teacher_loss"]
    return float((untrained["loss"] - now["loss"]) / gap) if gap > 0 else 1.0
