"""A process that trains cells: one per line on standard input, its progress and outcome as lines on standard output.

It ends when its input ends, so that it never outlives the run that started it.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from typing import Any, TextIO

import torch

from maclaurin.machine.allocator import keep_freed_memory


def main() -> None:
    lines, sys.stdout = sys.stdout, sys.stderr  # what libraries print must not mix with messages
    cells: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(cells,), daemon=True).start()
    keep_freed_memory()
    torch.set_num_threads(1)  # two threads sum in another order than one, and cells run in parallel anyway
    from maclaurin.evals.cells import Cell
    from maclaurin.evals.learn import learn

    while True:
        cell = Cell.from_json(json.loads(cells.get()))
        try:
            outcome = learn(cell, lambda step, loss: _say(lines, step=step, loss=loss))
            _say(lines, outcome=outcome.to_json())
        except Exception as error:
            traceback.print_exc()
            _say(lines, error=f"{type(error).__name__}: {error}")


def _listen(cells: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        cells.put(line)
    os._exit(0)  # also in the middle of a cell: its run is gone


def _say(lines: TextIO, **message: Any) -> None:
    lines.write(json.dumps(message) + "\n")
    lines.flush()


if __name__ == "__main__":
    main()
