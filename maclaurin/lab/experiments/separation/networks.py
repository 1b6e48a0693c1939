"""Random networks of the separation: many at a time by their tables, and a few written out as n x n attention."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maclaurin.common.intervals import wilson
from maclaurin.lab.experiments.separation.formulas import (
    MARGIN,
    TIE,
    Probabilities,
    Setting,
    Table,
    limit,
    probabilities,
    separable,
    tables,
    tied,
)
from maclaurin.lab.mechanisms import Attention

Fired = np.ndarray[Any, np.dtype[np.bool_]]  # (networks,)


@dataclass(frozen=True)
class Score:
    """Shares of `networks` random networks, what they are exactly, and what they are in the limit of 1.4.

    exact: None for a mechanism that the two-row formula does not describe.
    """

    setting: Setting
    networks: int
    measured: Probabilities
    exact: Probabilities | None
    limit: Probabilities
    tied: bool

    @property
    def success(self) -> float:
        return self.measured.success

    @property
    def interval(self) -> tuple[float, float]:
        low, high = wilson(self.success, self.networks)
        return round(low, 9), round(high, 9)  # a share of 0 begins at 0, not at 2e-19

    @property
    def verdict(self) -> str:
        """separates: at least half of the networks tell D0 from D1. noisy: they fire on D0 too. blind: on D1 as on D0."""
        if self.success >= 0.5:
            return "separates"
        if self.measured.false_positive >= 0.5:
            return "noisy"
        return "blind" if self.measured.true_positive - self.measured.false_positive <= 0.1 else "weak"


def score(attention: Attention, setting: Setting, networks: int, seed: int) -> Score:
    """Draws of a head's signs, looked up in the tables; where a weight depends on all keys, the network is written out."""
    rng = np.random.default_rng(seed)
    exact = None
    if separable(attention):
        on_D0, on_D1 = tables(attention, setting)
        exact = probabilities(setting, on_D0, on_D1)
        signs = rng.integers(8, size=(networks, setting.m))
        rest = rng.binomial(setting.d - 3, 0.5, size=(networks, setting.m))
        fired = [np.asarray(table[signs, rest].any(1)) for table in (on_D0, on_D1)]
    else:
        drawn = sign_vectors(setting, networks, rng)
        fired = [written_out(attention, setting, a, drawn) for a in setting.needles]
    return Score(setting, networks, _shares(*fired), exact, limit(setting), tied(setting))


def _shares(on_D0: Fired, on_D1: Fired) -> Probabilities:
    return Probabilities(float(on_D1.mean()), float(on_D0.mean()), float((on_D1 & ~on_D0).mean()))


def sign_vectors(setting: Setting, networks: int, rng: np.random.Generator) -> Tensor:
    """y of every head of every network, (networks, m, d)."""
    return torch.from_numpy(rng.integers(2, size=(networks, setting.m, setting.d)) * 2.0 - 1)


def data(setting: Setting, a: float, needle: int) -> Tensor:
    """A (n, d): one sample of D0 or D1, by its a."""
    n, d = int(setting.n), setting.d
    rows = torch.zeros(n, d, dtype=torch.float64, device="cpu")
    rows[needle, 0] = a
    rows[torch.arange(n, dtype=torch.long, device="cpu"), 1 + torch.arange(n, dtype=torch.long, device="cpu") % (d - 2)] = (
        setting.b
    )
    rows[:, -1] = setting.c
    return setting.unit * rows


def written_out(attention: Attention, setting: Setting, a: float, signs_NMD: Tensor, needle: int = 0) -> Fired:
    """Whether each network fires on a sample: attention of all n rows, all heads, the threshold."""
    rows = data(setting, a, needle)
    row_sum = rows.sum(1, keepdim=True)
    outputs = attention(setting.scale * row_sum, row_sum, rows)
    if setting.cross:
        outputs = outputs[[(needle + 1) % len(rows)]]  # a query of its own is like any generic token
    heads = outputs @ signs_NMD.flatten(0, 1).T / setting.unit
    fired: Fired = (heads >= setting.c + MARGIN - TIE).any(0).view(signs_NMD.shape[:2]).any(1).numpy()
    return fired


def looked_up(table: Table, signs_NMD: Tensor, needle: int = 0) -> Fired:
    """The same by the table of the two-row formula."""
    signs = signs_NMD.numpy()
    own = 1 + needle % (signs.shape[2] - 2)
    y1, yk, yd = (signs[..., column] < 0 for column in (0, own, -1))
    rest = (signs.sum(2) - signs[..., 0] - signs[..., own] - signs[..., -1] + signs.shape[2] - 3) / 2
    fired: Fired = table[(4 * y1 + 2 * yk + yd).astype(int), rest.astype(int)].any(1)
    return fired


def mismatches(attention: Attention, setting: Setting, networks: int, seed: int, needle: int) -> int:
    """Networks, of all on both data sets, in which the formula and the network written out disagree."""
    signs = sign_vectors(setting, networks, np.random.default_rng(seed))
    wrong = 0
    for a, table in zip(setting.needles, tables(attention, setting), strict=True):
        wrong += int((written_out(attention, setting, a, signs, needle) != looked_up(table, signs, needle)).sum())
    return wrong


def sweep(attention: Attention, base: Setting, values: dict[str, list[Any]], networks: int, seed: int) -> list[Score]:
    """Scores of the base with some of its fields changed: values by field, all lists equally long."""
    changes = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    return [score(attention, replace(base, **change), networks, seed) for change in changes]
