"""Many cells: what is kept, what is trained again, and what a bad one costs the others."""

import json
import os
import signal
from dataclasses import replace

import pytest

from maclaurin.evals.cells import Cell, Problem, Row
from maclaurin.evals.learn import Outcome, Score, learn
from maclaurin.evals.runner import load, path_of, run, save
from tests.evals.helpers import TEST, TINY, cell, without_time


def test_cells_go_through_json_and_are_named_by_what_decides_their_numbers():
    one = cell(row=Row(("gla",), {"gla": {"rotary": "selective", "rotary_options": {"rank": 4}}}))
    judged = replace(one, validate=TEST)
    for either in (one, judged):
        assert Cell.from_json(json.loads(json.dumps(either.to_json()))).key == either.key
        assert Cell.from_json(either.to_json()) == either
    assert replace(one, label="other", experiment="other").key == one.key
    others = [replace(one, seed=1), replace(one, learning_rate=2e-3), replace(one, setting=replace(TINY, steps=5))]
    assert len({one.key, judged.key, *(other.key for other in others)}) == 5


def test_finished_cells_are_kept_and_a_bad_one_does_not_lose_the_others(tmp_path):
    bad = cell("bad", row=Row(("softmax",)), train=(Problem("aan", {"source": str(tmp_path / "nowhere")}),))
    cells = [cell(), bad, cell("linear")]
    errors = run(cells, tmp_path, jobs=1)
    assert list(errors) == [bad.key] and "give the folder" in errors[bad.key]
    assert load(cells[0], tmp_path) and load(cells[2], tmp_path) and load(bad, tmp_path) is None
    assert without_time(load(cells[0], tmp_path)) == without_time(learn(cells[0]))  # in another process, too
    written = path_of(cells[0], tmp_path).stat().st_mtime_ns
    trained = []
    path_of(cells[2], tmp_path).write_text("{")  # half a file is none
    assert run([cells[0], cells[2]], tmp_path, jobs=2, watch=trained.append) == {}
    assert {event.cell.label for event in trained} == {"linear"}
    assert path_of(cells[0], tmp_path).stat().st_mtime_ns == written


def test_a_process_that_dies_takes_only_its_cell_with_it(tmp_path):
    cells = [cell(setting=replace(TINY, steps=4000)), cell("linear")]

    def kill(event):
        if event.cell == cells[0] and event.process:
            os.kill(event.process, signal.SIGKILL)

    errors = run(cells, tmp_path, jobs=1, watch=kill)
    assert list(errors) == [cells[0].key] and "ended with code -9" in errors[cells[0].key]
    assert load(cells[1], tmp_path) is not None


@pytest.mark.parametrize(
    "change",
    [{"validation": "x"}, {"seconds": float("nan")}, {"scores": []}, {"scores": 3}, {"steps": None}, {"parameters": -1}],
    ids=str,
)
def test_a_cell_whose_file_was_changed_is_trained_again(tmp_path, change):
    own = cell()
    outcome = Outcome(0.5, tuple(Score(0.5, 0.5, 10, 8, None, ()) for _ in own.test), 10, 5, False, 1.0)
    save(own, outcome, tmp_path)
    assert load(own, tmp_path) == outcome
    file = path_of(own, tmp_path)
    stored = json.loads(file.read_text())
    file.write_text(json.dumps(stored | {"outcome": stored["outcome"] | change}))
    assert load(own, tmp_path) is None
    file.write_text("[" * 50_000 + "]" * 50_000)
    assert load(own, tmp_path) is None
