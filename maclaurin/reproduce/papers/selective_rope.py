"""Selective Rotary Position Embedding (arXiv 2511.17388): state tracking and copying; outcomes are published in words."""

from __future__ import annotations

from dataclasses import replace

from maclaurin.evals.cells import Problem
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.suites.recall import recall
from maclaurin.evals.suites.rows import SELECTIVE_COPYING, one
from maclaurin.evals.suites.track import track
from maclaurin.reproduce import language
from maclaurin.reproduce.mad import mad_tables
from maclaurin.reproduce.table import Paper, Table

SOURCE = "Selective RoPE, arXiv 2511.17388, in words"
COPYING = {
    "GLA + selective": one("gla", rotary="selective", rotary_options=SELECTIVE_COPYING),
    "GLA + selective, no gate": one("gla", rotary="selective", rotary_options=SELECTIVE_COPYING | {"gate": "none"}),
    "GLA + selective + bias": one("gla", rotary="selective", rotary_options=SELECTIVE_COPYING | {"bias": True}),
    "GLA + selective, learned temperature": one(
        "gla", rotary="selective", rotary_options=SELECTIVE_COPYING | {"learn_temperature": True}
    ),
    "GLA + RoPE": one("gla", rotary="rope"),
    "GLA": one("gla"),
    "softmax + RoPE": one("softmax"),
}
MAD = {
    "GLA": one("gla"),
    "GLA + RoPE": one("gla", rotary="rope"),
    **{
        f"GLA + selective{name}": one("gla", rotary="selective", rotary_options={"gate": "none", **options})
        for name, options in (
            ("", {}),
            (" + gate", {"gate": "standard"}),
            (" + bias", {"bias": True}),
            (" + gate + bias", {"gate": "standard", "bias": True}),
        )
    },
}
MAD_MEANS = {
    "GLA": 65.9,
    "GLA + RoPE": 72.5,
    "GLA + selective": 72.0,
    "GLA + selective + gate": 72.3,
    "GLA + selective + bias": 72.7,
    "GLA + selective + gate + bias": 73.2,
}


# LAMBADA, perplexities of models of 370 million parameters
LANGUAGE = {
    "GLA": 15.83,
    "GLA + RoPE": 16.32,
    "GLA + selective": 16.33,
    "FoX": 17.76,
    "FoX + RoPE": 17.71,
    "FoX + selective": 17.29,
    "Gated DeltaNet + RoPE": 16.79,
    "Gated DeltaNet + selective": 15.93,
}
MIXERS = {"GLA": "gla", "FoX": "fox", "Gated DeltaNet": "gated-delta"}
ENCODINGS = {"": "none", "RoPE": "rope", "selective": "selective"}


def _language() -> Table:
    rows = {}
    for label in LANGUAGE:
        name, _, encoding = label.partition(" + ")
        rows[label] = one(MIXERS[name], rotary=ENCODINGS[encoding])
    rows["FoX-Pro"] = one("fox-pro")
    shows = "Language models with no positions, RoPE and selective RoPE: small gains, not everywhere"
    return Table(
        name="language",
        where="the table of language models",
        shows=shows,
        experiments=language.experiments(
            "language",
            shows,
            rows,
            "Selective RoPE, arXiv 2511.17388: 370 million parameters, FineWeb, LAMBADA",
            length=4096,
        ),
        published=LANGUAGE,
        asks=(
            ("GLA + selective", "GLA"),
            ("FoX + selective", "FoX"),
            ("Gated DeltaNet + selective", "Gated DeltaNet + RoPE"),
        ),
        controls=("FoX-Pro",),
        note="Published: perplexities of LAMBADA; here the loss on text.",
    )


def _recall(preset: str) -> Experiment:
    rows = {label: one("gla", rotary=rotary) for label, rotary in (("GLA", "none"), ("GLA + RoPE", "rope"))}
    rows["GLA + selective"] = one("gla", rotary="selective")
    base = recall(preset)[0]
    return replace(base, name="recall", rows=rows, seeds=3, published={}, source=f"{SOURCE}: selective gains most")


def _copying(budget: str) -> Experiment:
    base = next(experiment for experiment in recall("standard") if experiment.name == "copying")
    if budget == "paper":
        setting = replace(base.setting, width=512, heads=16, layers=4, inner=2048, steps=5000, batch=256)
        return replace(base, rows=COPYING, setting=setting, learning_rates=(2e-3,), source=SOURCE)
    if budget == "day":
        return replace(base, rows=COPYING, source=SOURCE)
    return replace(
        base,
        title="Copying a string of 8 letters, trained with 2 to 16 letters: exact copies by length",
        rows=COPYING,
        setting=replace(base.setting, width=64, layers=2, inner=128, steps=600, batch=16, examples=200),
        train=(Problem("copying", {"longest": 16, "length": 105, "letters": 8}),),
        test=tuple(Problem("copying-long", {"shortest": n, "longest": n, "letters": 8}) for n in (8, 16, 32)),
        learning_rates=(3e-3, 1e-2),
        source=SOURCE,
    )


def _tracking(group: str) -> dict[str, Experiment]:
    name = group if group == "parity" else f"track-{group}"
    presets = {"day": "standard", "paper": "paper"} | ({"minutes": "quick"} if group == "parity" else {})
    return {
        budget: next(experiment for experiment in track(preset) if experiment.name == name)
        for budget, preset in presets.items()
    }


PAPER = Paper.of(
    "Selective Rotary Position Embedding, arXiv 2511.17388",
    Table(
        name="parity",
        where="the table of state tracking",
        shows="Parity, one layer, at lengths beyond those of training",
        experiments=_tracking("parity"),
        published={
            "gla-selective": 0,
            "gla-selective-conv": 0,
            "softmax-selective": 0,
            "softmax-selective-published": 0,
            "softmax": 1,
        },
        in_words=True,
        asks=(("gla-selective", "gla"), ("softmax-selective", "softmax")),
    ),
    *(
        Table(
            name=group,
            where="the table of state tracking",
            shows=f"The group {group}: the product of all moves so far",
            experiments=_tracking(group),
            published={"gla-selective-conv": 0, "softmax": 1},
            in_words=True,
            only="its moves take hours to learn",
        )
        for group in ("Z5", "A3", "S3", "A5", "S5")
    ),
    Table(
        name="copying",
        where="the figure of copying",
        shows="Copying a string, also longer ones than in training",
        experiments={budget: _copying(budget) for budget in ("minutes", "day", "paper")},
        published={"GLA + selective": 0, "GLA + RoPE": 1, "softmax + RoPE": 1},
        in_words=True,
        asks=(("GLA + selective", "GLA"), ("GLA + selective", "GLA + RoPE")),
    ),
    Table(
        name="recall",
        where="the figure of MQAR",
        shows="MQAR: GLA gains most from selective RoPE",
        experiments={"minutes": _recall("quick"), "day": _recall("standard")},
        published={"GLA + selective": 0, "GLA + RoPE": 1, "GLA": 1},
        in_words=True,
        asks=(("GLA + selective", "GLA"), ("GLA + selective", "GLA + RoPE")),
        only="the recipe of the published runs is not known",
    ),
    *mad_tables(MAD, MAD_MEANS),
    _language(),
    Table(
        name="rotation",
        where="the section on random features",
        shows="How softmax hides random rotations, what a decay does to them, and parity by construction",
        lab={"minutes": ("rotation", {"quick": True}), "day": ("rotation", {})},
    ),
)
