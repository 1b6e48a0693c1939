"""The runs of a comparison in as many processes as there are cores, until all have a result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from maclaurin.common.arguments import at_least_one
from maclaurin.common.cores import cores
from maclaurin.common.files import write_json
from maclaurin.common.progress import Every
from maclaurin.common.shards import WHOLE, own_first
from maclaurin.machine.inventory import load
from maclaurin.processes.leases import Leases
from maclaurin.training.checkpoints import checkpoints, remove_own
from maclaurin.training.compare import Run, is_number, last_line, latest
from maclaurin.training.starting import DIVERGED, FORKS, Alone, End, Process, Server

LARGEST_ALONE = 10_000_000  # parameters of a model that one thread trains; larger ones take turns with all cores
SECONDS = 0.2  # between two looks at the processes
OTHERS = 5.0  # seconds between two looks for what follows from runs of other processes


class Watch:
    """Is told how the runs go; does nothing."""

    def start(self, run: Run) -> None: ...
    def update(self, run: Run, figures: dict[str, Any]) -> None: ...
    def end(self, run: Run) -> None: ...


def default_jobs(runs: Sequence[Run]) -> int:
    """As many as there are cores, each with one thread; one with all threads if models are large, or on a GPU."""
    import torch

    small = all(run.parameters <= LARGEST_ALONE for run in runs)
    return cores() if small and not torch.cuda.is_available() else 1


@dataclass
class Active:
    run: Run
    process: Process
    server: Server | None
    resumed: bool
    started: float = field(default_factory=time.monotonic)


def execute(
    runs: Sequence[Run],
    watch: Watch,
    *,
    jobs: int = 1,
    more: Callable[[], Sequence[Run]] = tuple,
    shard: str = WHOLE,
) -> None:
    """Train to their end those that have no result, each from its last checkpoint if it has one.

    more: further runs, asked for as others end. shard: the runs it begins with; those that another process trains are
    waited for. With several jobs each run has one thread. If interrupted, all save a checkpoint and end; if one fails,
    likewise, and ValueError says how it failed.
    """
    at_least_one("jobs", jobs)
    todo, seen = [run for run in own_first(runs, shard) if run.result() is None], {run.recipe.output for run in runs}
    threads = 1 if jobs > 1 else None
    free: list[Server | None] = [None] * jobs
    servers: list[Server] = []
    active: list[Active] = []
    due = Every(OTHERS)

    def look_for_more() -> None:
        for run in own_first(more(), shard):
            if run.recipe.output not in seen:
                seen.add(run.recipe.output)
                todo.extend([run] if run.result() is None else [])

    with Leases(Path(runs[0].recipe.output).parent / "leases") as leases:
        try:
            look_for_more()
            while todo or active:
                while free and (run := _taken(todo, leases)) is not None:
                    server = free.pop()
                    if server is None and FORKS and len(todo) >= jobs:  # one run each: nothing would be saved
                        server = Server(threads)
                        servers.append(server)
                    active.append(_start(run, server, threads, watch))
                for one in list(active):
                    end = one.process.ended()
                    if end is None:
                        watch.update(one.run, latest(Path(one.run.recipe.output)))
                        continue
                    active.remove(one)
                    free.append(one.server)
                    _finish(one, end, threads)
                    leases.release(_name(one.run))
                    watch.end(one.run)
                    look_for_more()
                if due():
                    look_for_more()
                time.sleep(SECONDS)
        except BaseException:
            _stop([one.process for one in active])
            raise
        finally:
            for server in servers:
                server.close()
                server.wait()


def _name(run: Run) -> str:
    return Path(run.recipe.output).name


def _taken(todo: list[Run], leases: Leases) -> Run | None:
    """The next run that no other process trains; those that others have finished are left out of `todo`."""
    for run in list(todo):
        if run.result() is None and not leases.take(_name(run)):
            continue
        todo.remove(run)
        if run.result() is None:
            return run
        if _name(run) in leases.held:  # finished between the two looks
            leases.release(_name(run))
    return None


def _start(run: Run, server: Server | None, threads: int | None, watch: Watch) -> Active:
    output = Path(run.recipe.output)
    resume = bool(checkpoints(output))
    watch.start(run)
    output.mkdir(parents=True, exist_ok=True)
    process: Process
    if server is None:
        process = Alone(run.recipe, resume=resume, threads=threads)
    else:
        process = server.start(run.recipe, resume=resume)
    return Active(run, process, server, resume)


def _stop(processes: Sequence[Process]) -> None:
    """All at once, and wait until they have saved; a second interruption ends them as they are."""
    try:
        for process in processes:
            process.stop()
        for process in processes:
            process.wait()
    except BaseException:
        for process in processes:
            process.kill()
            process.wait()
        raise


def _finish(one: Active, end: End, threads: int | None) -> None:
    """The result of a run whose process has ended."""
    run, (code, peak_bytes) = one.run, end
    output, recipe = Path(run.recipe.output), run.recipe
    seconds = time.monotonic() - one.started
    if code == DIVERGED and run.may_diverge:
        write_json(run.result_path, {"diverged": last_line(run), "seconds": seconds})
        return remove_own(output)
    if code != 0:
        said = last_line(run) or "no output"
        raise ValueError(f"{run.name} (seed {run.seed}) failed: {said}; see {output / 'output.txt'}")
    figures = latest(output)
    wanted = ["eval_loss", "train_runtime", *["test_loss"] * bool(recipe.test_rows)]
    for name in wanted:
        if not is_number(figures.get(name)):
            raise ValueError(f"{output / 'log.jsonl'} must have a number as {name}, got {figures.get(name)!r:.40}")
    result = {
        "held_out_loss": figures["eval_loss"],
        **({"test_loss": figures["test_loss"]} if recipe.test_rows else {}),
        # a resumed run has timed its last part only
        "tokens_per_second": None if one.resumed else recipe.steps * recipe.tokens_per_step / figures["train_runtime"],
        "peak_bytes": peak_bytes,
        "seconds": seconds,
        "load": load(),
        "threads": threads or cores(),
    }
    write_json(run.result_path, result)
    remove_own(output)  # its model and its log stay, all that the tables and the page need
