"""`maclaurin train`: the fields of a recipe as flags.

`python -m maclaurin.training.command …` is the same as a child of the process that started it, with which it ends.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from maclaurin.machine.allocator import keep_freed_memory
from maclaurin.processes.children import end_with_parent
from maclaurin.processes.exits import errors_as_sentences
from maclaurin.processes.stopping import Terminated, raise_on_terminate
from maclaurin.training.flags import parse
from maclaurin.training.run import train


def execute(arguments: Sequence[str]) -> None:
    recipe, resume = parse(arguments)
    keep_freed_memory()
    result = train(recipe, resume=resume)
    if result.finished:
        print(f"{result.steps} steps, held-out loss {result.held_out_loss:.4f}; the model is in {recipe.output}")
    else:
        print(f"stopped after step {result.steps}; go on with: maclaurin train --output {recipe.output} --resume")
        if result.stopped_by == signal.SIGTERM:
            raise Terminated


if __name__ == "__main__":
    end_with_parent()
    raise_on_terminate()
    with errors_as_sentences():
        execute(sys.argv[1:])
