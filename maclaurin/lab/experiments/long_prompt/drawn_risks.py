"""The risk of one softmax head with any parameters, over drawn prompts and queries.

With x = Σ^{1/2}z the logits are z·a, a = Σ^{1/2}A x_q = s·n with |n| = 1. Over a prompt, Σ p_i z_i is (1 − shrinkage)·s on
average along n and Gaussian with variance Σp² across it, so that with w and the noise integrated

    2R = τ²E[|m|² − 2b s·shrinkage·m·Σ^{1/2}n + b²(nᵀΣn·E(Σ p_i z_i − s)² + (tr Σ − nᵀΣn)·E Σp²)] + σ²b²·E Σp²,
    m = bΣA x_q − x_q
"""

# Q queries, D channels, R tables

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from maclaurin.lab.experiments.long_prompt.draws import Mean, draw
from maclaurin.lab.experiments.long_prompt.risks import Regression
from maclaurin.lab.experiments.long_prompt.sizes import Table

QUERIES = 2**16  # rare ones decide where logits are large
TABLES = 16


def drawn_tables(length: int, prompts: int, source: torch.Generator) -> list[Table]:
    """Several, of a part of the prompts each, so that what they give has a standard error."""
    return [Table.drawn(length, max(prompts // TABLES, 1), source) for _ in range(TABLES)]


def drawn_risk(law: Regression, A_DD: Tensor, b: float, tables: Sequence[Table], source: torch.Generator) -> Mean:
    """2R over the prompts of the tables, which are of one length, and over as many queries as matter."""
    root_DD = torch.linalg.cholesky(law.prompt_DD)
    query_QD = draw("gaussian", (QUERIES, len(A_DD)), source) @ torch.linalg.cholesky(law.query_DD).T
    tilt_QD = query_QD @ A_DD.T @ root_DD
    size_Q = tilt_QD.norm(dim=-1)
    turned_QD = (tilt_QD / size_Q[:, None]) @ root_DD.T
    missed_QD = b * tilt_QD @ root_DD.T - query_QD
    along_Q = turned_QD.square().sum(-1)
    across_Q = law.prompt_DD.trace() - along_Q + law.noise / law.prior
    pull_Q = -2 * b * size_Q * (missed_QD * turned_QD).sum(-1)
    each = [
        pull_Q * table.shrinkage(size_Q) + b * b * (along_Q * table.error(size_Q) + across_Q * table.concentration(size_Q))
        for table in tables
    ]
    risk_RQ = law.prior * (missed_QD.square().sum(-1) + torch.stack(each))
    over_prompts, over_queries = Mean.of(risk_RQ.mean(1)), Mean.of(risk_RQ.mean(0))
    return Mean(over_prompts.value, math.hypot(over_prompts.error, over_queries.error))
