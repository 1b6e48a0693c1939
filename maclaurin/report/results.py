"""The table of results: losses over seeds, speeds, sizes, and what they can be compared with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

from maclaurin.comparison.answers import joined
from maclaurin.page import figures
from maclaurin.page.figures import Style
from maclaurin.page.html import Cell, Column, DataTable, Section
from maclaurin.report import blocks
from maclaurin.report.cells import load_note, number, size
from maclaurin.report.runs import Group, differences
from maclaurin.training.statistics import Standing


def styles(groups: Sequence[Group]) -> dict[str, Style]:
    return figures.styles([(group.name, group.mixer) for group in groups])


def results(groups: Sequence[Group]) -> Section:
    rows = [group.row for group in groups]
    published = sum(bool(row.published) for row in rows) > 1
    style = styles(groups)
    columns: dict[Column, Callable[[Standing], Cell] | None] = {
        Column("rank"): lambda row: number(row.rank, "{:d}"),
        Column("mixer", numeric=False): lambda row: Cell(row.name, swatch=style[row.name].color),
        Column(f"{part(groups)} loss"): lambda row: number(row.loss, "{:.4f}", missing="unfinished"),
        **_over_seeds(rows),
        **_rates(rows),
        **_recalled(rows),
        Column("parameters"): lambda row: number(row.parameters, "{:,d}"),
        Column("tokens/s"): _speed,
        Column("peak memory"): lambda row: size(row.peak_bytes),
        Column("state at 8k"): lambda row: size(row.state_bytes_at_8k),
        Column("ms at 16k"): _decode if any(row.decode_ms is not None for row in rows) else None,
        Column("published elsewhere"): (lambda row: _published(row.published)) if published else None,
    }
    shown = {column: cell for column, cell in columns.items() if cell is not None}
    cells = [tuple(cell(row) for cell in shown.values()) for row in rows]
    intro = (
        f"{part(groups).capitalize()} loss after the last step{_seeds(groups)}{_chosen(rows)} Parameters are those of "
        f"mixers and MLPs. Speeds are those of {threads(groups)}this machine with all that ran beside; where known, its "
        "load is below them. The state is that of one sequence of 8,192 tokens in the whole model, float32."
        f"{_measured(rows)}"
    )
    paragraphs = [intro, blocks.compared(groups), _elsewhere(groups) if published else ""]
    table = DataTable("results", tuple(shown), cells, "Click a header to sort.")
    return Section("Results", "\n".join(paragraphs), [table])


def part(groups: Sequence[Group]) -> str:
    """Which part of the text the losses are of."""
    return "test" if all(group.recipe.test_rows for group in groups) else "validation"


def threads(groups: Sequence[Group]) -> str:
    """ "one thread of " where each run had one."""
    counts = {run.result.get("threads") for group in groups for run in group.done}
    return "one thread of " if counts == {1} else ""


def _over_seeds(rows: Sequence[Standing]) -> dict[Column, Callable[[Standing], Cell]]:
    if not any(row.seeds > 1 for row in rows):
        return {}
    return {
        Column("± seeds"): lambda row: number(row.spread, "{:.4f}"),
        Column("seeds"): lambda row: number(row.seeds, "{:d}"),
        Column("behind the first"): _behind,
    }


def _behind(row: Standing) -> Cell:
    if row.behind is None:
        return Cell("–")
    cell = number(row.behind.nats, "{:+.4f}")
    if row.behind.level is None:
        return cell
    ends = f"{row.behind.low:+.4f} to {row.behind.high:+.4f}"
    return dataclasses.replace(cell, note=f"level, {ends}" if row.behind.level else ends)


def _rates(rows: Sequence[Standing]) -> dict[Column, Callable[[Standing], Cell]]:
    """With those that lost."""

    def cell(row: Standing) -> Cell:
        found = number(row.learning_rate, "{:g}")
        others = ", ".join(f"{rate:g}" for rate, _ in row.tried if rate != row.learning_rate)
        return dataclasses.replace(found, note=f"not {others}" if others else "")

    return {Column("rate"): cell} if any(row.tried for row in rows) else {}


def _recalled(rows: Sequence[Standing]) -> dict[Column, Callable[[Standing], Cell]]:
    """A column per number of pairs."""
    pairs = next((row.recall.pairs for row in rows if row.recall), ())

    def cell(place: int, row: Standing) -> Cell:
        if row.recall is None or place >= len(row.recall.accuracy):
            return Cell("–")
        low, high = row.recall.low[place], row.recall.high[place]
        guess = "guessing, " if low <= row.recall.chance[place] else ""
        return Cell(f"{row.recall.accuracy[place]:.3f}", row.recall.accuracy[place], f"{guess}{low:.2f} to {high:.2f}")

    return {Column(f"recall, {count} pairs"): partial(cell, place) for place, count in enumerate(pairs)}


def _decode(row: Standing) -> Cell:
    quartiles = "" if row.decode_quartiles is None else "{:.2f} to {:.2f}".format(*row.decode_quartiles)
    return dataclasses.replace(number(row.decode_ms, "{:.2f}"), note=quartiles)


def _chosen(rows: Sequence[Standing]) -> str:
    if not any(row.tried for row in rows):
        return ""
    return (
        " Each row has the learning rate with which its first seed had the lowest validation loss; documents of validation "
        "and of the test are apart."
    )


def _measured(rows: Sequence[Standing]) -> str:
    """What recall and decoding are."""
    texts = []
    if any(row.recall for row in rows):
        texts.append(
            "Recall is the share of right answers of small models of the same mechanism, trained to recall key-value pairs, "
            "with its 95 % interval; one in as many as there are pairs is guessing."
        )
    if any(row.decode_ms is not None for row in rows):
        texts.append(
            "“ms at 16k” is one decoding step of all mixers after 16,384 tokens, in CPU time of one thread, "
            "with its quartiles."
        )
    return "".join(f" {text}" for text in texts)


def _seeds(groups: Sequence[Group]) -> str:
    """How many runs a loss is the mean of."""
    counts = {group.row.seeds for group in groups if group.row.seeds}
    if counts <= {1}:
        found = {run.recipe.seed for group in groups for run in group.done if run.recipe is not None}
        which = f", seed {found.pop()}" if len(found) == 1 else ""
        return f" of one run{which}: how much another seed would change it is not known." if counts else "."
    one = " Rows with one seed have no ±." if 1 in counts else ""
    paired = " “Behind the first” is the mean difference seed by seed, with its 95 % interval; level where that has 0."
    return f", mean over seeds; ± is their standard deviation.{one}{paired}"


def _elsewhere(groups: Sequence[Group]) -> str:
    """What the published losses are, and which of them can be put in an order beside this one."""
    alike = [group for group in groups if group.row.published and " " not in group.row.published]
    others = [f"{group.name} {note}" for group in groups if (note := group.row.published.partition(" ")[2])]
    sentence = (
        "“Published elsewhere” is the loss that the thesis (arXiv 2602.17363) gives for the same mechanism in another "
        "setting: far larger models, FineWeb, another tokenizer, 90k steps. Its numbers cannot be compared with these"
    )
    if differing := differences(alike):
        return f"{sentence}, nor can its order: these rows differ in {', '.join(differing)}."
    if len(alike) < 2:
        return f"{sentence}."
    names = joined([group.name for group in alike])
    note = f", not that of {joined(others)}" if others else ""
    return f"{sentence}; the order of {names} can, which are of one size and budget there and here{note}."


def _speed(row: Standing) -> Cell:
    """With what it varied between over seeds, and the load of the machine."""
    ends = [f"{row.speeds[0]:,.0f} to {row.speeds[1]:,.0f}"] if row.speeds else []
    cell = number(row.tokens_per_second, "{:,.0f}")
    notes = "; ".join(note for note in (*ends, load_note(row.load)) if note)
    return cell if row.tokens_per_second is None else dataclasses.replace(cell, note=notes)


def _published(text: str) -> Cell:
    """ "2.727 (with dt)": a number, and how its model differs from the one here."""
    number, _, note = text.partition(" ")
    return Cell(number, float(number), note) if text else Cell("–")
