"""Short window attention enables long-term memorization (SWAX, arXiv 2509.24552): windows of training, and recall beyond."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from maclaurin.evals.cells import Row
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.suites.swax import swax
from maclaurin.reproduce.table import Paper, Table

PLACES = ("window-{short}", "stochastic-{short}-{long}"), ("window-{middle}",), ("window-{long}",)


def _other(preset: str, memory: str, options: dict[str, Any], name: str) -> Experiment:
    """The same windows with another layer in place of the mLSTM."""
    (base,) = swax(preset)
    rows = {
        label: replace(row, mixers=("sliding-window", memory), options=_renamed(row, memory, options))
        for label, row in base.rows.items()
    }
    return replace(base, name=name, title=base.title.replace("mLSTM", name), rows=rows, published={}, source="")


def _renamed(row: Row, memory: str, options: dict[str, Any]) -> dict[str, Any]:
    return {"sliding-window": row.options["sliding-window"], memory: options}


def _places(preset: str) -> dict[str, float]:
    short, middle, long = (8, 32, 128) if preset == "quick" else (16, 64, 256)
    sizes = {"short": short, "middle": middle, "long": long}
    return {label.format(**sizes): float(place) for place, labels in enumerate(PLACES) for label in labels}


def _table(name: str, shows: str, experiments: dict[str, Experiment]) -> Table:
    return Table(
        name=name,
        where="the table of windows",
        shows=shows,
        experiments=experiments,
        published=_places("quick") | _places("standard"),
        in_words=True,
        asks=(("window-8", "window-128"), ("stochastic-8-128", "window-128"), ("window-8-tested-128", "window-8")),
        only="the published models have 1.4 billion parameters",
    )


def _both(memory: str, options: dict[str, Any], name: str) -> dict[str, Experiment]:
    return {"minutes": _other("quick", memory, options, name), "day": _other("standard", memory, options, name)}


PAPER = Paper.of(
    "Short window attention enables long-term memorization (SWAX), arXiv 2509.24552",
    _table(
        "windows",
        "Sliding windows beside an mLSTM: the shorter the window in training, the further recall reaches",
        {"minutes": swax("quick")[0], "day": swax("standard")[0]},
    ),
    _table(
        "gated-deltanet",
        "The same beside Gated DeltaNet",
        _both("gated-delta", {"conv_width": 2}, "Gated DeltaNet"),
    ),
    _table("local-global", "The same beside full softmax attention", _both("softmax", {"conv_width": 2}, "softmax")),
)
