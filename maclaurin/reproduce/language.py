"""The thesis's language models: small ones that predict the bytes of a text, and the published recipe.

All small tables of a budget have one setting, so that a row that several tables have is trained once. Heads have a quarter
of the published channels at `minutes`, and half at `day`; Mamba's state and the projections of single orders, which are
given in channels, are scaled with them. The published lengths are divided by 8; with as many tokens per step whatever the
length.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from maclaurin.evals.cells import Problem, Row, Setting
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.suites.rows import one
from maclaurin.mixers.published import published_row

HEAD_DIM = 64  # of the published models
SHORTER = 8  # times than the published lengths
TOKENS = {"minutes": 1024, "day": 2048}  # per step
SETTINGS = {
    "minutes": Setting(width=64, heads=4, layers=2, inner=128, examples=128, weight_decay=0.01),
    "day": Setting(width=128, heads=4, layers=4, inner=256, examples=512, weight_decay=0.01),
}
STEPS = {"minutes": 400, "day": 3000}
RATES = {"minutes": (3e-3, 1e-2), "day": (1e-3, 3e-3, 1e-2)}
SEEDS = 3
SMALLER = (
    "Bytes of Python's standard library, models of about {parameters}: thousands of times smaller than the published ones. "
    "All rows have softmax's number of parameters, by the width of their MLPs, and the best of {rates} learning rates, "
    "by the validation of the first seed."
)

# batch of 32 documents, AdamW, a schedule of a million steps that is left after a hundred thousand
RECIPE: dict[str, Any] = {
    "corpus": "fineweb",
    "tokenizer": "meta-llama/Llama-2-7b-hf",
    "rows": "documents",
    "batch_size": 32,
    "steps": 100_000,
    "learning_rate": 1e-4,
    "schedule": "linear",
    "schedule_steps": 1_000_000,
    "warmup_steps": 10_000,
    "weight_decay": 0.01,
    "clip": 0.0,
    "precision": "bf16",
    "trainer": {"adam_epsilon": 1e-7},
}


def published(paper: str, name: str, **options: Any) -> Row:
    """A row of the thesis's tables, with options beside its own."""
    mixer, own = published_row(f"{paper}/{name}")
    return one(mixer, **own | options)


def smaller(row: Row, setting: Setting) -> Row:
    """The row with Mamba's state in proportion to the channels of a head, and orders' own ones to their root."""
    (mixer,) = row.mixers
    options = dict(row.options.get(mixer, {}))
    head_dim = setting.width // setting.heads
    if "order_dim" in options:
        return replace(row, options={mixer: options | {"order_dim": 2 * round(math.sqrt(head_dim) / 2)}})
    if not mixer.startswith("mamba2") or mixer == "mamba2s":
        return row
    return replace(row, options={mixer: options | {"d_state": options.get("d_state", 128) * head_dim // HEAD_DIM}})


def experiments(
    name: str,
    title: str,
    rows: Mapping[str, Row],
    source: str,
    *,
    length: int,
    not_in_minutes: Collection[str] = (),
    rates: Mapping[str, tuple[float, ...]] = RATES,
) -> dict[str, Experiment]:
    """The table at both small budgets. length: the published one. rates: by budget. not_in_minutes: rows that take too long
    for it.
    """
    found = {}
    for budget, setting in SETTINGS.items():
        tokens = length // SHORTER
        words = {"minutes": "a hundred thousand parameters", "day": "a million parameters"}[budget]
        found[budget] = Experiment(
            name,
            f"{title}; {tokens} bytes at a time",
            {
                label: smaller(row, setting)
                for label, row in rows.items()
                if budget != "minutes" or label not in not_in_minutes
            },
            replace(setting, batch=TOKENS[budget] // tokens, steps=STEPS[budget]),
            train=(Problem("text", {"length": tokens}),),
            test=(Problem("text", {"length": tokens, "split": "test"}),),
            learning_rates=rates[budget],
            metric="loss",
            seeds=SEEDS,
            source=source,
            note=SMALLER.format(parameters=words, rates=len(rates[budget])),
        )
    return found
