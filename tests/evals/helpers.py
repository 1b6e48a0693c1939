"""Cells so small that they take a second, for the tests of all suites."""

import io
from dataclasses import replace

from rich.console import Console

from maclaurin.evals.cells import Cell, Problem, Row, Setting
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.learn import Outcome, Score

TINY = Setting(width=16, heads=2, layers=1, inner=16, steps=4, batch=4, examples=10)


TRAIN = (Problem("mqar", {"length": 16, "pairs": 2, "vocab_size": 16}),)


TEST = (*TRAIN, Problem("mqar", {"length": 32, "pairs": 4, "vocab_size": 16}))


def cell(label="softmax", learning_rate=1e-3, seed=0, setting=TINY, train=TRAIN, test=TEST, row=None):
    return Cell("tiny", label, row or Row((label,)), setting, train, test, learning_rate, seed)


def experiment(**changes):
    rows = {"softmax": Row(("softmax",)), "linear": Row(("linear",))}
    return replace(Experiment("tiny", "Tiny", rows, TINY, TRAIN, TEST, (1e-3, 1e-2), axis="pairs"), **changes)


def outcome(value):
    scores = tuple(Score(share, share, 10, 16, 8, ((1, 2, 3, 4),)) for share in (0.5, value))
    return Outcome(value, scores, 100, 4, False, 1.0)


def without_time(outcome):
    return {name: value for name, value in outcome.to_json().items() if name != "seconds"}


def printed(table):
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()
