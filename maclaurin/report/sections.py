"""The parts of a page about training runs: results, curves, cost, state size, the runs themselves, how they were made."""

from __future__ import annotations

import dataclasses
import json
import shlex
import statistics
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from maclaurin.common.files import naming, read_json
from maclaurin.common.sizes import size_text
from maclaurin.machine.inventory import devices, load, load_text, versions
from maclaurin.mixers import build_mixer
from maclaurin.mixers.overview import crossover_length
from maclaurin.page import figures
from maclaurin.page.figures import Line, Mark, Style
from maclaurin.page.html import Cell, Chart, Code, Column, DataTable, Section
from maclaurin.report.cells import load_note, number
from maclaurin.report.cost import MEASURED, forward_ms, multiply_adds
from maclaurin.report.headline import headline, lead
from maclaurin.report.results import results, styles
from maclaurin.report.runs import Group, Points, SavedRun, comparisons, grouped
from maclaurin.training.model_size import Layers, crossover, layers
from maclaurin.training.recipe import Recipe

LENGTHS = tuple(2**n for n in range(8, 17))
STATE_LENGTHS = tuple(2**n for n in range(6, 18))
LARGEST_LAYER = 2**29  # bytes of one that is built to be counted
REFERENCE = Style("#888888", "circle-open", "dot")


def curves(groups: Sequence[Group]) -> Section:
    style = styles(groups)
    charts = []
    for key, title, caption in (
        ("train", "training loss, nats per token", "Training loss: the mean since the previous point."),
        ("validation", "validation loss, nats per token", "Validation loss: the same sequences at every evaluation."),
    ):
        lines = [line for group in groups for line in _loss_lines(group, style[group.name], key)]
        if lines:
            name = "training-loss" if key == "train" else "held-out-loss"
            charts.append(Chart(name, figures.losses(lines, title), caption + figures.hidden(lines)))
    several = any(len(group.done) > 1 for group in groups)
    means = "Lines are means over the finished seeds, bands reach from the lowest to the highest"
    intro = f"{means if several else 'Each line is one run'}{_unfinished(groups)}. "
    return Section("Loss curves", intro + "A click on a name hides it, a double click shows it alone.", charts)


def _unfinished(groups: Sequence[Group]) -> str:
    left = any(not run.finished for group in groups for run in group.runs)
    return "; each unfinished run has a dotted line of its own" if left else ""


def costs(groups: Sequence[Group], measure: bool) -> Section:
    """One layer of every mechanism; the mean layer of a hybrid."""
    mechanisms, left_out = [], []
    models, counted = {}, []
    for name, group, style in _mechanisms(groups):
        try:
            with naming(name):
                models[name] = _built(group)
                by_layer = [(multiply_adds(mixer, LENGTHS), count) for mixer, count in models[name]]
        except ValueError as error:
            left_out.append(str(error).replace("cannot be read: ", "", 1))
            continue
        mechanisms.append((name, group, style))
        counted.append(Line(name, style, LENGTHS, [_mean_layer(by_layer, T) for T in LENGTHS]))
    caption = (
        "Counted: multiply-adds of the matrix products in the chunked form, the one that trains in linear time, without "
        f"elementwise operations.{figures.hidden(counted, log=True)}"
    )
    charts = [Chart("cost-counted", figures.against_length(counted, "multiply-adds per token and layer"), caption)]
    if measure:
        charts.append(_measured([(name, style) for name, _, style in mechanisms], models))
    intro = (
        "Where a line is flat, the cost per token does not depend on the length; where it rises with the length, training "
        "takes quadratic time. For short sequences the quadratic form is cheaper, and every mixer uses it there by default."
    )
    return Section("Cost against length", f"{intro}{''.join(f' Left out: {sentence}.' for sentence in left_out)}", charts)


def _measured(mechanisms: Sequence[tuple[str, Style]], models: dict[str, Layers]) -> Chart:
    average = load()  # before the measurement adds to it
    timings = forward_ms({f"{name} {i}": mixer for name, _ in mechanisms for i, (mixer, _) in enumerate(models[name])})
    lengths = [T for T in MEASURED if all(T in times for times in timings.values())]

    def seconds(name: str, figure: str) -> list[float]:
        by_layer = [
            ({T: getattr(timings[f"{name} {i}"][T], figure) / 1000 for T in lengths}, count)
            for i, (_, count) in enumerate(models[name])
        ]
        return [_mean_layer(by_layer, T) for T in lengths]

    lines = [
        Line(name, style, lengths, seconds(name, "median"), seconds(name, "low"), seconds(name, "high"))
        for name, style in mechanisms
    ]
    caption = (
        f"Measured when this page was written: CPU time of a forward of one layer, float32, one thread of "
        f"{devices()['cpu']}, {load_text(average)}, the fastest form at each length; medians of 3 to 9 turns that all "
        f"mixers take, bars are quartiles.{figures.hidden(lines, log=True)}"
    )
    return Chart("cost-measured", figures.against_length(lines, "time per token and layer", "s"), caption)


def _built(group: Group) -> Layers:
    """A layer of each kind, to be run; refused if it is too large for this machine."""
    for mixer, _ in group.layers:
        size = sum(4 * parameter.numel() for parameter in mixer.parameters()) + mixer.state_nbytes(MEASURED[-1])
        if size > LARGEST_LAYER:
            raise ValueError(f"its layer and state take {size_text(size)}, more than {size_text(LARGEST_LAYER)}")
    return layers(group.recipe, "cpu")


def state_sizes(groups: Sequence[Group]) -> Section:
    mechanisms = _mechanisms(groups)
    lines, marks = [], []
    for name, group, style in mechanisms:
        lines.append(Line(name, style, STATE_LENGTHS, [group.state_nbytes(T) for T in STATE_LENGTHS]))
        length = crossover(group.layers)
        if length is not None and length >= STATE_LENGTHS[0]:
            marks.append(Mark(style, length, group.state_nbytes(length), f"{length:,} tokens", name))
    configs = [group.recipe.config() for group in groups]
    widths = sorted({config.hidden_size // config.num_attention_heads for config in configs})
    if "softmax" not in {group.mixer for group in groups} and len({config.hidden_size for config in configs}) == 1:
        reference = layers(dataclasses.replace(groups[0].recipe, mixer="softmax", mixer_options="{}"))
        values = [sum(count * mixer.state_nbytes(T) for mixer, count in reference) for T in STATE_LENGTHS]
        lines.append(Line("softmax, for reference", REFERENCE, STATE_LENGTHS, values))
    intro = (
        "The state of one sequence in generation, all layers, float32. A circle marks the length from which on a "
        "state is no larger than the KV cache of softmax attention. Heads are "
        f"{' and '.join(map(str, widths))} wide here; at the thesis’s 64 the crossover of 2mamba is at "
        f"{_crossover_of_the_thesis():,} tokens."
    )
    caption = f"State of one sequence against its length; both axes are logarithmic.{figures.hidden(lines, log=True)}"
    return Section(
        "State size against length",
        intro,
        [Chart("state-memory", figures.state_sizes(lines, marks, "state of one sequence"), caption)],
    )


@cache
def _crossover_of_the_thesis() -> int | None:
    return crossover_length(build_mixer("2mamba", 1024, 16))


def all_runs(runs: Sequence[SavedRun]) -> Section:
    columns = (
        Column("folder", numeric=False),
        Column("status", numeric=False),
        Column("seed"),
        Column("step"),
        Column("validation loss"),
        Column("seconds"),
    )
    rows = [
        (
            Cell(str(run.folder)),
            Cell(run.status),
            number(None if run.recipe is None else run.recipe.seed, "{:d}"),
            number(run.step, "{:,d}"),
            number(run.validation_loss, "{:.4f}"),
            dataclasses.replace(number(run.seconds, "{:,.0f}"), note=load_note(run.load)),
        )
        for run in runs
    ]
    return Section("Runs", "", [DataTable("runs", columns, rows, "Every run that was found.")])


def making(folders: Sequence[Path], groups: Sequence[Group], runs: Sequence[SavedRun], command: str) -> Section:
    """The commands, the recipe and the versions."""
    compared = [text for folder in folders for path in sorted(folder.rglob("compare.json")) if (text := _command_of(path))]
    alone = [run for run in runs if run.recipe is not None and not (run.folder.parent / "compare.json").exists()]
    trained = [_train_command(run.recipe) for run in alone if run.recipe is not None]
    parts = [Code("Commands", "\n".join([*compared, *trained, command])), Code("Versions", _versions(runs))]
    if groups:
        parts.append(Code("Recipe, as a file for --config", _recipes(groups, runs)))
    return Section("How it was made", "", parts)


def unreadable(sentences: Sequence[str]) -> Section:
    return Section("Files that cannot be shown", "", [Code("Files", "\n".join(sentences))])


def shown_alone(runs: Sequence[SavedRun]) -> list[SavedRun]:
    """The runs; one that cannot be shown is marked as broken, so that the others can be."""
    return [run if run.problem else _tried(run) for run in runs]


def _tried(run: SavedRun) -> SavedRun:
    try:
        with naming("its files"):
            groups = grouped([run])
            for part in (
                results(groups),
                curves(groups),
                state_sizes(groups),
                all_runs([run]),
                making([], groups, [run], ""),
            ):
                part.html()
            headline(groups), lead(groups, [run])
    except ValueError as error:
        return SavedRun(run.folder, problem=str(error))
    return run


def _loss_lines(group: Group, style: Style, key: str) -> list[Line]:
    done = [getattr(run, key) for run in group.done if getattr(run, key)]
    lines = [_mean(group.name, style, done, group.recipe.tokens_per_step)] if done else []
    for run in group.runs:
        points = getattr(run, key)
        if points and not run.finished:
            assert run.recipe is not None
            one = _mean(f"{group.name}, seed {run.recipe.seed}, unfinished", style, [points], group.recipe.tokens_per_step)
            lines.append(dataclasses.replace(one, faint=True))
    return lines


def _mean(name: str, style: Style, several: Sequence[Points], tokens: int) -> Line:
    """The mean over the steps that all of them have."""
    tables = [dict(points) for points in several]
    steps = [step for step in tables[0] if all(step in table for table in tables)]
    values = [[table[step] for table in tables] for step in steps]
    band = len(several) > 1
    return Line(
        name,
        style,
        steps,
        [statistics.mean(row) for row in values],
        [min(row) for row in values] if band else (),
        [max(row) for row in values] if band else (),
        [step * tokens for step in steps],
    )


def _mechanisms(groups: Sequence[Group]) -> list[tuple[str, Group, Style]]:
    """Groups that differ only in training cost the same: one per mixer and size."""
    several = len({group.recipe.size for group in groups}) > 1
    found: dict[str, Group] = {}
    for group in groups:
        found.setdefault(f"{group.mixer} ({group.recipe.size})" if several else group.mixer, group)
    style = figures.styles([(name, group.mixer) for name, group in found.items()])
    return [(name, group, style[name]) for name, group in found.items()]


def _mean_layer(by_layer: Sequence[tuple[dict[int, float], int]], length: int) -> float:
    return sum(count * costs[length] for costs, count in by_layer) / sum(count for _, count in by_layer)


def _command_of(path: Path) -> str:
    try:
        command = read_json(path).get("command")
    except (OSError, ValueError):
        return ""
    return command if isinstance(command, str) else ""


def _train_command(recipe: Recipe) -> str:
    """The flags that differ from the defaults give the same run."""
    flags = [
        f"--{entry.name}={value}"
        for entry in dataclasses.fields(Recipe)
        if (value := getattr(recipe, entry.name)) != entry.default
    ]
    return shlex.join(["maclaurin", "train", *flags])


def _recipes(groups: Sequence[Group], runs: Sequence[SavedRun]) -> str:
    """What all have in common, as YAML; then the fields in which they differ, as comments. MLPs are as wide as was asked:
    what a comparison makes of that for each mixer is among the differences.
    """
    names = [entry.name for entry in dataclasses.fields(Recipe) if entry.name not in ("output", "seed")]
    values = {name: [getattr(group.recipe, name) for group in groups] for name in names}
    shared = [name for name in names if all(value == values[name][0] for value in values[name])]
    lines = [f"{name}: {json.dumps(values[name][0])}" for name in shared]
    own = [name for name in names if name not in shared]
    asked = {_asked_width(comparison.get("recipe")) for comparison in comparisons(runs).values()}
    if "intermediate_size" in own and len(asked) == 1:
        lines += [f"intermediate_size: {width}" for width in asked if width is not None]
    for index, group in enumerate(groups):
        seeds = ", ".join(str(run.recipe.seed) for run in group.runs if run.recipe is not None)
        texts = [f"{name} {json.dumps(values[name][index])}" for name in own]
        lines.append(f"# {group.name}: {', '.join([*texts, f'seed {seeds}'])}")
    return "\n".join(lines)


def _asked_width(recipe: Any) -> int | None:
    """Of a comparison's MLPs, before it matches parameters."""
    width = recipe.get("intermediate_size") if isinstance(recipe, dict) else None
    return width if type(width) is int else None


def _versions(runs: Sequence[SavedRun]) -> str:
    """Of every start of every run, each once, with the number of its starts."""
    texts = [_provenance(start) for run in runs for start in run.starts]
    lines = [f"{text} ({texts.count(text)} starts of runs)" for text in dict.fromkeys(texts)]
    lines += [f"{run.folder}: did not save its versions" for run in runs if not run.starts and not run.problem]
    here = _provenance({"versions": versions(), "devices": devices()})
    return "\n".join([*lines, f"{here} (this page)"])


def _provenance(start: dict[str, object]) -> str:
    found = []
    for key in ("versions", "devices"):
        table = start.get(key)
        found += [f"{name} {value}" for name, value in table.items() if value] if isinstance(table, dict) else []
    return ", ".join(found)
