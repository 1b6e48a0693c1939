"""Random networks of the separation, by their two different rows: exact probabilities, many draws, and a few written out.

A row of the data is √(log n)·(a·1[needle] e_1 + b e_{1+κ} + c e_d), so a token's row sum is ρ√(log n) with ρ = 1, or 1 + a
at the needle, and so are its query and its key. All tokens but the needle look alike to the attention: it has two different
rows, and each is known once its mass p on the needle is. In units of √(log n) a head with signs y then reads

    a p y_1 + b p y_k + b (1-p) S + c y_d,   S = (t·(y_k + R) - y_k)/(n-1)

with y_k the sign of the needle's own column, R the sum of the d-3 other signs and t = n/(d-2). The network fires where a row
of a head reads at least c + 0.1. This costs nothing for n = 10⁶ and is exact: `mismatches` compares it with the network
written out. There are 8 choices of (y_1, y_k, y_d) and d-2 values of R, so probabilities are sums over a small table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maclaurin.common.arguments import at_least, at_least_one
from maclaurin.common.intervals import wilson
from maclaurin.lab.experiments.draws import eye, vector
from maclaurin.lab.mechanisms import Attention

MARGIN = 0.1  # the threshold is (c + MARGIN)·√(log n)
TIE = 1e-9  # values this close to the threshold count as above it, whatever the rounding
SMALLEST_TIE = 1e-3  # a tie in fewer networks than this share is none
SIGNS = np.array([(y1, yk, yd) for y1 in (1, -1) for yk in (1, -1) for yd in (1, -1)], dtype=float)

Floats = np.ndarray[Any, np.dtype[np.float64]]
Fired = np.ndarray[Any, np.dtype[np.bool_]]  # (networks,)
Table = np.ndarray[Any, np.dtype[np.bool_]]  # (8, d-2): signs (y_1, y_k, y_d), and R = -(d-3), -(d-5), …, d-3


@dataclass(frozen=True)
class Setting:
    """n tokens of d channels, m heads; a0, a1 of the needle in D0 and D1; c of the constant channel, b = 1 - c.

    scale: a factor on the scores. cross: one query that sees the needle in one of n keys, in place of self-attention.
    """

    n: float = 1000
    d: int = 52
    m: int = 40
    a0: float = 0.01
    a1: float = 1.2
    c: float = 0.8
    scale: float = 1.0
    cross: bool = False

    def __post_init__(self) -> None:
        at_least(4, "d", self.d)
        at_least_one("m", self.m)
        if self.n < 2 or (self.n < 2**53 and self.n % (self.d - 2)):
            raise ValueError(f"n must be a multiple of d - 2 = {self.d - 2}, so that columns repeat, got {self.n:g}")
        if not 0 < self.c < 1:
            raise ValueError(f"c must lie between 0 and 1 (b = 1 - c), got {self.c}")
        if self.a0 < 0 or self.a1 < 0 or self.scale <= 0:
            raise ValueError(f"a0 and a1 must be >= 0 and scale > 0, got {self.a0}, {self.a1} and {self.scale}")

    @property
    def b(self) -> float:
        return 1 - self.c

    @property
    def unit(self) -> float:
        return math.sqrt(math.log(self.n))

    @property
    def needles(self) -> tuple[float, float]:
        """a of D0 and of D1. A query of its own has nothing but equal scores in D0."""
        return (0.0 if self.cross else self.a0), self.a1


@dataclass(frozen=True)
class Masses:
    """What a generic row and the needle's row put on the needle."""

    generic: float
    needle: float


def masses(attention: Attention, n: float, a: float, scale: float = 1.0) -> Masses:
    """From the mechanism itself: on one generic token and the needle it gives the ratio of their weights, and n-1 generic
    tokens weigh n-1 times as much as one. `separable` says whether that is so.
    """
    row_sum = math.sqrt(math.log(n)) * vector((1.0, 1.0 + a))[:, None]
    other, own = attention(scale * row_sum, row_sum, eye(2)).T
    return Masses(*(own / ((n - 1) * other + own)).tolist())


def row_weights(attention: Attention, *row_sums: float) -> Tensor:
    """Of tokens with these row sums."""
    row_sum = vector(row_sums)[:, None]
    return attention(row_sum, row_sum, eye(len(row_sum)))


def separable(attention: Attention) -> bool:
    """Whether a weight depends on its own key alone, but for the sum: then more generic tokens only dilute the needle."""
    found = row_weights(attention, *[1.0] * 5, 1.7)[[0, -1], -1]
    few = vector(astuple(masses(attention, math.e, 0.7)))  # √(log e) = 1
    return torch.allclose(found, few / (few + 5 * (1 - few) / (math.e - 1)), rtol=1e-9, atol=0)


def normalised(attention: Attention) -> bool:
    """Whether rows sum to one, which the threshold supposes."""
    return bool((row_weights(attention, 1.0, 1.7, 2.0).sum(1) - 1).abs().max() < 1e-9)


def sees_magnitude(attention: Attention) -> bool:
    """Whether a longer key weighs differently. The needle is coded in nothing else."""
    return bool(row_weights(attention, 0.1, 0.2).diff().abs().max() > 1e-9)


def fires(setting: Setting, a: float, found: Masses) -> Table:
    """Which heads make the network fire, by their signs."""
    n, d, b, c = setting.n, setting.d, setting.b, setting.c
    y1, yk, yd = (SIGNS[:, [column]] for column in range(3))
    rest = np.arange(-(d - 3), d - 2, 2.0)[None]
    S = (n / (d - 2) * (yk + rest) - yk) / (n - 1)
    table = np.zeros((len(SIGNS), d - 2), dtype=bool)
    for p in (found.generic,) if setting.cross else (found.generic, found.needle):
        table |= a * p * y1 + b * p * yk + b * (1 - p) * S + c * yd >= c + MARGIN - TIE
    return table


def tables(attention: Attention, setting: Setting) -> tuple[Table, Table]:
    """Of D0 and of D1."""
    one, other = (fires(setting, a, masses(attention, setting.n, a, setting.scale)) for a in setting.needles)
    return one, other


@dataclass(frozen=True)
class Probabilities:
    """Of a random network: fires on D1, fires on D0, fires on D1 alone."""

    true_positive: float
    false_positive: float
    success: float


def probabilities(setting: Setting, on_D0: Table, on_D1: Table) -> Probabilities:
    """Exact: heads are independent, and P(D1 fires, D0 does not) = P(D0 does not) - P(neither does)."""
    shares, m = _binomial(setting.d - 3), setting.m
    q0, q1, either = (float((table @ shares).mean()) for table in (on_D0, on_D1, on_D0 | on_D1))
    return Probabilities(_any(q1, m), _any(q0, m), (1 - q0) ** m - (1 - either) ** m)


def limit(setting: Setting) -> Probabilities:
    """The same for an ideal mechanism, all of whose mass is on the needle of D1 and none on that of D0."""
    c, m = setting.c, setting.m
    q1 = float((SIGNS @ (setting.a1, setting.b, c) >= c + MARGIN - TIE).mean())
    q0 = _unseen(setting, lambda excess: excess >= -TIE)
    return Probabilities(_any(q1, m), _any(q0, m), _any(q1, m) * (1 - q0) ** m)


def tied(setting: Setting) -> bool:
    """Whether sums of signs that some network has fall on the threshold where the needle has no weight: rounding decides."""
    return setting.m * _unseen(setting, lambda excess: np.abs(excess) < TIE) > SMALLEST_TIE


def _unseen(setting: Setting, counts: Callable[[Floats], Fired]) -> float:
    """Of heads that give the needle no weight, the share whose excess over the threshold counts."""
    columns = setting.d - 2
    S = np.arange(-columns, columns + 1, 2) / columns
    excess = [setting.b * S + setting.c * yd - setting.c - MARGIN for yd in (1, -1)]
    return sum(float(_binomial(columns)[counts(each)].sum()) for each in excess) / 2


def _any(q: float, m: int) -> float:
    return 1 - (1 - q) ** m


def _binomial(count: int) -> Floats:
    """The probabilities of 0 … count heads in as many throws of a coin."""
    return np.array([math.comb(count, k) / 2**count for k in range(count + 1)])


@dataclass(frozen=True)
class Score:
    """Shares of `networks` random networks."""

    setting: Setting
    networks: int
    measured: Probabilities
    exact: Probabilities | None  # None for a mechanism that the two-row formula does not describe
    limit: Probabilities  # of 1.4
    tied: bool

    @property
    def success(self) -> float:
        return self.measured.success

    @property
    def exact_success(self) -> float | None:
        return None if self.exact is None else self.exact.success

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
    measured = Probabilities(*(float(shares.mean()) for shares in (fired[1], fired[0], fired[1] & ~fired[0])))
    return Score(setting, networks, measured, exact, limit(setting), tied(setting))


def sign_vectors(setting: Setting, networks: int, rng: np.random.Generator) -> Tensor:
    """y of every head of every network, (networks, m, d)."""
    return torch.from_numpy(rng.integers(2, size=(networks, setting.m, setting.d)) * 2.0 - 1)


def written_out(attention: Attention, setting: Setting, a: float, signs_NMD: Tensor, needle: int = 0) -> Fired:
    """Whether each network fires on a sample of D0 or D1, by its a: attention of all n rows, all heads, the threshold."""
    rows = torch.zeros(int(setting.n), setting.d, dtype=torch.float64, device="cpu")
    rows[needle, 0] = a
    token = torch.arange(len(rows), dtype=torch.long, device="cpu")
    rows[token, 1 + token % (setting.d - 2)] = setting.b
    rows[:, -1] = setting.c
    rows = setting.unit * rows
    row_sum = rows.sum(1, keepdim=True)
    outputs = attention(setting.scale * row_sum, row_sum, rows)
    if setting.cross:
        outputs = outputs[[(needle + 1) % len(rows)]]  # a query of its own is like any generic token
    heads = outputs @ signs_NMD.flatten(0, 1).T / setting.unit
    return np.asarray((heads >= setting.c + MARGIN - TIE).any(0).view(signs_NMD.shape[:2]).any(1))


def looked_up(table: Table, signs_NMD: Tensor, needle: int = 0) -> Fired:
    """The same by the table of the two-row formula."""
    signs = signs_NMD.numpy()
    own = 1 + needle % (signs.shape[2] - 2)
    y1, yk, yd = (signs[..., column] < 0 for column in (0, own, -1))
    rest = (signs.sum(2) - signs[..., 0] - signs[..., own] - signs[..., -1] + signs.shape[2] - 3) / 2
    return np.asarray(table[(4 * y1 + 2 * yk + yd).astype(int), rest.astype(int)].any(1))


def mismatches(attention: Attention, setting: Setting, networks: int, seed: int, needle: int) -> int:
    """Networks, of all on both data sets, in which the formula and the network written out disagree."""
    signs = sign_vectors(setting, networks, np.random.default_rng(seed))
    wrong = 0
    for a, table in zip(setting.needles, tables(attention, setting), strict=True):
        wrong += int((written_out(attention, setting, a, signs, needle) != looked_up(table, signs, needle)).sum())
    return wrong
