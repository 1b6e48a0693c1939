"""A process that trains cells: one a line on standard input, its progress and its outcome as lines on standard output.

It ends when its input does, so that it never outlives the run that started it by more than a cell.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any, TextIO

import torch


def main() -> None:
    lines, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no message
    torch.set_num_threads(1)  # as many numbers are summed in another order by two, and cells run side by side anyway
    from maclaurin.evals.cells import Cell
    from maclaurin.evals.learn import learn

    for text in sys.stdin:
        cell = Cell.from_json(text)
        try:
            outcome = learn(cell, lambda step, loss: _say(lines, step=step, loss=loss))
            _say(lines, outcome=outcome.to_dict())
        except BrokenPipeError:
            os._exit(1)  # nobody listens any more
        except Exception as error:
            traceback.print_exc()
            _say(lines, error=f"{type(error).__name__}: {error}")


def _say(lines: TextIO, **message: Any) -> None:
    lines.write(json.dumps(message) + "\n")
    lines.flush()


if __name__ == "__main__":
    main()
