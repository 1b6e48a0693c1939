"""The table of results: losses over seeds, speeds, sizes, and what they can be compared with."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

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
    several = any(group.row.seeds > 1 for group in groups)
    published = any(group.row.published for group in groups)
    columns = (
        Column("rank"),
        Column("mixer", numeric=False),
        Column("validation loss"),
        *[Column("± seeds"), Column("seeds")] * several,
        Column("parameters"),
        Column("tokens/s"),
        Column("peak memory"),
        Column("state at 8k"),
        *[Column("published elsewhere")] * published,
    )
    style = styles(groups)
    rows = [
        (
            number(row.rank, "{:d}"),
            Cell(row.name, swatch=style[row.name].color),
            number(row.loss, "{:.4f}", missing="unfinished"),
            *[number(row.spread, "{:.4f}"), number(row.seeds, "{:d}")] * several,
            number(row.parameters, "{:,d}"),
            _speed(row),
            size(row.peak_bytes),
            size(row.state_bytes_at_8k),
            *[_published(row.published)] * published,
        )
        for row in (group.row for group in groups)
    ]
    intro = (
        f"Validation loss after the last step{_seeds(groups)} Parameters are those of mixers and MLPs. Speeds are those of "
        "this machine with all that ran beside; where it is known, its load is below them. The state is that of one "
        "sequence of 8,192 tokens in the whole model, float32."
    )
    paragraphs = [intro, blocks.compared(groups), _elsewhere(groups) if published else ""]
    return Section("Results", "\n".join(paragraphs), [DataTable("results", columns, rows, "Click a header to sort.")])


def _seeds(groups: Sequence[Group]) -> str:
    """How many runs a loss is the mean of."""
    counts = {group.row.seeds for group in groups if group.row.seeds}
    if counts <= {1}:
        found = {run.recipe.seed for group in groups for run in group.done if run.recipe is not None}
        which = f", seed {found.pop()}" if len(found) == 1 else ""
        return f" of one run{which}: how much another seed would change it is not known." if counts else "."
    one = " Rows with one seed have no ±." if 1 in counts else ""
    return f", mean over seeds; ± is their standard deviation.{one}"


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
    names = blocks.joined([group.name for group in alike])
    note = f", not that of {blocks.joined(others)}" if others else ""
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
