"""What an order is worth: very small language models on the source of Python's standard library, byte by byte, all with the
same budget, with softmax and with the series up to an order.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maclaurin.data import open_corpus
from maclaurin.evals.learn import warmup_and_cosine
from maclaurin.lab import claims
from maclaurin.lab.claims import Claim
from maclaurin.lab.result import Curve, Grid, Plot
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM

PAPER = "arXiv 2507.23632"
VOCABULARY = 256
TRAIN_DOCUMENTS, HELD_OUT_DOCUMENTS = 200, 20
HELD_OUT_SEED = 1
HELD_OUT_WINDOWS = 64


@dataclass(frozen=True)
class Budget:
    """The same for all models, and with one seed the same text in the same order."""

    width: int = 32
    heads: int = 2
    layers: int = 2
    steps: int = 100
    batch: int = 16
    length: int = 64
    learning_rate: float = 1e-2


class Text:
    """Windows of bytes, drawn from documents that are read once."""

    def __init__(self) -> None:
        corpus = open_corpus("stdlib")
        self.train = _bytes(corpus.documents("train"), TRAIN_DOCUMENTS)
        self.held_out = _bytes(corpus.documents("held-out"), HELD_OUT_DOCUMENTS)

    def windows(self, part: np.ndarray[Any, Any], count: int, length: int, rng: np.random.Generator) -> Tensor:
        starts = rng.integers(len(part) - length, size=count)
        return torch.from_numpy(part[starts[:, None] + np.arange(length)].astype(np.int64))

    def test(self, length: int) -> Tensor:
        """The same windows every time."""
        return self.windows(self.held_out, HELD_OUT_WINDOWS, length, np.random.default_rng(HELD_OUT_SEED))


def _bytes(documents: Any, count: int) -> np.ndarray[Any, Any]:
    return np.frombuffer("\n".join(islice(documents, count)).encode(), dtype=np.uint8)


@dataclass(frozen=True)
class Trained:
    """loss: nats a byte of held-out text; infinite if training broke off at a loss that is no number."""

    model: Any
    loss: float


def train(mixer: str, options: dict[str, Any], text: Text, budget: Budget, seed: int) -> Trained:
    torch.manual_seed(seed)
    config = MaclaurinConfig(
        vocab_size=VOCABULARY,
        hidden_size=budget.width,
        intermediate_size=2 * budget.width,
        num_hidden_layers=budget.layers,
        num_attention_heads=budget.heads,
        mixer=mixer,
        mixer_options=options,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
    )
    model = MaclaurinForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=budget.learning_rate, betas=(0.9, 0.95), weight_decay=0.1)
    rng = np.random.default_rng(seed)
    for step in range(budget.steps):
        for group in optimizer.param_groups:
            group["lr"] = budget.learning_rate * warmup_and_cosine(step, budget.steps)
        ids = text.windows(text.train, budget.batch, budget.length, rng)
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        size = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not (math.isfinite(loss.item()) and math.isfinite(size.item())):
            return Trained(model.eval(), math.inf)
        optimizer.step()
    model.eval()
    ids = text.test(budget.length)
    with torch.no_grad():
        return Trained(model, model(ids, labels=ids).loss.item())


@dataclass(frozen=True)
class Study:
    """Softmax and Taylor models of the same size, text and number of steps, one a seed."""

    softmax: list[Trained]
    by_order: dict[int, list[Trained]]

    def claims(self) -> list[Claim]:
        means = {order: _mean(runs) for order, runs in self.by_order.items()}
        softmax = _mean(self.softmax)
        first, last = min(means), max(means)
        losses = [means[order] for order in sorted(means)]
        falling = all(later <= earlier for earlier, later in pairwise(losses))
        seen = " ".join(f"{loss:.3f}" for loss in losses)
        gap, left = means[first] - softmax, means[last] - softmax
        return [
            claims.at_least("P1.2", f"loss of order {first} above that of softmax", gap, self.spread(first), PAPER),
            claims.at_most("P1.2", f"of that gap, the share that is left at order {last}", left / gap, 0.25, PAPER),
            claims.true("P1.2", "every further order lowers the loss", seen, falling, "falling", PAPER),
        ]

    def spread(self, order: int) -> float:
        """What a seed makes of a difference, with softmax or with that order, whichever is more."""
        ranges = (_range(runs) for runs in (self.softmax, self.by_order[order]))
        return max(highest - lowest for _, lowest, highest in ranges)

    def grid(self) -> Grid:
        models = {f"order {order}": runs for order, runs in sorted(self.by_order.items())} | {"softmax": self.softmax}
        columns = ("model", "loss", "lowest", "highest")
        rows = [(name, *_range(runs)) for name, runs in models.items()]
        return Grid("Held-out loss, nats a byte, mean and range over seeds", columns, rows)

    def plot(self) -> Plot:
        orders = sorted(self.by_order)
        mean, low, high = zip(*(_range(self.by_order[order]) for order in orders), strict=True)
        flat = [_mean(self.softmax)] * 2
        curves = [
            Curve("orders 0 to P", orders, mean, low, high),
            Curve("softmax", [orders[0], orders[-1]], flat, dashed=True),
        ]
        return Plot("loss", "Held-out loss by the highest order; range over seeds.", "P", "nats a byte", curves)


def order_study(orders: Sequence[int], text: Text, budget: Budget, seeds: int, seed: int, norm: str = "sum") -> Study:
    numbers = range(seed, seed + seeds)
    by_order = {
        order: [train("taylor", {"order": order, "norm": norm}, text, budget, number) for number in numbers]
        for order in orders
    }
    return Study([train("softmax", {}, text, budget, number) for number in numbers], by_order)


def _mean(runs: Sequence[Trained]) -> float:
    return statistics.fmean(run.loss for run in runs)


def _range(runs: Sequence[Trained]) -> tuple[float, float, float]:
    return _mean(runs), min(run.loss for run in runs), max(run.loss for run in runs)
