"""Every row of every table of every paper: it can be built at the published size, and a small one takes a step."""

import dataclasses

import pytest
import torch
from torch.nn.functional import cross_entropy

from maclaurin.data.tasks import Batch, Labelled, task
from maclaurin.evals.cells import Setting
from maclaurin.evals.models import build
from maclaurin.evals.planning import check
from maclaurin.lab import EXPERIMENTS
from maclaurin.mixers.published import NOT_HERE, PAPER_1, PAPER_2
from maclaurin.reproduce.first_step import first_step
from maclaurin.reproduce.listing import described, lines
from maclaurin.reproduce.papers import MODULES, paper_of, tables_of
from maclaurin.reproduce.table import BUDGETS

TABLES = [(paper, table) for paper in MODULES for table in paper_of(paper).tables.values()]
TAKEN = set()  # rows that another table has too take their step once
TRAINED = [(paper, table) for paper, table in TABLES if table.experiments]


def small(setting, row):
    """Of the same kind, as small as its rows allow."""
    heads = row.heads or min(setting.heads, 2)
    return Setting(setting.model, 16 * heads, heads, len(row.mixers), 8, steps=1, batch=2)


def examples(model):
    tokens = torch.arange(48).view(2, 24) % 11
    match model:
        case "language" | "compressed":
            return task("mqar", length=24, pairs=2, vocab_size=16), Batch(tokens, tokens.roll(1, 1))
        case "classifier":
            return task("listops", longest=24, shortest=4, depth=2, arguments=3), Labelled(tokens, torch.tensor([1, 2]))
        case "pairs":
            return task("listops", longest=24, shortest=4, depth=2, arguments=3), Labelled(
                tokens.view(2, 2, 12), torch.tensor([1, 2])
            )
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    digits = task("digits")
    return digits, digits.sample(2, 0)


@pytest.mark.parametrize(("paper", "table"), TRAINED, ids=[f"{paper}/{table.name}" for paper, table in TRAINED])
def test_every_row_can_be_built_and_takes_a_step(paper, table):
    for experiment in table.experiments.values():
        check(experiment)
        for label, row in experiment.rows.items():
            setting = small(experiment.setting, row)
            if (key := repr((row, setting))) in TAKEN:
                continue
            TAKEN.add(key)
            of_task, drawn = examples(setting.model)
            model = build(row, setting, of_task)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            before = [parameter.clone() for parameter in model.parameters()]
            loss = cross_entropy(*model(drawn))
            loss.backward()
            optimizer.step()
            assert loss.isfinite(), label
            assert any((own != old).any() for own, old in zip(model.parameters(), before, strict=True)), label


@pytest.mark.parametrize(("paper", "table"), TABLES, ids=[f"{paper}/{table.name}" for paper, table in TABLES])
def test_tables_say_what_they_are(paper, table):
    assert table.budgets() and (table.budgets()[0] == "minutes" or table.only)
    for known in (table.published, table.controls, *table.asks):
        assert table.lab or set(known) <= set(table.labels()), known
    assert not set(table.published) & set(table.controls)
    assert all(name in EXPERIMENTS and not options.get("seed") for name, options in table.lab.values())
    for budget, experiment in table.experiments.items():
        assert budget in BUDGETS
        assert experiment.seeds >= 3
        if budget == "minutes" and experiment.metric == "loss":
            assert len(experiment.learning_rates) >= 2
    text = "\n".join(lines(paper, [table]))
    assert all(label in text for label in table.labels()) and f"maclaurin reproduce {paper} {table.name}" in text
    assert described(paper, table)["rows"] == table.labels()


def test_paper_1_and_2_have_all_their_rows():
    """38 and 28 names of the authors' code, each in at least one table, or named as missing."""
    for paper, rows in (("paper-1", PAPER_1), ("paper-2", PAPER_2)):
        tables = paper_of(paper).tables.values()
        recipes = [recipe for table in tables if table.recipe for recipe in table.recipes("out").values()]
        had = {(recipe.mixer, repr(sorted(recipe.options().items()))) for recipe in recipes}
        for name, (mixer, options) in rows.items():
            ours = {**options, **({"rounded_positions": True} if (paper, name) == ("paper-2", "softmax") else {})}
            ours = {key: list(value) if isinstance(value, tuple) else value for key, value in ours.items()}
            assert (mixer, repr(sorted(ours.items()))) in had, name
    assert {label for table in paper_of("paper-1").tables.values() for label in table.missing} == set(NOT_HERE)


def test_the_published_recipe_is_the_published_one():
    """Batch, steps, and a schedule over ten times as many steps, so that the learning rate ends at nine tenths."""
    recipes = tables_of("paper-2", "second-order")[0].recipes("out")
    recipe = recipes["2Mamba"]
    assert (recipe.size, recipe.length, recipe.batch_size, recipe.steps) == ("small", 2048, 32, 100_000)
    left = (recipe.schedule_steps - recipe.steps) / (recipe.schedule_steps - recipe.warmup_steps)
    assert recipe.learning_rate * left == pytest.approx(9.09e-5, rel=1e-3)
    assert len({own.output for own in recipes.values()}) == len(recipes)
    assert paper_of("paper-1").tables["large"].recipes("out")["softmax"].config().hidden_size == 3072
    assert paper_of("paper-1").tables["large-depth"].recipes("out")["softmax"].config().num_hidden_layers == 60


def recipes_of_all_rows():
    """One per mixer, options, size and length."""
    found = {}
    for _, table in TABLES:
        for recipe in table.recipes("out").values() if table.recipe else ():
            found.setdefault((recipe.mixer, recipe.mixer_options, recipe.size, recipe.length), recipe)
    return list(found.values())


def test_the_first_step_of_the_published_sizes_fits():
    """Of a few rows, and of a stretch of a sequence: parameters are those that the paper counts."""
    recipes = tables_of("paper-2", "second-order")[0].recipes("out")
    for label, millions in (("2Mamba", 275.81), ("Mamba-2S", 276.15), ("Softmax", 275.29), ("Mamba-2", 259.60)):
        step = first_step(dataclasses.replace(recipes[label], length=64))
        assert round(step.parameters / 1e6, 2) == millions and step.tokens == 32 * 64


@pytest.mark.slow
def test_the_first_step_of_every_row_fits():
    for recipe in recipes_of_all_rows():
        assert first_step(recipe).tokens == recipe.batch_size * recipe.length


def test_needles_are_as_far_as_the_published_ones():
    lengths = [problem.options["length"] for problem in paper_of("paper-2").tables["needles"].experiments["day"].test]
    assert {1024, 2048, 4096, 8192, 16384} <= set(lengths)


def test_a_wrong_name_gives_the_list():
    with pytest.raises(ValueError, match=r"no paper 'paper-3'.*\n.*paper-1: On the Expressiveness"):
        paper_of("paper-3")
    with pytest.raises(ValueError, match=r"'buildup' \(did you mean 'build-up'\?\).*\n(.*\n)*.*isolated: Each part"):
        tables_of("paper-2", "buildup")
