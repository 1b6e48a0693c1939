"""The tables of MAD that papers report the mean of: one per task, each beside the published mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from maclaurin.evals.cells import Row
from maclaurin.evals.suites.mad import TASKS, mad
from maclaurin.reproduce.table import Table

PRESETS = {"minutes": "quick", "day": "standard", "paper": "paper"}


def mad_tables(rows: Mapping[str, Row], means: Mapping[str, float], controls: tuple[str, ...] = ()) -> list[Table]:
    """means: published accuracies, in percent, over all six tasks."""
    by_budget = {budget: {found.name: found for found in mad(preset)} for budget, preset in PRESETS.items()}
    return [
        Table(
            name=f"mad-{name}",
            where="the table of MAD",
            shows=f"MAD, {name}: {shows[0].lower()}{shows[1:]}",
            experiments={budget: replace(found[name], rows=rows) for budget, found in by_budget.items()},
            published=means,
            controls=controls,
            note="Published: the mean over all six tasks, in percent.",
        )
        for name, (_, shows, *_) in TASKS.items()
    ]
