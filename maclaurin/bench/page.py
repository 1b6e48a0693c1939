"""The figures of a benchmark as a page: time a token against length, with softmax beside it."""

from __future__ import annotations

from typing import Any

from maclaurin.page import figures
from maclaurin.page.figures import PALETTE, SYMBOLS, Line, Style
from maclaurin.page.html import Chart, Code, Page, Section

SERIES = {
    name: Style(color, symbol)
    for name, color, symbol in zip(("softmax", "second order", "first order"), PALETTE, SYMBOLS, strict=False)
}


def page(results: dict[str, Any]) -> Page:
    setting = results["setting"]
    sections = []
    if "attention" in results:
        sections.append(_attention(results["attention"]))
    if "decode" in results:
        sections.append(_decode(results["decode"]))
    sections.append(
        Section("Setting", "", [Code("Where it was measured", "\n".join(f"{k}: {v}" for k, v in setting.items()))])
    )
    lead = ["Medians of interleaved repeats in one process; bench.json has them with their quartiles."]
    return Page("Maclaurin: benchmarks", _headline(results), lead, sections)


def _headline(results: dict[str, Any]) -> str:
    rows = [row for row in results.get("attention", ()) if not row["backward"]]
    if not rows:
        return "Benchmarks"
    longest = max(rows, key=lambda row: (row["T"], -row["heads"]))
    ratio = longest["second order"]["ratio"]
    return f"Second order takes 1/{ratio:.1f} of softmax’s time at {longest['T']:,} tokens, forward"


def _attention(rows: list[dict[str, Any]]) -> Section:
    charts = []
    for backward, what in ((False, "forward"), (True, "forward and backward")):
        chosen = [row for row in rows if row["backward"] == backward and row["heads"] == 4]
        lengths = [row["T"] for row in chosen]
        times = {"softmax": [row["softmax_ms"] for row in chosen]}
        times |= {name: [row[name]["ms"] for row in chosen] for name in ("second order", "first order")}
        lines = [
            Line(name, SERIES[name], lengths, [ms / 1000 / T for ms, T in zip(values, lengths, strict=True)])
            for name, values in times.items()
        ]
        key = f"attention-{what.replace(' ', '-')}"
        charts.append(Chart(key, figures.against_length(lines, "time a token", "s"), f"4 heads of 64 channels, {what}."))
    return Section("Attention by length", "Against PyTorch’s causal attention, float32, one sequence.", charts)


def _decode(rows: list[dict[str, Any]]) -> Section:
    contexts = [row["context"] for row in rows]
    lines = [
        Line(name, SERIES[name], contexts, [row[key] / 1000 for row in rows])
        for name, key in (("softmax", "sdpa_ms"), ("second order", "op_ms"))
    ]
    figure = figures.against_length(lines, "time of one token", "s")
    return Section("Decoding by context", "", [Chart("decode", figure, "One token more, 16 heads of 64 channels.")])
