"""Softmax attention is linear for long prompts (Boursier and Boyer, arXiv 2512.11784)."""

from __future__ import annotations

from maclaurin.reproduce.table import Paper, Table

PAPER = Paper.of(
    "Softmax as Linear Attention in the Large-Prompt Regime, arXiv 2512.11784",
    Table(
        name="long-prompt",
        where="the theorems and figures",
        shows="Softmax becomes linear as the prompt grows: how fast, when it breaks, and training from prompts",
        lab={"minutes": ("long-prompt", {"quick": True}), "day": ("long-prompt", {}), "paper": ("long-prompt", {})},
    ),
    Table(
        name="layer",
        where="Section 6",
        shows="The full layer (Q, K, V of 6x6) trained on prompts of 10 to 1000 tokens, softmax beside linear attention",
        lab={  # a thirtieth of the 300,000 steps at 3 of the 19 lengths, a tenth at all of them, and the whole
            "minutes": ("long-prompt", {"layer_steps": 10_000, "quick": True}),
            "day": ("long-prompt", {"layer_steps": 30_000}),
            "paper": ("long-prompt", {"layer_steps": 300_000}),
        },
    ),
)
