"""The layer of the paper's experiments, trained as there: Q, K, V of 6 x 6 and an output map on noisy in-context regression.

    prediction o·V Σ_i p_i z_i,   p = softmax(s),  or s/L for linear attention,   s_i = (K z_i)·(Q z_q)/√6

Tokens are z = (x, y), the query z_q = (x_q, 0). No weight is set to zero: the head has to find the block form of the
theorems. SGD of the mean square on noisy labels, rate 1e-3, 128 fresh prompts per step. The authors take 300,000 steps; a
run says which share of them it took. Both kinds of attention start from the same weights and see the same prompts.
"""

# N prompts, L tokens, C = 6 channels of a token

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from maclaurin.data.tasks.regression import Regression as Task
from maclaurin.lab import claims
from maclaurin.lab.experiments.draws import seeded
from maclaurin.lab.experiments.long_prompt.regression import linear_optimum, official_law
from maclaurin.lab.result import Curve, Grid, Part, Plot

STEPS, BATCH, RATE = 300_000, 128, 1e-3
LENGTHS = (*range(10, 100, 10), *range(100, 1001, 100))
LOOKS = 20  # at the loss, per run
TESTED = 4096  # prompts
KINDS = ("softmax", "linear")


class Layer(nn.Module):
    """One head without biases, as PyTorch initialises it."""

    def __init__(self, channels: int, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.q, self.k, self.v = (nn.Linear(channels, channels, bias=False) for _ in range(3))
        self.out = nn.Linear(channels, 1, bias=False)

    def forward(self, tokens_NLC: Tensor) -> Tensor:
        """Predictions (N,) for the last token of every prompt, from all others."""
        prompt_NLC, query_NC = tokens_NLC[:, :-1], tokens_NLC[:, -1]
        asked_NC = self.q(query_NC) @ self.k.weight / math.sqrt(query_NC.shape[1])
        score_NL = (prompt_NLC @ asked_NC[..., None])[..., 0]
        p_NL = score_NL.softmax(-1) if self.kind == "softmax" else score_NL / score_NL.shape[1]
        predicted: Tensor = self.out(self.v((p_NL[:, None] @ prompt_NLC)[:, 0]))[:, 0]
        return predicted


@dataclass(frozen=True)
class Run:
    """losses: by kind, (step, mean square on the test prompts), from the start on."""

    length: int
    losses: dict[str, list[tuple[int, float]]]

    def last(self, kind: str) -> float:
        return self.losses[kind][-1][1]

    @property
    def apart(self) -> float:
        """How far the losses are from each other, the largest difference along the way."""
        return max(abs(one - other) for (_, one), (_, other) in zip(*self.losses.values(), strict=True))


def train(task: Task, steps: int, seed: int) -> Run:
    layers = []
    for kind in KINDS:
        with seeded(seed):
            layers.append(Layer(task.dimensions + 1, kind))
    optimizer = torch.optim.SGD([weight for layer in layers for weight in layer.parameters()], lr=RATE)
    test = task.draw(TESTED, np.random.default_rng((seed, 1)))
    source = np.random.default_rng((seed, 2))
    losses: dict[str, list[tuple[int, float]]] = {kind: [] for kind in KINDS}
    for step in range(steps + 1):
        if step % max(steps // LOOKS, 1) == 0:
            with torch.no_grad():
                for layer in layers:
                    losses[layer.kind].append((step, (layer(test.inputs) - test.labels).square().mean().item()))
        if step == steps:
            break
        drawn = task.draw(BATCH, source)
        loss = torch.stack([(layer(drawn.inputs) - drawn.labels).square().mean() for layer in layers]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return Run(task.length, losses)


def part(lengths: Sequence[int], steps: int, seed: int, as_published: bool) -> Part:
    law = official_law(as_published)
    runs = [train(Task(length=length, as_published=as_published), steps, seed) for length in lengths]
    first, last = runs[0], runs[-1]
    nothing = law.noise + law.prior * law.query_DD.trace().item()  # of predicting zero
    best = {run.length: law.noise + linear_optimum(law, run.length) for run in runs}
    text = f"losses of softmax and linear attention apart, L = {last.length} over L = {first.length}"
    made = [claims.at_most("6 gap", text, last.apart / first.apart, 0.5)]
    for kind in KINDS:
        text = f"{kind}, L = {last.length}: loss at the end over that at the start"
        made.append(claims.at_most("6 learns", text, last.last(kind) / last.losses[kind][0][1], 1.0))
    text = f"linear attention, L = {last.length}: loss at the end over that of the best head"
    if steps >= STEPS:
        made.append(claims.between("6 best", text, last.last("linear") / best[last.length], 0.95, 1.2))
    else:
        made.append(claims.not_applicable("6 best", text, f"{steps:,} of {STEPS:,} steps"))
    columns = ("L", "softmax", "linear", "largest difference", "best linear head", "zero")
    rows = [(r.length, r.last("softmax"), r.last("linear"), r.apart, best[r.length], nothing) for r in runs]
    title = f"The full layer after {steps:,} of {STEPS:,} steps: mean square on noisy labels"
    ended = [Curve.of(kind, {run.length: run.last(kind) for run in runs}) for kind in KINDS]
    ended.append(Curve.of("best linear head", best, dashed=True))
    along = [Curve.of(f"{kind}, L = {run.length}", dict(run.losses[kind])) for run in (first, last) for kind in KINDS]
    loss = "mean square"
    plots = [
        Plot("layer-lengths", "The full layer at the end of training.", "prompt length L", loss, ended, log_x=True),
        Plot("layer-steps", "The full layer along training, the shortest and the longest prompts.", "step", loss, along),
    ]
    return Part(made, [Grid(title, columns, rows)], plots)
