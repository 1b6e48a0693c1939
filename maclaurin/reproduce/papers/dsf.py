"""Understanding the Differences in Foundation Models (DSF, arXiv 2405.15731).

Its tables are images; what is published here is what its text says (places; equal places are not compared).
"""

from __future__ import annotations

from dataclasses import replace

from maclaurin.evals.cells import Row, Setting
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.suites.lra import lra
from maclaurin.evals.suites.recall import recall
from maclaurin.evals.suites.rows import mqar, one
from maclaurin.reproduce import language, mad
from maclaurin.reproduce.table import Paper, Table

KEYS = {"minutes": (8, 16, 32, 64), "day": (16, 32, 64, 128), "paper": (32, 64, 128, 256)}
WORDS = "DSF, arXiv 2405.15731, in words: MQAR, 512 tokens, 64 pairs"


def _mqar(name: str, title: str, rows: dict[str, Row], budget: str) -> Experiment:
    """One head in each of two layers, and the same MLP for all, which the authors' code does not have."""
    if budget == "paper":
        shape = next(experiment for experiment in recall("paper") if experiment.name == "mqar-512x64-d512")
        return replace(shape, name=name, title=title, rows=rows, setting=replace(shape.setting, heads=1), published={})
    small = budget == "minutes"
    length, pairs, vocab_size = (64, 16, 128) if small else (256, 32, 512)
    easier = mqar(length // 4, pairs // 4, vocab_size=vocab_size)  # learned sooner
    return Experiment(
        name,
        f"{title}; {length} tokens, {pairs} pairs, one head",
        rows,
        Setting(
            width=64 if small else 128,
            heads=1,
            inner=128 if small else 256,
            steps=1200 if small else 8000,
            batch=32 if small else 64,
            stop_at=0.99,
            examples=300 if small else 1000,
        ),
        train=(*easier, *mqar(length, pairs, vocab_size=vocab_size)),
        test=mqar(length, pairs, vocab_size=vocab_size),
        learning_rates=(2.15e-3, 1e-2) if small else (4.64e-4, 2.15e-3, 1e-2),
        axis="pairs",
        seeds=3,
        source=WORDS,
    )


def _state_sizes(budget: str) -> dict[str, Row]:
    """Linear attention climbs to softmax as its keys grow; normalised attention is above it, and SSD above S6."""
    sizes = KEYS[budget]
    rows = {"softmax": one("softmax", key_dim=sizes[0])}
    for kind, name, options in (
        ("linear", "linear", {"feature_map": "elu", "rotary": "rope"}),
        ("normalised", "normalized", {}),
    ):
        rows |= {
            f"{kind}, keys of {place}": one(name, key_dim=size, **options) for place, size in zip("1234", sizes, strict=True)
        }
    rows |= {"S6": one("s6", d_state=sizes[0]), "SSD": one("ssd", d_state=sizes[0])}
    return rows


def _by_budget(name: str, title: str, rows: dict[str, Row]) -> dict[str, Experiment]:
    return {budget: _mqar(name, title, rows, budget) for budget in ("minutes", "day", "paper")}


ARENA = {"softmax": one("softmax"), "linear": one("linear"), "normalised": one("normalized"), "S6": one("s6")}
LANGUAGE = {"softmax": one("softmax"), "normalised": one("normalized"), "linear": one("linear", feature_map="elu")}


def _listops(preset: str) -> Experiment:
    base = next(experiment for experiment in lra(preset) if experiment.name == "listops")
    return replace(base, rows=ARENA, seeds=3, published={}, source="DSF, arXiv 2405.15731, in words: mean over the Arena")


PAPER = Paper.of(
    "Understanding the Differences in Foundation Models (DSF), arXiv 2405.15731",
    Table(
        name="state-size",
        where="Figures 1, 2 and 7",
        shows="Recall by the size of the keys, one head: linear attention comes up to softmax, normalised before it",
        experiments={
            budget: _mqar(
                "state-size",
                "Recall by the size of the keys (four sizes, each twice the one before)",
                _state_sizes(budget),
                budget,
            )
            for budget in ("minutes", "day", "paper")
        },
        published={
            "softmax": 0,
            "normalised, keys of 4": 1,
            "linear, keys of 4": 2,
            "linear, keys of 3": 3,
            "linear, keys of 2": 4,
            "linear, keys of 1": 5,
        },
        in_words=True,
        asks=(("normalised, keys of 4", "linear, keys of 4"), ("SSD", "S6")),
        note="The authors' code gives normalised attention an MLP and the others none; here all have the same.",
    ),
    Table(
        name="normalisers",
        where="Table 2",
        shows="What normalised attention is divided by: exp is best, softplus and sigmoid are close",
        experiments=_by_budget(
            "normalisers",
            "The divisor of normalised attention",
            {eta: one("normalized", eta=eta) for eta in ("exp", "softplus", "sigmoid")}
            | {"softplus_offset, a later version": one("normalized", eta="softplus_offset")},
        ),
        published={"exp": 0, "softplus": 1, "sigmoid": 1},
        in_words=True,
        controls=("softplus_offset, a later version",),
    ),
    Table(
        name="qlstm",
        where="Figure 3",
        shows="The quasi-LSTM with the transition of S6 in place of its forget gate: better on all three tasks",
        experiments=_by_budget(
            "qlstm",
            "The forget gate of the quasi-LSTM",
            {"qLSTM, transition of S6": one("qlstm", forget="reversed"), "qLSTM": one("qlstm")},
        ),
        published={"qLSTM, transition of S6": 0, "qLSTM": 1},
        in_words=True,
        asks=(("qLSTM, transition of S6", "qLSTM"),),
    ),
    Table(
        name="listops",
        where="the table of the Long Range Arena",
        shows="ListOps of the Long Range Arena: normalised attention above softmax and linear, S6 above all",
        experiments={budget: _listops(preset) for budget, preset in mad.PRESETS.items()},
        published={"S6": 0, "normalised": 1, "softmax": 2, "linear": 2},
        in_words=True,
        asks=(("normalised", "softmax"), ("normalised", "linear"), ("S6", "normalised")),
        note="The published order is that of the mean over five tasks, of which ListOps is one; S6's lead there comes from "
        "Text and Image, whose data are not generated.",
    ),
    Table(
        name="language",
        where="the table of WikiText-103",
        shows="Normalised attention closes a quarter of the gap between linear attention and softmax",
        experiments=language.experiments(
            "language",
            "Normalised attention between linear attention and softmax",
            LANGUAGE,
            "DSF, arXiv 2405.15731, in words: 70 million parameters, 1024 tokens, WikiText-103, 50 epochs",
            length=1024,
        ),
        published={"softmax": 0, "normalised": 1, "linear": 2},
        in_words=True,
        asks=(("normalised", "linear"), ("softmax", "normalised")),
    ),
    Table(
        name="dynamics",
        where="Lemmas 1 and 2, Section 4",
        shows="Every mechanism as a linear time-varying system: eigenvalues, kernels, ranks",
        lab={"minutes": ("dynamics", {"quick": True}), "day": ("dynamics", {})},
    ),
)
