"""Mechanisms against each other at an equal budget: the same data in the same order, the same steps, the same parameters.

Every run is a process of its own (`child.py`), so that its peak memory is its own, and an interrupted comparison
goes on run by run. Parameter counts are matched by the width of the MLPs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maclaurin.common.arguments import at_least_one
from maclaurin.common.files import read_json, write_json
from maclaurin.machine.inventory import load
from maclaurin.processes.children import APART, ended, lifeline
from maclaurin.processes.waiting import ASLEEP
from maclaurin.training.checkpoints import checkpoints, remove_own
from maclaurin.training.contenders import Contender, chosen
from maclaurin.training.model_size import matched_width, parameters
from maclaurin.training.recipe import Recipe, for_all
from maclaurin.training.statistics import Figures, Standing, ranked, standing

# fields that may differ without changing the result
NO_MATTER = {"output", "corpus", "save_every", "keep", "track", "eval_every"}


@dataclass(frozen=True)
class Run:
    """One contender and seed: its folder, and its result once there is one."""

    name: str
    seed: int
    recipe: Recipe
    parameters: int

    @property
    def result_path(self) -> Path:
        return Path(self.recipe.output) / "result.json"

    def result(self) -> dict[str, Any] | None:
        if not self.result_path.exists():
            return None
        result: dict[str, Any] = read_json(self.result_path)
        for name in ("held_out_loss", "peak_bytes", "seconds", "tokens_per_second"):
            value = result.get(name)
            may_be_none = name in ("tokens_per_second", "peak_bytes") and name in result
            if not (value is None and may_be_none) and not _is_number(value):
                raise ValueError(f"{self.result_path} must have a number as {name}, got {value!r:.40}")
        self._check_recipe()
        return result

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


def plan(base: Recipe, mixers: str | Sequence[str], seeds: int) -> list[Run]:
    """The runs of the contenders, seed by seed from the recipe's own, so that an early look compares all of them."""
    at_least_one("seeds", seeds)
    matched = {name: _matched(base, contender) for name, contender in chosen(mixers).items()}
    runs = []
    for seed in range(base.seed, base.seed + seeds):
        for name, own in matched.items():
            output = str(Path(base.output) / f"{_folder(name)}-seed{seed}")
            recipe = dataclasses.replace(own, output=output, seed=seed)
            runs.append(Run(name, seed, recipe, parameters(recipe)))
    return runs


def _folder(name: str) -> str:
    """The name of a contender without what file systems refuse; a checksum tells apart what would become the same."""
    plain = re.sub(r"[^\w.=+-]+", ",", name)
    return plain if len(plain) <= 80 and plain == name.replace(":", ",") else f"{plain[:60]}-{zlib.crc32(name.encode()):08x}"


def _matched(base: Recipe, contender: Contender) -> Recipe:
    """The recipe with MLPs as wide as it takes to match the parameters of softmax."""
    softmax = dataclasses.replace(base, mixer="softmax", mixer_options="{}")
    options = json.dumps(for_all(contender.mixer, contender.options))
    own = dataclasses.replace(base, mixer=contender.mixer, mixer_options=options)
    config = base.config()
    one_wider = 3 * config.hidden_size * config.num_hidden_layers
    width = matched_width(config.intermediate_size, parameters(own) - parameters(softmax), one_wider)
    if width < 1:
        raise ValueError(f"mixer {contender.mixer!r} alone has more parameters than softmax with its MLPs of this size")
    return dataclasses.replace(own, intermediate_size=width)


def execute(run: Run, watch: Callable[[dict[str, Any]], None]) -> None:
    """Train it to its end, from its last checkpoint if it has one; `watch` sees its latest figures every second."""
    output = Path(run.recipe.output)
    recipe = json.dumps(dataclasses.asdict(run.recipe))
    resume = ["--resume"] if checkpoints(output) else []
    started = time.monotonic()
    output.mkdir(parents=True, exist_ok=True)
    with open(output / "output.txt", "w") as stream, lifeline() as stdin:
        process = subprocess.Popen(
            [sys.executable, "-m", "maclaurin.training.child", recipe, *resume],
            stdin=stdin,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=ASLEEP | os.environ,
            **APART,
        )
        try:
            while (end := ended(process)) is None:
                watch(latest(output))
                time.sleep(1)
        except BaseException:
            process.terminate()  # it saves a checkpoint first
            try:
                process.wait()
            except BaseException:  # interrupted a second time
                process.kill()
                process.wait()
            raise
    code, peak_bytes = end
    if code != 0:
        raise ValueError(
            f"{run.name} (seed {run.seed}) failed: {last_line(run) or 'no output'}; see {output / 'output.txt'}"
        )
    figures = latest(output)
    for name in ("eval_loss", "train_runtime"):
        if not _is_number(figures.get(name)):
            raise ValueError(f"{output / 'log.jsonl'} must have a number as {name}, got {figures.get(name)!r:.40}")
    tokens = run.recipe.steps * run.recipe.tokens_per_step
    result = {
        "held_out_loss": figures["eval_loss"],
        # a resumed run has timed its last part only
        "tokens_per_second": None if resume else tokens / figures["train_runtime"],
        "peak_bytes": peak_bytes,
        "seconds": time.monotonic() - started,
        "load": load(),
    }
    write_json(run.result_path, result)
    remove_own(output)  # its model and its log stay, all that the tables and the page need


def last_line(run: Run) -> str:
    """Of what its process has printed."""
    lines = (Path(run.recipe.output) / "output.txt").read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


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


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def summary(runs: Sequence[Run]) -> list[Standing]:
    """One per contender, best first, over the seeds that are done."""
    rows = []
    for name in dict.fromkeys(run.name for run in runs):
        own = [run for run in runs if run.name == name]
        done = [
            Figures(result["held_out_loss"], result["tokens_per_second"], result["peak_bytes"], result.get("load"))
            for run in own
            if (result := run.result()) is not None
        ]
        rows.append(standing(name, own[0].recipe, done, contender=name))
    return ranked(rows)
