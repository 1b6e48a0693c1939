"""A training run and its last line of output; `python -m maclaurin.training.child RECIPE [--resume]` is one in a process
of its own: the recipe is JSON, and the process ends with the one that started it.
"""

from __future__ import annotations

import json
import signal
import sys

from maclaurin.machine.allocator import keep_freed_memory
from maclaurin.processes.children import end_with_parent
from maclaurin.processes.exits import errors_as_sentences
from maclaurin.processes.stopping import Terminated, raise_on_terminate
from maclaurin.training.recipe import Recipe, checked
from maclaurin.training.run import train


def execute(recipe: Recipe, *, resume: bool) -> None:
    keep_freed_memory()
    result = train(recipe, resume=resume)
    if result.finished:
        print(f"{result.steps} steps, validation loss {result.held_out_loss:.4f}; the model is in {recipe.output}")
    else:
        print(f"stopped after step {result.steps}; go on with: maclaurin train --output {recipe.output} --resume")
        if result.stopped_by == signal.SIGTERM:
            raise Terminated


if __name__ == "__main__":
    end_with_parent()
    raise_on_terminate()
    with errors_as_sentences():
        execute(Recipe(**checked(json.loads(sys.argv[1]), "the recipe")), resume="--resume" in sys.argv[2:])
