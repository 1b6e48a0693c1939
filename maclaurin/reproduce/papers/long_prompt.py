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
)
