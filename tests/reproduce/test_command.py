"""`maclaurin reproduce` in the shell: the list, a table from its cells to its page, and what it does when it goes on."""

import json
from dataclasses import replace

import pytest

from maclaurin.cli import main
from maclaurin.evals.cells import Row
from maclaurin.evals.learn import learn
from maclaurin.evals.runner import load, save
from maclaurin.lab.result import Result
from maclaurin.reproduce import cost, papers
from maclaurin.reproduce.table import Paper, Table
from tests.evals.helpers import experiment

SMALL = experiment(metric="loss", seeds=3, learning_rates=(1e-2,), name="tiny")
TABLE = Table(
    name="tiny",
    where="Table 0",
    shows="Two rows and a control",
    experiments={"minutes": replace(SMALL, rows=SMALL.rows | {"2mamba": Row(("2mamba",))})},
    published={"softmax": 2.7, "linear": 3.0},
    asks=(("linear", "softmax"),),
    controls=("2mamba",),
    missing={"the other": "it is lost"},
)
PLANNED = Table(
    name="large",
    where="Table 1",
    shows="One row for a cluster",
    rows={"a row": Row(("2mamba",))},
    recipe={"length": 16, "steps": 10, "batch_size": 2},
    published={"a row": 2.5},
    only="its point is the size",
)


@pytest.fixture
def paper(monkeypatch):
    made = Paper.of("A paper of tests", TABLE, PLANNED)
    monkeypatch.setattr(papers, "paper_of", lambda name: made)
    monkeypatch.setattr("maclaurin.reproduce.listing.paper_of", lambda name: made)
    monkeypatch.setattr(cost, "STEPS", 1)
    return made


def reproduce(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", *arguments])
    return ended.value.code


def trained_here(cells, folder, *, jobs, watch, **_):
    """In this process, because others take seconds to start."""
    for cell in cells:
        if load(cell, folder) is None:
            save(cell, learn(cell), folder)
    return {}


def test_a_table_from_cells_to_the_page_and_again(paper, tmp_path, capsys):
    arguments = ("test", "tiny", "--jobs", "2", "--output", str(tmp_path))
    assert reproduce(*arguments) == 0
    printed = capsys.readouterr()
    assert "9 of 9 cells to train, about" in printed.err and "The published order" in printed.out
    assert "linear − softmax: " in printed.out and "published +0.300" in printed.out
    saved = json.loads((tmp_path / "reproduce.json").read_text())
    (table,) = saved["tables"]
    assert table["verdict"]["pairs"] == 1 and table["published"] == {"softmax": 2.7, "linear": 3.0}
    assert all(row["seeds"] == 3 and len(row["curve"]) == 4 for row in table["result"]["rows"])
    html = (tmp_path / "reproduce.html").read_text()
    assert "a control" in html and "the other cannot be had: it is lost" in html and 'id="tiny-curves"' in html

    # a run that was killed has the cells that were done: only the others are trained again
    cells = sorted((tmp_path / "cells").iterdir())
    next(file for file in cells if json.loads(file.read_text())["cell"]["seed"] == 2).unlink()
    assert reproduce(*arguments) == 0
    printed = capsys.readouterr()
    assert "1 of 9 cells to train" in printed.err and "[9/9]" in printed.err
    (after,) = json.loads((tmp_path / "reproduce.json").read_text())["tables"]
    assert after["verdict"] == table["verdict"]


def test_learning_rates_are_tuned_with_the_first_seed_and_rows_of_two_tables_trained_once(monkeypatch, tmp_path, capsys):
    """Two rates with one seed, the better one with two more; a row with another name in another table is the same cells."""
    small = replace(SMALL, learning_rates=(1e-3, 1e-2))
    of_both = {"softmax": Row(("softmax",)), "linear": Row(("linear",))}
    first = replace(TABLE, name="first", experiments={"minutes": replace(small, rows=of_both)}, controls=())
    other = {"known": Row(("softmax",)), "new": Row(("2mamba",))}
    second = replace(first, name="second", experiments={"minutes": replace(small, rows=other)}, published={}, asks=())
    monkeypatch.setattr(papers, "paper_of", lambda name: Paper.of("A paper of tests", first, second))
    monkeypatch.setattr(cost, "STEPS", 1)
    monkeypatch.setattr("maclaurin.reproduce.run.run", trained_here)
    assert reproduce("test", "--jobs", "1", "--output", str(tmp_path)) == 0
    said = capsys.readouterr().err
    assert "first: 8 of 8 cells to train" in said and "second: 4 of 8 cells to train" in said
    cells = [json.loads(file.read_text())["cell"] for file in (tmp_path / "cells").iterdir()]
    assert len(cells) == 3 * (2 + 2)
    before, after = json.loads((tmp_path / "reproduce.json").read_text())["tables"]
    rows = {row["label"]: row for table in (before, after) for row in table["result"]["rows"]}
    for row in rows.values():
        losses = {tried["learning_rate"]: tried["loss"] for tried in row["validation"]}
        assert row["seeds"] == 3 and len(losses) == 2 and row["learning_rate"] == min(losses, key=losses.get)
        seeds = [cell["seed"] for cell in cells if cell["row"]["mixers"] == row["mixers"]]
        assert sorted(seeds) == [0, 0, 1, 2]
    assert rows["known"]["points"] == rows["softmax"]["points"]


def test_published_sizes_are_planned_and_their_losses_collected(paper, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("maclaurin.reproduce.first_step.VOCABULARY", 64)
    arguments = ("test", "large", "--budget", "paper", "--output", str(tmp_path))
    assert reproduce(*arguments) == 0
    assert "torchrun --nproc_per_node gpu -m maclaurin train --config" in capsys.readouterr().out
    from maclaurin.training.configured import train_recipe

    recipe = train_recipe({}, tmp_path / "large" / "a-row.yaml")
    assert (recipe.mixer, recipe.length, recipe.steps) == ("2mamba", 16, 10)
    (tmp_path / "large" / "a-row").mkdir()
    (tmp_path / "large" / "a-row" / "log.jsonl").write_text('{"eval_loss": 2.6}\n{"eval_loss": 2.4}\n{"eva')
    assert reproduce(*arguments, "--json") == 0
    (table,) = json.loads(capsys.readouterr().out)
    assert table["planned"][0]["loss"] == 2.4 and table["planned"][0]["published"] == 2.5


def test_what_the_lab_computed_is_printed_again_and_not_computed(monkeypatch, tmp_path, capsys):
    computed = Table(name="bytes", where="a figure", shows="Bytes", lab={"minutes": ("memory", {"quick": True})})
    monkeypatch.setattr(papers, "paper_of", lambda name: Paper.of("A paper of tests", computed))
    again = ("paper-2", "bytes", "--output", str(tmp_path), "--table")

    assert reproduce(*again) == 0
    assert "bytes has no table before its end" in capsys.readouterr().err
    (tmp_path / "bytes.lab.json").write_text(Result("memory", "Bytes of state", {}, (), notes=("A limit of it",)).to_json())
    assert reproduce(*again) == 0
    assert "A limit of it" in capsys.readouterr().out


def test_a_budget_that_a_table_lacks_is_said(paper, tmp_path, capsys):
    assert reproduce("test", "large", "--output", str(tmp_path)) == 0
    assert "large has no budget 'minutes': its point is the size; it has 'paper'" in capsys.readouterr().err


def test_the_list_has_every_table_with_its_rows_and_command(capsys):
    assert reproduce("--list") == 0
    printed = capsys.readouterr().out
    for name in papers.MODULES:
        for table in papers.paper_of(name).tables.values():
            assert f"maclaurin reproduce {name} {table.name}" in printed
    assert "2Mamba + dt (2.727)" in printed and "FoX + conv (a control)" in printed
    assert reproduce("--list", "paper-2", "build-up", "--json") == 0
    (described,) = json.loads(capsys.readouterr().out)
    assert described["published"]["Mamba-2S"] == 2.76


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("paper-2", "buildup"), "(did you mean 'build-up'?); it has:"),
        (("paper-9",), "there is no paper 'paper-9'"),
        (("paper-2", "--budget", "hour"), "budget must be one of"),
        (("paper-2", "--seeds", "0"), "seeds must be at least 1"),
    ],
)
def test_wrong_names_give_the_list(arguments, says, capsys):
    assert reproduce(*arguments) == 2
    assert says in capsys.readouterr().err
