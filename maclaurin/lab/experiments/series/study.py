"""What an order is worth: tiny byte-level language models of the standard library, all with the same budget."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from maclaurin.data import open_corpus
from maclaurin.data.tasks import Batch, Task
from maclaurin.evals.cells import Cell, Row, Setting
from maclaurin.evals.learn import TEST_SEED, train
from maclaurin.evals.models import build
from maclaurin.evals.suites.rows import one
from maclaurin.lab import claims
from maclaurin.lab.result import Curve, Grid, Part, Plot

PAPER = "arXiv 2507.23632"
DOCUMENTS = {"train": 200, "held-out": 20}
TEST_WINDOWS = 64
LENGTH = 64  # of a window
LEARNING_RATE = 1e-2


@dataclass(frozen=True)
class Bytes(Task[Batch]):
    """Windows of the text of a split; at every byte the next one is asked for."""

    split: str
    length: int = LENGTH

    @property
    def vocab_size(self) -> int:
        return 256

    def draw(self, count: int, rng: np.random.Generator) -> Batch:
        text = _text(self.split)
        starts = rng.integers(len(text) - self.length, size=count)
        ids = torch.from_numpy(text[starts[:, None] + np.arange(self.length + 1)].astype(np.int64))
        return Batch(ids[:, :-1], ids[:, 1:])

    def test(self, count: int) -> Tensor:
        """The same windows every time, with the byte behind each: (count, length + 1)."""
        drawn = self.sample(count, TEST_SEED)
        return torch.cat([drawn.tokens, drawn.targets[:, -1:]], dim=1)


@lru_cache
def _text(split: str) -> np.ndarray[Any, Any]:
    documents = open_corpus("stdlib").documents(split)
    return np.frombuffer("\n".join(islice(documents, DOCUMENTS[split])).encode(), dtype=np.uint8)


@dataclass(frozen=True)
class Trained:
    """loss: nats per byte of validation text; infinite if training broke off at a loss that is no number."""

    model: Any
    loss: float


def budget(width: int, steps: int) -> Setting:
    """The same for all models, and with one seed the same text in the same order."""
    return Setting(width=width, heads=2, layers=2, inner=2 * width, steps=steps, batch=16)


def trained(row: Row, setting: Setting, seed: int) -> Trained:
    torch.manual_seed(seed)
    task = Bytes("train")
    model = build(row, setting, task)
    _, diverged = train(model, Cell("lab", "series", row, setting, (), (), LEARNING_RATE, seed), [task])
    with torch.no_grad():
        loss = cross_entropy(*model.eval()(Bytes("held-out").sample(TEST_WINDOWS, TEST_SEED)))
    return Trained(model.model, math.inf if diverged else loss.item())


@dataclass(frozen=True)
class Study:
    """Softmax and Taylor models of the same size, text and number of steps, one per seed."""

    softmax: list[Trained]
    by_order: dict[int, list[Trained]]

    def part(self) -> Part:
        softmax, losses = _range(self.softmax), {order: _range(runs) for order, runs in sorted(self.by_order.items())}
        means = [mean for mean, _, _ in losses.values()]
        first, last = min(losses), max(losses)
        gap, left = means[0] - softmax[0], means[-1] - softmax[0]
        pairs = zip(self.by_order[first], self.softmax, strict=True)  # of one seed: the same text in the same order
        lowest = min(own.loss - others.loss for own, others in pairs)
        over = f"lowest of {len(self.softmax)} seeds"
        falling, seen = all(b <= a for a, b in pairwise(means)), " ".join(f"{loss:.3f}" for loss in means)
        made = [
            claims.at_least(
                "P1.2", f"loss of order {first} above that of softmax with its seed, {over}", lowest, 0.0, PAPER
            ),
            claims.at_most("P1.2", f"of that gap, the share that is left at order {last}", left / gap, 0.25, PAPER),
            claims.true("P1.2", "every further order lowers the loss", seen, falling, "falling", PAPER),
        ]
        rows = [(f"order {order}", *loss) for order, loss in losses.items()] + [("softmax", *softmax)]
        _, lows, highs = zip(*losses.values(), strict=True)
        flat = Curve("softmax", [first, last], [softmax[0]] * 2, dashed=True)
        curves = [Curve("orders 0 to P", list(losses), means, lows, highs), flat]
        several = len(self.softmax) > 1
        over = "range over seeds" if several else "one seed"
        plot = Plot("loss", f"Validation loss by the highest order; {over}.", "P", "nats per byte", curves)
        title = f"Validation loss, nats per byte, {'mean and ' * several}{over}"
        return Part(made, [Grid(title, ("model", "loss", "lowest", "highest"), rows)], [plot])


def order_study(orders: Sequence[int], setting: Setting, seeds: int, seed: int, norm: str = "sum") -> Study:
    def runs(row: Row) -> list[Trained]:
        return [trained(row, setting, number) for number in range(seed, seed + seeds)]

    return Study(runs(one("softmax")), {order: runs(one("taylor", order=order, norm=norm)) for order in orders})


def _range(runs: Sequence[Trained]) -> tuple[float, float, float]:
    """Mean, lowest and highest loss."""
    losses = [run.loss for run in runs]
    return statistics.fmean(losses), min(losses), max(losses)
