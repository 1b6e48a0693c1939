"""Loss and recall against the bytes of state that they were reached with: what a mechanism makes of its memory."""

from __future__ import annotations

from collections.abc import Sequence

from maclaurin.page import figures
from maclaurin.page.figures import Line
from maclaurin.page.html import Chart, Section
from maclaurin.report.results import part, styles
from maclaurin.report.runs import Group


def against_state(groups: Sequence[Group]) -> Section | None:
    """None where there is nothing to compare."""
    done = [group for group in groups if group.row.loss is not None]
    if len(done) < 2:
        return None
    style = styles(groups)
    losses = []
    for group in done:
        row, found = group.row, [loss for _, loss in group.row.by_seed]
        assert row.loss is not None
        own = Line(row.name, style[row.name], [row.state_bytes_at_8k], [row.loss], [min(found)], [max(found)])
        losses.append(own)
    charts = [
        Chart(
            "loss-state",
            figures.against_bytes(losses, f"{part(done)} loss, nats per token", "state at 8k tokens", "{:.4f}"),
            "Loss against the state at 8,192 tokens; the bar reaches from the lowest seed to the highest. Lower and further "
            "left is better.",
        )
    ]
    recalled = []
    for group in done:
        recall = group.row.recall
        if recall is not None and recall.state_bytes > 0:
            ends = [recall.low[-1]], [recall.high[-1]]
            place = [recall.state_bytes], [recall.accuracy[-1]]
            recalled.append((recall.pairs[-1], Line(group.name, style[group.name], *place, *ends)))
    if recalled:
        pairs = recalled[0][0]
        lines = [line for _, line in recalled]
        charts.append(
            Chart(
                "recall-state",
                figures.against_bytes(lines, f"accuracy, {pairs} pairs", "state of the small model", "{:.3f}"),
                f"Recall of {pairs} pairs against the state of the small model that recalls them; bars are 95 % intervals. "
                "Higher and further left is better.",
            )
        )
    intro = (
        "A state of constant size cannot hold everything: these figures show what each mechanism makes of its bytes. The KV "
        "cache of softmax grows with the sequence, so its place depends on the length."
    )
    return Section("Against the size of the state", intro, charts)
