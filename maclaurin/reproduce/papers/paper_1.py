"""On the Expressiveness of Softmax Attention (arXiv 2507.23632).

Its figures are loss curves of 38 named models, of which no number could be had: what is published is the order, in words
(the places below; equal places are not compared).
"""

from __future__ import annotations

from typing import Any

from maclaurin.evals.suites.rows import one
from maclaurin.mixers.published import NOT_HERE
from maclaurin.reproduce import language
from maclaurin.reproduce.language import RECIPE, published
from maclaurin.reproduce.table import Paper, Table

SOURCE = "arXiv 2507.23632, in words: 300 million parameters, 1024 tokens, FineWeb, 100,000 steps"
L2 = "gated_softmax_no_gate_L2norm_nodivS_noclamp"
SMALL = RECIPE | {"size": "small", "length": 1024, "batch_size": 36}
CLIPPED = SMALL | {"clip": 1.0}  # as the authors' gated models

# a norm in place of the denominator is level with softmax; dividing by the count alone, or without the exponential, is not
DENOMINATOR = {
    "softmax": 0,
    L2: 0,
    "gated_softmax_no_gate_L2norm_nodivS": 0,
    "gated_softmax_no_gate_rmsnorm": 0,
    "gated_softmax_no_gate_rmsnorm_nodivS": 0,
    "gated_softmax_no_gate": 0,
    "gated_softmax_no_gate_customnorm": 0,
    "softmax_divS_norm": 0,
    "softmax_clamp_denom": None,
    "softmax_detach_denom": None,
    "softmax_divs": 1,
    "gated_softmax_no_gate_no_norm": 1,
    "gated_ReLU_no_gate_L2norm_nodivS_noclamp": 2,
}
# gates in place of the denominator end worse than softmax, and without the exponential worse still
GATES = {
    "softmax": 0,
    L2: 0,
    "softmax_gate": 1,
    "softmax_divS_gate": 1,
    "softmax_divS_gatev2": 1,
    "softmax_detach_denom_gate": None,
    "gated_softmax_no_norm": 1,
    "gated_softmax_no_out_gate_no_norm": 1,
    "gated_softmax_no_in_gate_no_norm": 1,
    "gated_softmax_cumgate": 1,
    "cumulative_gated_softmax": 1,
    "gated_relu_no_in_gate_no_norm": 2,
}
GATES_AND_NORMS = {
    "softmax": 0,
    L2: 0,
    "gated_softmax": None,
    "gated_softmax_no_in_gate": None,
    "gated_softmax_no_out_gate": None,
    "gated_softmax_out_gate_L2norm_nodivS_noclamp": 0,
    "gated_softmax_post_out_gate_L2norm_nodivS_noclamp": None,
    "gated_softmax_plusplus": None,
    "gated_softmax_plusplus_extratoks": None,
    "gated_softmax_decay": None,
}
KERNELS = {
    "softmax": 0,
    L2: 0,
    "linear_elu": 1,
    "linear_relu": 1,
    "linear_cosine": 1,
    "linear_mamba": None,
}
# 80 terms take 17 minutes of a core per cell, and are softmax but for rounding
SLOW = ("softmax_taylor_80terms", "orders 0 to 10, over their sum")
TOP_ORDERS = (1, 2, 3, 4, 6, 8, 10)


def _table(name: str, where: str, shows: str, places: dict[str, int | None], **more: Any) -> Table:
    rows = {label: published("paper-1", label) for label in places}
    known = {label: float(place) for label, place in places.items() if place is not None}
    return Table(
        name=name,
        where=where,
        shows=shows,
        experiments=language.experiments(name, shows, rows, SOURCE, length=1024),
        rows=rows,
        recipe=CLIPPED if name.startswith("gates") else SMALL,
        published=known,
        in_words=True,
        **more,
    )


def _orders() -> Table:
    """Orders 0 to P one after another, behind an RMS norm, because sums of odd orders pass through zero."""
    rows = {f"orders 0 to {top}": one("taylor", order=tuple(range(top + 1)), norm="output") for top in TOP_ORDERS}
    rows |= {"softmax_taylor_80terms": published("paper-1", "softmax_taylor_80terms"), "softmax": one("softmax")}
    controls = {
        "orders 0 to 2, over their sum": one("taylor", order=2),
        "orders 0 to 10, over their sum": one("taylor", order=10),
        "order 2 alone, over its sum": one("taylor", order=(2,)),
        "orders 0 to 4, each with its own projections": one("taylor", order=4, order_dim=8, norm="output"),
    }
    places = {f"orders 0 to {top}": float(len(TOP_ORDERS) - place) for place, top in enumerate(TOP_ORDERS)}
    places |= {"orders 0 to 10": 0.0, "softmax_taylor_80terms": 0.0, "softmax": 0.0}
    shows = "Orders 0 to P of the series, one after another: every order helps less, and ten are softmax"
    return Table(
        name="orders",
        where="the figure of Taylor orders",
        shows=shows,
        experiments=language.experiments("orders", shows, rows | controls, SOURCE, length=1024, not_in_minutes=SLOW),
        rows=rows | controls,
        recipe=SMALL,
        published=places,
        in_words=True,
        asks=(("orders 0 to 1", "softmax"), ("orders 0 to 2", "softmax"), ("orders 0 to 10", "softmax")),
        controls=tuple(controls),
        note="At the budget minutes without the 80 terms of softmax_taylor_80terms, which are softmax but for rounding: "
        "a cell of it takes 17 minutes of a core.",
    )


def _larger(name: str, shows: str, **recipe: object) -> Table:
    rows = {label: published("paper-1", label) for label in ("softmax", L2, "softmax_divS_gatev2")}
    return Table(
        name=name,
        where="the figures of scale",
        shows=shows,
        rows=rows,
        recipe=CLIPPED | recipe,
        published={"softmax": 0, L2: 0, "softmax_divS_gatev2": 1},
        in_words=True,
        only="its point is the size",
    )


PAPER = Paper.of(
    "On the Expressiveness of Softmax Attention: A Recurrent Neural Network Perspective, arXiv 2507.23632",
    _table(
        "denominator",
        "the figures of norms",
        "A norm of the output in place of softmax's denominator: L2, RMS and layer norms follow softmax",
        DENOMINATOR,
        asks=((L2, "softmax"), ("softmax_divs", "softmax"), ("gated_ReLU_no_gate_L2norm_nodivS_noclamp", L2)),
    ),
    _table(
        "gates",
        "the figures of gates",
        "Gates in place of the denominator: they end worse than softmax, and ReLU scores worse still",
        GATES,
        asks=(("softmax_divS_gatev2", "softmax"), ("softmax_divS_gatev2", L2)),
    ),
    _table(
        "gates-and-norms",
        "the ablation of gates beside norms",
        "Gates beside a norm, a convolution, a decay",
        GATES_AND_NORMS,
        missing=NOT_HERE,
        asks=(("gated_softmax_plusplus", "softmax"), ("gated_softmax", L2)),
    ),
    _table(
        "kernels",
        "the figures of linear attention",
        "Linear attention with ELU, ReLU and cosine features, and Mamba-2, against softmax",
        KERNELS,
        asks=(("linear_relu", "softmax"), ("linear_mamba", "softmax")),
    ),
    _orders(),
    Table(
        name="series",
        where="the probe of Taylor terms",
        shows="The identity of softmax and the sum of all orders, and the dominant order of every layer",
        lab={"minutes": ("series", {"quick": True}), "day": ("series", {})},
    ),
    _larger("large", "2 billion parameters", size="large"),
    _larger("large-depth", "60 layers", size="large-depth"),
    _larger("long", "4096 tokens", size="small", length=4096),
    _larger("pile", "Another corpus: The Pile", size="small", length=1024, corpus="pile"),
    _larger("slimpajama", "Another corpus: SlimPajama", size="small", length=1024, corpus="slimpajama"),
)
