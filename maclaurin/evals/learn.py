"""Train one small model on one task and score it: the protocol that every cell of every suite follows.

Training examples are new at every step, drawn with the cell's seed; validation and test examples have seeds of their own,
the same for all cells. AdamW (0.9, 0.95), weight decay of matrices only, a tenth of the steps to warm up, then a cosine to a
hundredth, gradients clipped to norm 1. Where there is a goal, training ends when validation reaches it; where there are
separate validation tasks, the weights with the best validation accuracy are kept. A run whose loss becomes NaN ends there:
its accuracies are 0, and its losses those of guessing among all classes.

The same cell gives the same numbers, bit for bit, on the same machine with the same number of threads.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from maclaurin.common.records import ABSENT, Record
from maclaurin.data.tasks import MQAR, NOT_ASKED, Batch, StoredTask, Task
from maclaurin.data.tasks.base import rows
from maclaurin.evals.cells import Cell
from maclaurin.evals.models import SmallModel, build
from maclaurin.evals.parts import training_part, validation_part
from maclaurin.training.windows import WindowSchedule, own_windows

VALIDATION_SEED, TEST_SEED, FIRST_TRAINING_SEED = 1, 2, 1000
VALIDATION_EXAMPLES = 256  # per task, at the end
CHECK_EXAMPLES = 64  # per task, the first of these: to stop early, and to keep the best weights
CHECKS = 20  # such validations per run
SHORT_WINDOW_PROBABILITY = 0.5
TOKENS_AT_ONCE = 16384  # per forward of a test
EXAMPLES_AT_ONCE = 256  # read at once from a stored test

Examples = Any  # Batch or Labelled
Watch = Callable[[int, float], None]


@dataclass(frozen=True)
class Score(Record):
    """On one test. accuracy: the mean over examples of their share of right answers. exact: examples without a mistake.

    state_bytes: the state of the model for one sequence of this length, None if it has none. by_distance: for recall,
    (from, to, right answers, answers asked for) by how many tokens ago the key first occurred. loss: nats per answer, the
    mean over examples, with their standard deviation; None in results from before it was counted.
    """

    accuracy: float
    exact: float
    examples: int
    length: int
    state_bytes: int | None
    by_distance: Sequence[tuple[int, int, int, int]]
    loss: float | None = field(default=None, metadata=ABSENT)
    loss_std: float | None = field(default=None, metadata=ABSENT)


@dataclass(frozen=True)
class Outcome(Record):
    validation: float  # accuracy on the validation tasks; learning rates are chosen by it, or by the loss there
    scores: Sequence[Score]  # in the order of the cell's tests
    parameters: int
    steps: int  # taken: fewer than allowed if the goal was reached
    diverged: bool
    seconds: float  # CPU time: other processes do not count
    validation_loss: float | None = field(default=None, metadata=ABSENT)  # nats per answer
    curve: Sequence[tuple[int, float]] = ()  # now and then the step, and the loss of training since the one before

    @classmethod
    def from_json(cls, values: Any, where: str = "") -> Self:
        made = super().from_json(values, where)
        numbers: list[float] = [made.validation, made.parameters, made.steps, made.seconds, made.validation_loss or 0]
        for score in made.scores:
            numbers += [score.accuracy, score.exact, score.examples, score.length, score.state_bytes or 0]
            numbers += [number for bucket in score.by_distance for number in bucket]
            numbers += [score.loss or 0, score.loss_std or 0]
        numbers += [number for point in made.curve for number in point]
        if not all(0 <= number < math.inf for number in numbers):
            raise ValueError("numbers of an outcome must be finite and at least 0")
        return made


def learn(cell: Cell, watch: Watch = lambda step, loss: None) -> Outcome:
    """Train and score. `watch` is called with the step and the mean loss since it was last called, now and then."""
    started = time.process_time()
    torch.manual_seed(cell.seed)
    tasks = [problem.task() for problem in cell.train]
    model = build(cell.row, cell.setting, tasks[0])
    curve: list[tuple[int, float]] = []

    def note(step: int, loss: float) -> None:
        curve.append((step, loss))
        watch(step, loss)

    steps, diverged = train(model, cell, tasks, note)
    windows = own_windows(model)
    for mixer, own in windows.items():
        mixer.window = cell.row.test_window or own
    model.eval()
    guessing = math.log(tasks[0].num_classes)
    validation, loss = (0.0, guessing) if diverged else _validation(model, _judges(cell))
    scores = [_score(model, problem.task(), cell.setting.examples, diverged) for problem in cell.test]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Outcome(validation, scores, parameters, steps, diverged, time.process_time() - started, loss, tuple(curve))


def train(model: SmallModel, cell: Cell, tasks: list[Task[Any]], watch: Watch = lambda step, loss: None) -> tuple[int, bool]:
    """How many steps were taken, and whether the loss became NaN."""
    setting = cell.setting
    optimizer = _optimizer(model, cell.learning_rate, setting.weight_decay)
    windows = own_windows(model)
    short = cell.row.short_window
    schedule = WindowSchedule(short or 0, SHORT_WINDOW_PROBABILITY if short else 0.0, setting.steps, cell.seed)
    check_every = max(setting.steps // CHECKS, 1)
    looks = setting.stop_at is not None or bool(cell.validate)
    best, weights = -1.0, {}
    since: list[float] = []
    taken = setting.steps
    for step, examples in zip(range(setting.steps), _stream(cell, tasks), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = cell.learning_rate * warmup_and_cosine(step, setting.steps)
        for mixer, own in windows.items():
            mixer.window = schedule.short if schedule.is_short(step) else own
        logits, answers = model(examples)
        loss = cross_entropy(logits.float(), answers, label_smoothing=setting.label_smoothing)
        optimizer.zero_grad()
        loss.backward()
        length = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not (math.isfinite(loss.item()) and math.isfinite(length.item())):
            return step + 1, True
        optimizer.step()
        since.append(loss.item())
        if (step + 1) % check_every == 0:
            watch(step + 1, float(np.mean(since)))
            since.clear()
            if looks:
                for mixer, own in windows.items():
                    mixer.window = own
                model.eval()
                accuracy, _ = _validation(model, _judges(cell), CHECK_EXAMPLES)
                model.train()
                if cell.validate and accuracy > best:
                    best, weights = accuracy, {name: value.clone() for name, value in model.state_dict().items()}
                if setting.stop_at is not None and accuracy >= setting.stop_at:
                    taken = step + 1
                    break
    if weights:
        model.load_state_dict(weights)
    return taken, False


def _optimizer(model: SmallModel, learning_rate: float, weight_decay: float) -> torch.optim.Optimizer:
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95))


def warmup_and_cosine(step: int, steps: int, warmup: float = 0.1, last: float = 0.01) -> float:
    """The learning rate's factor at a step counted from 0."""
    rising = max(round(warmup * steps), 1)
    if step < rising:
        return (step + 1) / rising
    done = (step - rising) / max(steps - rising, 1)
    return last + (1 - last) * 0.5 * (1 + math.cos(math.pi * done))


def _stream(cell: Cell, tasks: list[Task[Any]]) -> Iterator[Examples]:
    seed = FIRST_TRAINING_SEED + cell.seed
    streams = [training_part(task).batches(cell.setting.batch, seed) for task in tasks]
    turns = np.random.default_rng(seed)
    while True:
        yield next(streams[turns.integers(len(streams))])


def _judges(cell: Cell) -> list[Task[Any]]:
    """The tasks of validation."""
    return [problem.task() for problem in cell.validate or cell.train]


def _validation(model: SmallModel, tasks: list[Task[Any]], examples: int = VALIDATION_EXAMPLES) -> tuple[float, float]:
    """Accuracy and loss: the mean over tasks, each with the same weight."""
    found = [_answers(model, validation_part(task).sample(examples, VALIDATION_SEED)) for task in tasks]
    share, loss = ([getattr(one, column).mean().item() for one in found] for column in ("share_N", "loss_N"))
    return float(np.mean(share)), float(np.mean(loss))


def _score(model: SmallModel, task: Task[Any], examples: int, diverged: bool) -> Score:
    """Generated examples are drawn; stored ones are all read, a few at a time, since two long texts per example fill RAM."""
    parts: Iterable[Examples] = (
        task.once(EXAMPLES_AT_ONCE) if isinstance(task, StoredTask) else [task.sample(examples, TEST_SEED)]
    )
    found = []
    for drawn in parts:
        found.append(_answers(model, drawn))
    last = found[-1]
    share_N, loss_N = torch.cat([one.share_N for one in found]), torch.cat([one.loss_N for one in found])
    if diverged:
        share_N, last = torch.zeros_like(share_N), replace(last, right=torch.zeros_like(last.right))
        loss_N = torch.full_like(loss_N, math.log(task.num_classes))
    inputs = drawn.tokens if isinstance(drawn, Batch) else drawn.inputs
    length = inputs.shape[-1] if inputs.dtype == torch.int64 else inputs[0].numel()  # tokens, or pixels
    buckets = _by_distance(drawn.tokens, last.right, last.asked) if isinstance(task, MQAR) else []
    return Score(
        accuracy=share_N.mean().item(),
        exact=(share_N == 1).double().mean().item(),
        examples=len(share_N),
        length=length,
        state_bytes=model.state_nbytes(length),
        by_distance=buckets,
        loss=loss_N.mean().item(),
        loss_std=loss_N.std(correction=0).item(),
    )


@dataclass(frozen=True)
class Answers:
    share_N: Tensor  # of right answers per example
    loss_N: Tensor  # nats per answer, the mean per example
    right: Tensor  # which are right and which are asked for, (N, T) or (N, 1)
    asked: Tensor


@torch.no_grad()
def _answers(model: SmallModel, drawn: Examples) -> Answers:
    inputs = drawn.tokens if isinstance(drawn, Batch) else drawn.inputs
    targets = drawn.targets if isinstance(drawn, Batch) else drawn.labels[:, None]
    size = max(TOKENS_AT_ONCE // inputs[0].numel(), 1)
    asked = targets != NOT_ASKED
    right, nats = torch.zeros_like(asked), torch.zeros_like(asked, dtype=torch.float64)
    for start in range(0, len(inputs), size):
        some = slice(start, start + size)
        logits, answers = model(rows(drawn, some))
        right[some] = right[some].masked_scatter(asked[some], logits.argmax(-1) == answers)
        lost = cross_entropy(logits.double(), answers, reduction="none")
        lost = lost.where(lost.isfinite(), math.log(logits.shape[-1]))  # as if it guessed
        nats[some] = nats[some].masked_scatter(asked[some], lost)
    count_N = asked.double().sum(1)
    return Answers(right.double().sum(1) / count_N, nats.sum(1) / count_N, right, asked)


def _by_distance(tokens_NT: Tensor, right_NT: Tensor, asked_NT: Tensor) -> list[tuple[int, int, int, int]]:
    """Right answers by how many tokens ago the key occurred, in doublings."""
    example, place = asked_NT.nonzero(as_tuple=True)
    said = (tokens_NT[example] == tokens_NT[example, place][:, None]).int().argmax(1)  # the first time
    distance, right = place - said, right_NT[example, place]
    buckets = []
    low = 1
    while low <= int(distance.max()):
        inside = (distance >= low) & (distance < 2 * low)
        if inside.any():
            buckets.append((low, 2 * low, int((right & inside).sum()), int(inside.sum())))
        low *= 2
    return buckets
