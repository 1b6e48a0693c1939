"""The figures of a benchmark as a page: time per token against length, with softmax beside it."""

from __future__ import annotations

from collections.abc import Sequence

from maclaurin.bench.attention import AttentionRow
from maclaurin.bench.decode import DecodeRow
from maclaurin.bench.results import Results
from maclaurin.bench.roofline import RooflineRow
from maclaurin.page import figures
from maclaurin.page.figures import PALETTE, SYMBOLS, Line, Style
from maclaurin.page.html import Chart, Code, Page, Section

SERIES = {
    name: Style(color, symbol)
    for name, color, symbol in zip(("softmax", "second order", "first order"), PALETTE, SYMBOLS, strict=False)
}


def page(results: Results) -> Page:
    sections = []
    if results.attention:
        sections.append(_attention(results.attention))
    if results.decode:
        sections.append(_decode(results.decode))
    if results.roofline:
        sections.append(_roofline(results.roofline))
    setting = "\n".join(f"{name}: {value}" for name, value in results.setting.to_json().items())
    sections.append(Section("Setting", "", [Code("Where it was measured", setting)]))
    lead = ["Medians of interleaved repeats in one process; bench.json has them with their quartiles."]
    return Page("Maclaurin: benchmarks", _headline(results), lead, sections)


def _headline(results: Results) -> str:
    rows = [row for row in results.attention or () if not row.backward]
    if not rows:
        return "Benchmarks"
    longest = max(rows, key=lambda row: (row.T, -row.heads))
    return f"Second order takes 1/{longest.second_order.ratio:.1f} of softmax’s time at {longest.T:,} tokens, forward"


def _attention(rows: Sequence[AttentionRow]) -> Section:
    charts = []
    for backward, what in ((False, "forward"), (True, "forward and backward")):
        chosen = [row for row in rows if row.backward == backward and row.heads == 4]
        lengths = [row.T for row in chosen]
        times = {
            "softmax": [row.softmax_ms for row in chosen],
            "second order": [row.second_order.ms for row in chosen],
            "first order": [row.first_order.ms for row in chosen],
        }
        lines = [
            Line(name, SERIES[name], lengths, [ms / 1000 / T for ms, T in zip(values, lengths, strict=True)])
            for name, values in times.items()
        ]
        key = f"attention-{what.replace(' ', '-')}"
        charts.append(Chart(key, figures.against_length(lines, "time per token", "s"), f"4 heads of 64 channels, {what}."))
    return Section("Attention by length", "Against PyTorch’s causal attention, float32, one sequence.", charts)


def _decode(rows: Sequence[DecodeRow]) -> Section:
    contexts = [row.context for row in rows]
    times = {"softmax": [row.sdpa_ms for row in rows], "second order": [row.op_ms for row in rows]}
    lines = [Line(name, SERIES[name], contexts, [ms / 1000 for ms in values]) for name, values in times.items()]
    figure = figures.against_length(lines, "time of one token", "s")
    return Section("Decoding by context", "", [Chart("decode", figure, "One more token, 16 heads of 64 channels.")])


def _roofline(rows: Sequence[RooflineRow]) -> Section:
    settings = dict.fromkeys((row.gpu, row.share) for row in rows)
    lines = []
    for (gpu, share), color, symbol in zip(settings, PALETTE, SYMBOLS, strict=False):
        own = [row for row in rows if (row.gpu, row.share) == (gpu, share)]
        lines.append(
            Line(f"{gpu}, {share} of the peak", Style(color, symbol), [row.T for row in own], [row.ratio for row in own])
        )
    figure = figures.against_length(lines, "FlashAttention’s time over ours", "x")
    caption = "Modelled: heads of 64 channels, bfloat16, forward and backward; 1x is FlashAttention."
    return Section(
        "On a GPU, modelled",
        "Products over a share of the peak, bytes over bandwidth.",
        [Chart("roofline", figure, caption)],
    )
