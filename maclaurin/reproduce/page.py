"""One page for all tables of a paper: the verdicts first, then each table with its curves and the published numbers."""

from __future__ import annotations

from collections.abc import Sequence

from maclaurin.evals.page import section, settings
from maclaurin.evals.results import ResultTable
from maclaurin.lab.page import sections as lab_sections
from maclaurin.machine.inventory import devices, versions
from maclaurin.page import figures
from maclaurin.page.figures import Line
from maclaurin.page.html import Cell, Chart, Code, Column, DataTable, Page, Section
from maclaurin.reproduce.run import Found
from maclaurin.reproduce.verdict import Verdict, answer_text

LEAD = (
    "Every row of a table is trained with the same data in the same order, and with the best of its learning rates by the "
    "validation of the first seed. A pair of rows is decided if the 95 % interval of its difference, seed by seed, leaves "
    "out 0. Published numbers are of models that are thousands of times larger: what can be compared is the order."
)


def page(title: str, budget: str, found: Sequence[Found], command: str) -> Page:
    made = {"command": command, **versions(), **devices()}
    sections = [_overview(found)]
    for one in found:
        sections += _sections(one)
    how = [Code("Command and versions", "\n".join(f"{name}: {value}" for name, value in made.items() if value))]
    how += [settings(one.trained) for one in found if one.trained is not None]
    again = "The same command goes on after an interruption, and gives the same numbers again on the same machine."
    sections.append(Section("How it was made", again, how))
    return Page(f"Maclaurin: {title}", headline(found, budget), [LEAD], sections)


def headline(found: Sequence[Found], budget: str) -> str:
    verdicts = [one.verdict for one in found if one.verdict is not None and one.verdict.pairs]
    claims = [claim.held for one in found if one.computed is not None for claim in one.computed.claims]
    parts = []
    if verdicts:
        agree, pairs = sum(one.agree for one in verdicts), sum(one.pairs for one in verdicts)
        parts.append(f"{agree} of {pairs} published pairs in their order")
    if claims:
        parts.append(f"{sum(held is True for held in claims)} of {sum(held is not None for held in claims)} claims held")
    return f"At the budget {budget}: {', '.join(parts)}" if parts else f"At the budget {budget}: nothing is measured yet"


def _overview(found: Sequence[Found]) -> Section:
    titles = ("table", "in the paper", "verdict", "pairs in order", "tau", "beyond intervals")
    columns = [Column(title, numeric=title in ("pairs in order", "tau")) for title in titles]
    return Section("The published order", "", [DataTable("table-verdicts", columns, [_line(one) for one in found])])


def _line(one: Found) -> list[Cell]:
    first = [Cell(one.table.name, note=one.table.shows), Cell(one.table.where)]
    if one.verdict is not None and one.verdict.pairs:
        own = one.verdict
        tau = f"{own.low:+.2f} to {own.high:+.2f}"
        decided = f"{own.held} hold, {own.reversed} reversed, {own.pairs - own.held - own.reversed} not decided"
        return [
            *first,
            Cell(own.word),
            Cell(f"{own.agree} of {own.pairs}", own.agree / own.pairs),
            Cell(f"{own.tau:+.2f}", own.tau, tau),
            Cell(decided),
        ]
    if one.computed is not None:
        claims = [claim for claim in one.computed.claims if claim.held is not None]
        text = f"{sum(claim.held is True for claim in claims)} of {len(claims)} claims held"
    elif one.planned:
        text = f"{sum(row.loss is not None for row in one.planned)} of {len(one.planned)} rows have a loss"
    else:
        text = one.unavailable or "no order is published"
    return [*first, Cell(text), Cell("–"), Cell("–"), Cell("–")]


def _sections(one: Found) -> list[Section]:
    if one.computed is not None:
        return lab_sections([one.computed])
    if one.planned:
        return [Section(one.table.shows, "One command per row, for a cluster.", [_plan(one)])]
    if one.trained is None or one.verdict is None:
        return []
    drawn = section(one.trained, one.table.name)
    parts = [*_curves(one.trained, one.table.name), *drawn.parts]
    return [Section(f"{one.table.name}: {one.table.shows}", _words(one, one.verdict), parts)]


def _words(one: Found, own: Verdict) -> str:
    answers = [f"{answer_text(answer)}." for answer in own.answers]
    missing = [f"{label} cannot be had: {why}." for label, why in one.table.missing.items()]
    against = [f"{better} should be before {worse}" for better, worse in own.contradicted]
    reversed_ = [f"Reversed beyond their intervals: {'; '.join(against)}."] if against else []
    return "\n".join([own.sentence, *reversed_, *answers, one.table.note, *missing])


def _curves(table: ResultTable, key: str) -> list[Chart]:
    """The loss of training by step."""
    rows = [row for row in table.measured() if len(row.curve) > 1]
    if not rows or not table.lower_is_better or table.setting is None:
        return []
    tokens = table.setting.batch * table.rows[0].points[0].tokens if table.rows[0].points else 1
    style = figures.styles([(row.label, row.label) for row in rows])
    lines = []
    for row in rows:
        steps, losses = zip(*row.curve, strict=True)
        lines.append(Line(row.label, style[row.label], steps, losses, tokens=[step * tokens for step in steps]))
    return [Chart(f"{key}-curves", figures.losses(lines, "loss of training"), "Loss of training by step, mean over seeds.")]


def _plan(one: Found) -> DataTable:
    columns = [
        Column("row", numeric=False),
        Column("parameters"),
        Column("published"),
        Column("loss"),
        Column("command", numeric=False),
    ]
    rows = [
        [
            Cell(row.label),
            Cell(f"{row.parameters:,}", row.parameters),
            Cell("–" if row.published is None else f"{row.published:.3f}", row.published),
            Cell("–" if row.loss is None else f"{row.loss:.3f}", row.loss),
            Cell(row.command, code=True),
        ]
        for row in one.planned
    ]
    return DataTable(f"table-{one.table.name}-planned", columns, rows)
