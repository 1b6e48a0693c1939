"""The budgets of `maclaurin compare`: how large, how long, how often, and what that can and cannot show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Budget:
    """recipe: fields that all runs share. learning_rates: tried on the first seed; the others have the best one.

    corpora: how many; the second is the command's. shows: for whoever reads the table.
    """

    recipe: dict[str, Any]
    seeds: int
    learning_rates: tuple[float, ...]
    corpora: int
    shows: str


def _recipe(width: int, layers: int, steps: int, length: int, **fields: Any) -> dict[str, Any]:
    return {
        "output": "runs/compare",
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "length": length,
        "batch_size": 8,
        "steps": steps,
        "warmup_steps": steps // 10,
        "eval_rows": 128,
        "test_rows": 512,
        "eval_every": steps // 5,
        "track": "none",
        **fields,
    }


DEFAULT = "minutes"
BUDGETS = {
    "minutes": Budget(
        _recipe(64, 2, 400, 128, save_every=400),  # a run takes seconds: it starts again rather than goes on
        seeds=3,
        learning_rates=(3e-3, 1e-2, 3e-2),
        corpora=1,
        shows="This budget shows what each mechanism learns quickly, and what it costs. It cannot show which "
        "one is best when trained to the end, in a large model or over long sequences: --budget hour and --budget night go "
        "further that way.",
    ),
    "hour": Budget(
        _recipe(64, 2, 2000, 512, batch_size=1),  # a million bytes per run
        seeds=3,
        learning_rates=(3e-3, 1e-2, 3e-2),
        corpora=2,
        shows="This budget shows the order of models of 0.1 million parameters while they still learn quickly, on two kinds "
        "of text. It cannot show what larger models, longer sequences or more data would change.",
    ),
    "night": Budget(
        _recipe(128, 4, 2000, 512, eval_rows=256, test_rows=1024),
        seeds=3,
        learning_rates=(1e-3, 3e-3, 1e-2),
        corpora=2,
        shows="This budget shows the order of models of 0.7 million parameters at 512 tokens on two kinds of text. It "
        "cannot show what larger models, longer sequences or more data would change.",
    ),
}
