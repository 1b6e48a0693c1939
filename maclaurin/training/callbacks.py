"""Callbacks of a run: its log and progress bar, how it is stopped, and what changes from step to step."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn
from transformers import IntervalStrategy, TrainerCallback

from maclaurin.common.files import write_text
from maclaurin.common.progress import time_text
from maclaurin.processes.stopping import SIGNALS, Terminated
from maclaurin.training.checkpoints import writing
from maclaurin.training.ranks import largest
from maclaurin.training.windows import WindowSchedule, own_windows


class LastStep(TrainerCallback):
    """The last step is evaluated, where there is evaluation, and saved, whatever the intervals."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= state.max_steps:
            control.should_evaluate = args.eval_strategy != IntervalStrategy.NO
            control.should_save = control.should_log = True


class JsonLog(TrainerCallback):
    """Every logged figure as a line of log.jsonl. A resumed run drops the lines after its checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        lines = self.path.read_text(errors="replace").splitlines() if self.path.exists() else []
        kept = [line for line in lines if _step_of(line) <= state.global_step] if state.global_step else []
        write_text(self.path, "".join(f"{line}\n" for line in kept))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            with writing(self.path), open(self.path, "a") as stream:
                stream.write(json.dumps({"step": state.global_step, **(logs or {})}) + "\n")


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return float("inf")  # cut off in the middle: the run died while writing it


class LiveProgress(TrainerCallback):
    """A bar with loss, tokens per second and time left; lines where the output is no terminal."""

    def __init__(self, tokens_per_step: int) -> None:
        self.tokens_per_step = tokens_per_step
        self.console = Console(stderr=True)
        self.bar: Progress | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.started, self.first_step, self.loss, self.validation = time.monotonic(), state.global_step, "", ""
        if self.console.is_terminal:
            columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
            self.bar = Progress(*columns, console=self.console)
            self.task = self.bar.add_task("", total=state.max_steps, completed=state.global_step)
            self.bar.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.bar is not None:
            self.bar.update(self.task, completed=state.global_step, description=self._text(state))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        figures = logs or {}
        if "loss" in figures:
            self.loss = f"loss {figures['loss']:.4f}"
        if "eval_loss" in figures:
            self.validation = f"validation {figures['eval_loss']:.4f}"
        if self.bar is None and ("loss" in figures or "eval_loss" in figures):
            self.console.print(
                f"step {state.global_step}/{state.max_steps}  {self._text(state)}  {self._left(state)}", highlight=False
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.close()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def _text(self, state: Any) -> str:
        steps = state.global_step - self.first_step
        rate = steps * self.tokens_per_step / max(time.monotonic() - self.started, 1e-9)
        return f"{self.loss}  {self.validation}  {rate:,.0f} tokens/s"

    def _left(self, state: Any) -> str:
        a_step = (time.monotonic() - self.started) / max(state.global_step - self.first_step, 1)
        return f"{time_text((state.max_steps - state.global_step) * a_step)} left"


class StopOnInterrupt(TrainerCallback):
    """Around training: the first Ctrl-C, SIGTERM or SIGUSR1 ends the run after its current step, with a checkpoint; the
    second one at once. A signal to one process of a run ends all of them at the same step. `requested` is then its number.
    """

    def __init__(self) -> None:
        self.requested = 0
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # no other may
            self.before = {number: signal.signal(number, self._asked) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def stop(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.requested = largest(self.requested, args.device)
        if self.requested:
            control.should_save = control.should_training_stop = True

    on_step_end = on_evaluate = stop

    def _asked(self, number: int, frame: Any) -> None:
        if self.requested:
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number)
        self.requested = number


class StochasticWindow(TrainerCallback):
    """Sets the short window of all layers, in steps that have it, from the first forward pass to the last backward pass.

    Between steps every layer has its own window again, so evaluation and checkpoints always see that one.
    """

    def __init__(self, schedule: WindowSchedule, model: nn.Module) -> None:
        self.schedule = schedule
        self.own_windows = own_windows(model)
        if not self.own_windows:
            raise ValueError("short_window needs a layer with a window, such as the mixer sliding-window")
        smallest = min(self.own_windows.values())
        if schedule.short > smallest:
            raise ValueError(f"short_window must not be above the layers' own window of {smallest}, got {schedule.short}")

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.schedule.is_short(state.global_step):
            for mixer in self.own_windows:
                mixer.window = self.schedule.short

    def restore(self, *args: Any, **kwargs: Any) -> None:
        for mixer, window in self.own_windows.items():
            mixer.window = window

    on_step_end = on_train_end = restore
