"""The experiments that a command asks for. What cannot be trained is refused before any training starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from maclaurin.common.arguments import at_least_one, one_of
from maclaurin.common.choices import choices, near_miss, spelled
from maclaurin.evals.cells import Problem, Row
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.suites import OTHER_ROWS, PRESETS, SUITES
from maclaurin.evals.suites.rows import one
from maclaurin.mixers import build_mixer
from maclaurin.mixers.published import is_published, spelled_out
from maclaurin.mixers.registry import available_mixers


def plan(
    suite: str,
    preset: str = "quick",
    *,
    mixers: str | Sequence[str] = (),
    seeds: int | None = None,
    steps: int | None = None,
    learning_rates: Sequence[float] = (),
    data: Path | None = None,
) -> list[Experiment]:
    """The experiments of a suite, with the given changes; ValueError for what cannot be trained.

    mixers: names of the suite's models, or of any registered mixers, with the options that are given beside their own, as
    in `gla,2mamba:conv_width=4,gate=true`; rows of the thesis, as in `paper-2/2Mamba`; or a list with one in each item.
    data: a folder with a subfolder per dataset (`aan`, `imdb`, `cifar10`); one that is missing comes from the hub.
    """
    one_of("suite", suite, tuple(SUITES))
    one_of("preset", preset, PRESETS)
    if seeds is not None:
        at_least_one("seeds", seeds)
    for rate in learning_rates:
        if not rate > 0:
            raise ValueError(f"learning_rates must be above 0, got {rate}")
    if data is not None and not data.is_dir():
        raise ValueError(f"data must be a folder with one for each dataset, {str(data)!r} is none here")
    named = choices("mixers", mixers if isinstance(mixers, str) else ",".join(mixers))
    found = []
    for experiment in SUITES[suite](preset):
        setting = experiment.setting if steps is None else replace(experiment.setting, steps=steps)
        changed = replace(
            experiment,
            rows={spelled(*one): _row(*one, experiment) for one in named} or experiment.rows,
            setting=setting,
            seeds=experiment.seeds if seeds is None else seeds,
            learning_rates=tuple(dict.fromkeys(learning_rates)) or experiment.learning_rates,
            train=tuple(_stored(problem, data) for problem in experiment.train),
            test=tuple(_stored(problem, data) for problem in experiment.test),
            validate=tuple(_stored(problem, data) for problem in experiment.validate),
        )
        check(changed)
        found.append(changed)
    return found


def _stored(problem: Problem, data: Path | None) -> Problem:
    """The problem with the folder of its data, if there is one."""
    if data is None or not (data / problem.name).is_dir():
        return problem
    return replace(problem, options={**problem.options, "source": str(data / problem.name)})


def _row(name: str, options: dict[str, Any], experiment: Experiment) -> Row:
    if is_published(name):
        mixer, all_options = spelled_out(name, options)
        return one(mixer, **all_options)
    known = {**{name: Row((name,)) for name in available_mixers()}, **OTHER_ROWS, **experiment.rows}
    if name not in known:
        raise ValueError(f"mixers has {name!r}{near_miss(name, known)}; it may have {', '.join(known)}")
    row = known[name]
    if not options:
        return row
    if len(set(row.mixers)) > 1:
        raise ValueError(f"mixers must not have options of {name!r}, whose layers have several mixers, got {options!r:.80}")
    mixer = row.mixers[0]
    return replace(row, options={mixer: {**row.options.get(mixer, {}), **options}})


def check(experiment: Experiment) -> None:
    """Bad settings are one error now, not one per cell later."""
    tasks = [problem.task() for problem in (*experiment.train, *experiment.test, *experiment.validate)]
    sizes = {task.vocab_size for task in tasks}
    if len(sizes) > 1:
        raise ValueError(f"all tasks of {experiment.name} must have the same vocab_size, got {sorted(sizes)}")
    setting = experiment.setting
    for label, row in experiment.rows.items():
        if setting.layers % len(row.mixers):
            raise ValueError(
                f"{label!r} is a pattern of {len(row.mixers)} mixers, which must divide the {setting.layers} layers of "
                f"{experiment.name}"
            )
        causal = setting.model != "vision" and not row.bidirectional
        for name in row.mixers:
            with torch.device("meta"):
                build_mixer(name, setting.width, row.heads or setting.heads, causal=causal, **row.options.get(name, {}))
