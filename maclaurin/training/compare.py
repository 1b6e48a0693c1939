"""Mechanisms against each other at an equal budget: the same data in the same order, the same steps, the same parameters.

The first seed of every contender is trained with all learning rates, the other seeds with the one that has the lowest
validation loss; the loss that is compared is that of the test part. Every run is a process of its own (`starting.py`), so
that its peak memory is its own, and an interrupted comparison goes on run by run. Parameter counts are matched by the width
of the MLPs.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maclaurin.common.arguments import at_least_one
from maclaurin.common.files import read_json
from maclaurin.training.contenders import Contender, chosen
from maclaurin.training.model_size import matched_width, parameters
from maclaurin.training.recipe import Recipe
from maclaurin.training.statistics import Figures, Standing, best_rate, ranked, standing

# fields that may differ without changing the result
NO_MATTER = {"output", "corpus", "save_every", "keep", "track", "eval_every"}
FIGURES = ("held_out_loss", "peak_bytes", "seconds", "tokens_per_second")
MAY_BE_NONE = ("tokens_per_second", "peak_bytes")


@dataclass(frozen=True)
class Run:
    """One contender, seed and learning rate: its folder, and its result once there is one."""

    name: str
    seed: int
    recipe: Recipe
    parameters: int
    may_diverge: bool = False  # one of several learning rates, each of which may be too large

    @property
    def result_path(self) -> Path:
        return Path(self.recipe.output) / "result.json"

    def result(self) -> dict[str, Any] | None:
        if not self.result_path.exists():
            return None
        result: dict[str, Any] = read_json(self.result_path)
        if not (self.may_diverge and isinstance(result.get("diverged"), str)):
            for name in (*FIGURES, *["test_loss"] * bool(self.recipe.test_rows)):
                value = result.get(name)
                may_be_none = name in MAY_BE_NONE and name in result
                if not (value is None and may_be_none) and not is_number(value):
                    raise ValueError(f"{self.result_path} must have a number as {name}, got {value!r:.40}")
        self._check_recipe()
        return result

    def validation_loss(self) -> float | None:
        """By which its learning rate is judged: infinite if it diverged, None while there is no result."""
        result = self.result()
        if result is None:
            return None
        return math.inf if "diverged" in result else float(result["held_out_loss"])

    def _check_recipe(self) -> None:
        """Refuses a result of another recipe, such as one with other steps."""
        folder = Path(self.recipe.output)
        if not (folder / "recipe.json").exists():
            return
        before = Recipe.load(folder)
        for name, value in vars(self.recipe).items():
            other = getattr(before, name)
            if name not in NO_MATTER and other != value:
                raise ValueError(f"{str(folder)!r} holds a result with {name} {other!r}, not {value!r}: give another output")


def plan(
    base: Recipe,
    mixers: str | Sequence[str] = "",
    seeds: int = 1,
    *,
    learning_rates: Sequence[float] = (),
    block: str = "gated",
) -> list[Run]:
    """The runs that are known before any is done, seed by seed from the recipe's own, so that an early look compares all.

    With several learning rates these are the runs of the first seed; `following` gives the others.
    """
    at_least_one("seeds", seeds)
    rates = tuple(dict.fromkeys(learning_rates)) or (base.learning_rate,)
    for rate in rates:
        if not 0 < rate < math.inf:
            raise ValueError(f"learning_rates must be above 0, got {rate}")
    matched = {name: _matched(base, contender) for name, contender in chosen(mixers, block).items()}
    several = len(rates) > 1
    return [
        _run(name, own, seed, rate, base.output, several=several)
        for seed in range(base.seed, base.seed + (1 if several else seeds))
        for rate in rates
        for name, own in matched.items()
    ]


def following(runs: Sequence[Run], seeds: int) -> list[Run]:
    """The other seeds of the contenders whose learning rates have all been tried, with the best of them."""
    found = []
    for name in dict.fromkeys(run.name for run in runs):
        own = [run for run in runs if run.name == name]
        tried = {run.recipe.learning_rate: run.validation_loss() for run in own}
        losses = {rate: loss for rate, loss in tried.items() if loss is not None}
        if len(tried) == 1 or len(losses) < len(tried):
            continue
        first, best = own[0], best_rate(losses)
        if losses[best] == math.inf:
            raise ValueError(f"{name} diverged with every learning rate, the smallest of which is {min(tried):g}")
        folder = str(Path(first.recipe.output).parent)
        for seed in range(first.seed + 1, first.seed + seeds):
            found.append(_run(name, first.recipe, seed, best, folder, several=True, may_diverge=False))
    return sorted(found, key=lambda run: run.seed)


def _run(
    name: str, own: Recipe, seed: int, rate: float, folder: str, *, several: bool, may_diverge: bool | None = None
) -> Run:
    rate_part = f"-rate{rate:g}" if several else ""
    output = str(Path(folder) / f"{_folder(name)}{rate_part}-seed{seed}")
    recipe = dataclasses.replace(own, output=output, seed=seed, learning_rate=rate)
    return Run(name, seed, recipe, parameters(recipe), several if may_diverge is None else may_diverge)


def _folder(name: str) -> str:
    """The name of a contender without what file systems refuse; a checksum tells apart what would become the same."""
    plain = re.sub(r"[^\w.=+-]+", ",", name)
    return plain if len(plain) <= 80 and plain == name.replace(":", ",") else f"{plain[:60]}-{zlib.crc32(name.encode()):08x}"


def _matched(base: Recipe, contender: Contender) -> Recipe:
    """The recipe with MLPs as wide as it takes to match the parameters of softmax as it was published."""
    softmax = dataclasses.replace(base, mixer="softmax", mixer_options="{}")
    own = contender.recipe(base)
    config = base.config()
    one_wider = 3 * config.hidden_size * config.num_hidden_layers
    width = matched_width(config.intermediate_size, parameters(own) - parameters(softmax), one_wider)
    if width < 1:
        raise ValueError(f"mixer {own.mixer!r} alone has more parameters than softmax with its MLPs of this size")
    return dataclasses.replace(own, intermediate_size=width)


def latest(output: Path) -> dict[str, Any]:
    """The newest value of every figure in the run's log."""
    figures: dict[str, Any] = {}
    log = output / "log.jsonl"
    for line in log.read_text(errors="replace").splitlines() if log.exists() else ():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue  # the line that is being written
        figures.update(entry if isinstance(entry, dict) else {})
    return figures


def last_line(run: Run) -> str:
    """Of what its process has printed."""
    path = Path(run.recipe.output) / "output.txt"
    lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
    return lines[-1] if lines else ""


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def summary(runs: Sequence[Run]) -> list[Standing]:
    """One per contender, best first, over the seeds that are done with its best learning rate."""
    rows = []
    for name in dict.fromkeys(run.name for run in runs):
        own = [run for run in runs if run.name == name]
        first = min(run.seed for run in own)
        losses = {run.recipe.learning_rate: run.validation_loss() for run in own if run.seed == first}
        tried = {rate: loss for rate, loss in losses.items() if loss is not None and loss < math.inf}
        rate = best_rate(tried) if tried else own[0].recipe.learning_rate
        with_it = [run for run in own if run.recipe.learning_rate == rate]
        several = len(losses) > 1
        rows.append(standing(name, with_it[0].recipe, _figures(with_it), tried=tried if several else None))
    return ranked(rows)


def _figures(runs: Sequence[Run]) -> list[Figures]:
    return [
        Figures(
            result["test_loss"] if run.recipe.test_rows else result["held_out_loss"],
            result["tokens_per_second"],
            result["peak_bytes"],
            result.get("load"),
            run.seed,
        )
        for run in runs
        if (result := run.result()) is not None
    ]
