"""A training run and its last line of output; `python -m maclaurin.training.child RECIPE [--resume]` is one in a process
of its own: the recipe is JSON, and the process ends with the one that started it.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from maclaurin.machine.allocator import grow_segments, keep_freed_memory
from maclaurin.processes.children import end_with_parent
from maclaurin.processes.command import command_line
from maclaurin.processes.exits import errors_as_sentences
from maclaurin.processes.stopping import STOPS, end_stopped, exit_code, raise_on_terminate
from maclaurin.training.checkpoints import Resume, checkpoints
from maclaurin.training.ranks import rank
from maclaurin.training.recipe import Recipe, checked
from maclaurin.training.run import Result, train
from maclaurin.training.starting import DIVERGED
from maclaurin.training.trainer import NonFiniteLossError


def execute(recipe: Recipe, *, resume: Resume) -> Result:
    """Of several processes the first one speaks."""
    keep_freed_memory()
    grow_segments()
    go_on = f"go on with: {command_line(['train', '--output', recipe.output, '--resume'])}"
    try:
        result = train(recipe, resume=resume)
    except STOPS as stop:  # before its first step, or for the second time
        if rank():
            raise SystemExit(exit_code(signal.SIGTERM)) from None
        end_stopped(stop, go_on if checkpoints(Path(recipe.output)) else f"start again with: {command_line()}")
    if not rank():
        print(_told(result, recipe, go_on))
    if result.stopped_by and not result.finished:
        raise SystemExit(exit_code(result.stopped_by))
    return result


def _told(result: Result, recipe: Recipe, go_on: str) -> str:
    if not result.finished:
        return f"stopped after step {result.steps}; {go_on}"
    return f"{result.steps} steps, validation loss {result.held_out_loss:.4f}; the model is in {recipe.output}"


def main(recipe: Recipe, *, resume: bool) -> None:
    end_with_parent()
    raise_on_terminate()
    with errors_as_sentences():
        try:
            execute(recipe, resume=resume)
        except NonFiniteLossError as error:
            print(f"maclaurin: {error}", file=sys.stderr)
            raise SystemExit(DIVERGED) from error


if __name__ == "__main__":
    main(Recipe(**checked(json.loads(sys.argv[1]), "the recipe")), resume="--resume" in sys.argv[2:])
