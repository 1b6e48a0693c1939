"""Collecting runs: whole ones are counted, unfinished and broken ones are named."""

import dataclasses
import json

import pytest

from maclaurin.report import build
from maclaurin.report.headline import headline, lead
from maclaurin.report.runs import collect, differences, grouped
from maclaurin.report.sections import curves, results
from maclaurin.training import Recipe
from maclaurin.training.compare import following, plan, summary
from maclaurin.training.statistics import Recall
from maclaurin.training.tables import result_table
from tests.report.conftest import write_run


def test_seeds_of_one_mixer_are_one_group_and_the_best_is_first(comparison):
    groups = grouped(collect([comparison]))
    assert [(group.row.rank, group.name, group.row.seeds) for group in groups] == [
        (1, "2mamba", 2),
        (2, "softmax", 2),
        (3, "mamba2s", 1),
        (4, "linear", 2),
    ]
    best = groups[0].row
    assert best.loss == pytest.approx(sum(run.validation_loss for run in groups[0].runs) / 2)
    assert best.spread == pytest.approx(0.01 / 2**0.5)
    assert best.published.startswith("2.727")
    assert best.peak_bytes == int(5e8 * 2.35)


def test_a_run_is_found_once_though_its_folders_overlap(comparison):
    assert len(collect([comparison, comparison / "2mamba-seed0"])) == 8


def test_an_unfinished_run_is_no_result(comparison):
    (run,) = collect([comparison / "mamba2s-seed1"])
    assert run.status == "unfinished: 50 of 100 steps"
    assert not run.finished and run.validation_loss is None
    assert "One run is unfinished" in " ".join(lead(grouped(collect([comparison])), collect([comparison])))


@pytest.mark.parametrize(
    ("name", "text", "status"),
    [
        ("recipe.json", None, "broken: recipe.json is missing"),
        ("recipe.json", "{", "broken: recipe.json cannot be used"),
        ("recipe.json", "[]", "broken: recipe.json cannot be used"),
        ("recipe.json", '{"mixer": "no such"}', "broken: recipe.json cannot be used: unknown mixer 'no such'"),
        ("recipe.json", '{"colour": "red"}', "broken: recipe.json cannot be used"),
        ("recipe.json", '{"steps": "many"}', "broken: recipe.json cannot be used"),
        ("log.jsonl", None, "broken: log.jsonl is missing"),
        ("log.jsonl", "", "no figures yet"),
        ("log.jsonl", '{"step": 5, "loss": 4.0}\n{"step": 10, "lo', "unfinished: 5 of 100 steps"),
        ("log.jsonl", '[1]\n7\n{"step": "x", "loss": 1}\n{"step": 5, "loss": NaN}\n', "no figures yet"),
        ("result.json", "{", "finished"),
        ("result.json", "[]", "finished"),
        ("versions.json", "{", "finished"),
        ("versions.json", '{"a": [1]}', "finished"),
        ("versions.json", '[1, {"versions": 3}]', "finished"),
    ],
)
def test_a_damaged_folder_is_named_and_never_stops_the_page(comparison, name, text, status):
    path = comparison / "2mamba-seed0" / name
    path.unlink() if text is None else path.write_text(text)
    (run,) = (run for run in collect([comparison]) if run.folder == path.parent)
    assert run.status.startswith(status)
    page = build([comparison], measure=False).html()
    assert run.status.split("'")[0] in page


def test_bytes_that_are_no_text_are_a_broken_run(comparison):
    (comparison / "2mamba-seed0" / "log.jsonl").write_bytes(b"\xff\xfe\x00")
    assert any(run.status.startswith("broken: log.jsonl cannot be read") for run in collect([comparison]))


def test_the_recipe_of_a_comparison_has_the_width_that_was_asked_for(comparison):
    """Each contender has another one, which matches its parameters."""
    line = "\nintermediate_size: 384\n"
    assert line not in build([comparison], measure=False).html()  # of an older comparison, which does not say
    (comparison / "compare.json").write_text(json.dumps({"rows": [], "recipe": {"intermediate_size": 384}}))
    assert line in build([comparison], measure=False).html()


def test_runs_of_train_have_speed_but_no_memory(tmp_path):
    write_run(Recipe(output=str(tmp_path / "alone"), steps=100), 2.0, result=False)
    (group,) = grouped(collect([tmp_path]))
    assert group.row.tokens_per_second == 100 * 8 * 512 / 8.0
    assert group.row.peak_bytes is None


def test_the_speed_of_a_resumed_run_is_not_known(tmp_path):
    folder = write_run(Recipe(output=str(tmp_path / "alone"), steps=100), 2.0, result=False)
    (folder / "versions.json").write_text(json.dumps([{"first_step": 0}, {"first_step": 40}]))
    assert grouped(collect([tmp_path]))[0].row.tokens_per_second is None


def test_groups_of_one_mixer_are_told_apart_and_unequal_budgets_are_said(tmp_path):
    write_run(Recipe(output=str(tmp_path / "a"), steps=100), 2.0)
    write_run(Recipe(output=str(tmp_path / "b"), steps=200), 1.9)
    groups = grouped(collect([tmp_path]))
    assert [group.name for group in groups] == ["2mamba-orders (steps 200)", "2mamba-orders (steps 100)"]
    assert differences(groups) == ["steps", "warmup_steps"]  # which follows
    assert headline(groups) == "2mamba-orders (steps 200) has the lowest validation loss, but the budgets differ"


def test_a_hybrid_and_options_are_named(tmp_path):
    write_run(Recipe(output=str(tmp_path / "a"), mixer="2mamba,softmax,2mamba,softmax", steps=100), 2.0)
    write_run(Recipe(output=str(tmp_path / "b"), mixer_options='{"conv_width": 4}', steps=100), 2.1)
    groups = grouped(collect([tmp_path]))
    assert [group.name for group in groups] == ["2mamba+softmax ×2", "2mamba-orders:conv_width=4"]
    assert groups[0].state_nbytes(4096) > groups[1].state_nbytes(4096)


def test_the_headline_says_who_won_by_how_much(comparison, tmp_path):
    assert headline(grouped(collect([comparison]))).startswith("2mamba wins with a validation loss of 2.4")
    for name, levels in (("linear", (2.0, 2.0)), ("softmax", (2.003, 2.001))):
        for seed, level in enumerate(levels):
            write_run(Recipe(output=str(tmp_path / f"level/{name}{seed}"), mixer=name, seed=seed, steps=100), level)
    runs = collect([tmp_path / "level"])
    assert headline(grouped(runs)).startswith("linear and softmax are level")
    said = lead(grouped(runs), runs)
    assert "level with it, since the 95 % interval of the difference has 0: softmax (+0.0020, -0.0107 to +0.0147)" in said[0]
    assert "With 2 seeds a 95 % interval reaches 12.7 standard errors" in " ".join(said)
    one = [run for run in runs if run.recipe.seed == 0]
    assert "not known how much of that is chance" in lead(grouped(one), one)[0]
    assert headline([]) == "No run has finished yet"


def test_no_runs_and_no_folder_are_one_sentence(tmp_path):
    for place, sentence in ((tmp_path, "there is no run in"), (tmp_path / "nowhere", "is no folder here")):
        with pytest.raises(ValueError, match=sentence):
            build([place])


DEEP = "[" * 50_000 + "]" * 50_000


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("recipe.json", '{"seed": "x"}', "as seed"),
        ("recipe.json", '{"track": 3}', "recipe.json cannot be used"),
        ("recipe.json", '{"steps": 1e999}', "recipe.json cannot be used"),
        ("recipe.json", '{"seed": %s}' % ("9" * 400), "as seed"),
        ("recipe.json", '{"hidden_size": 10000000000000}', "recipe.json cannot be used: hidden_size"),
        ("recipe.json", DEEP, "recipe.json cannot be used"),
        ("log.jsonl", b"\xff\xfe", "log.jsonl cannot be read"),
    ],
)
def test_one_bad_run_leaves_the_others_and_is_named_on_the_terminal(comparison, capsys, name, text, says):
    path = comparison / "2mamba-seed0" / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    page = build([comparison], measure=False).html()
    (line,) = capsys.readouterr().err.splitlines()
    assert str(path.parent) in line and says in line
    assert says in page and "softmax" in page


def test_lines_of_a_log_that_are_no_figures_are_passed_over(comparison):
    path = comparison / "2mamba-seed0" / "log.jsonl"
    lines = [DEEP, "9" * 5000, '{"step": 1e400, "loss": 1}', '{"step": 3, "loss": %s}' % ("9" * 400)]
    path.write_text(path.read_text() + "\n".join(lines) + "\n")
    (run,) = (run for run in collect([comparison]) if run.folder == path.parent)
    assert run.finished and run.step == 100


def test_losses_of_zero_are_compared(tmp_path):
    for mixer in ("softmax", "linear"):
        folder = write_run(Recipe(output=str(tmp_path / mixer), mixer=mixer, steps=100), 2.0)
        (folder / "log.jsonl").write_text('{"step": 100, "loss": 0.0, "eval_loss": 0.0}\n')
    groups = grouped(collect([tmp_path]))
    assert "the lowest loss, 0.0000 nats per token" in " ".join(lead(groups, collect([tmp_path])))
    build([tmp_path], measure=False).html()


def test_a_recipe_of_layers_too_large_to_build_has_no_cost(tmp_path):
    write_run(Recipe(output=str(tmp_path / "large"), mixer="softmax", steps=100, hidden_size=2**16), 2.0)
    write_run(Recipe(output=str(tmp_path / "small"), mixer="linear", steps=100), 2.0)
    page = build([tmp_path], measure=False)
    assert "Left out: softmax" in page.html()
    (cost,) = (chart for chart in page.charts() if chart.key == "cost-counted")
    assert [line.name for line in cost.figure.data] == ["linear"]


def test_the_table_and_the_page_show_one_record(comparison):
    """Of the same runs: read from results by `compare`, from logs by the page."""
    base, names = Recipe(output=str(comparison), steps=100, length=64), ["softmax", "2mamba", "linear", "mamba2s"]
    runs = plan(base, names, seeds=2, block="published")
    rows, groups = summary(runs), grouped(collect([comparison]))
    assert rows == [group.row for group in groups]
    table = result_table(rows, runs[0].recipe)
    (shown,) = results(groups).parts
    by_title = {column.title: index for index, column in enumerate(shown.columns)}
    printed = {column.header: list(column.cells) for column in table.columns}
    columns = {name: name for name in ("parameters", "tokens/s", "peak memory", "state at 8k")} | {"validation loss": "loss"}
    for title, name in columns.items():
        assert [row[by_title[title]].text for row in shown.rows] == printed[name], title
    names = [f"{row[by_title['rank']].text}. {row[by_title['mixer']].text}" for row in shown.rows]
    assert names == list(table.columns[0].cells)
    spreads = [f"{row[by_title['± seeds']].text} ({row[by_title['seeds']].text})" for row in shown.rows]
    assert [text.replace("– (", " (") for text in spreads] == list(table.columns[2].cells)


def single(tmp_path, levels, **changes):
    """A comparison of one seed, with the load of the machine."""
    for run in plan(Recipe(output=str(tmp_path / "single"), steps=100, length=64), list(levels), seeds=1, block="published"):
        folder = write_run(dataclasses.replace(run.recipe, **changes.get(run.name, {})), levels[run.name])
        result = json.loads((folder / "result.json").read_text())
        (folder / "result.json").write_text(json.dumps(result | {"load": 7.25}))
    return grouped(collect([tmp_path / "single"]))


def titles(table):
    return [column.title for column in table.columns]


def test_single_seeds_have_no_spread_and_win_nothing(tmp_path):
    groups = single(tmp_path, {"mamba2": 1.7, "2mamba": 1.9})
    section = results(groups)
    assert not {"± seeds", "seeds"} & set(titles(section.parts[0]))
    assert "of one run, seed 0" in section.intro and "mean" not in section.intro
    assert headline(groups).endswith("below 2mamba, with one seed each") and "wins" not in headline(groups)
    assert "Each line is one run" in curves(groups).intro


def test_the_blocks_that_are_compared_are_named_and_what_2mamba_lacks(tmp_path):
    groups = single(tmp_path, {"mamba2": 1.7, "2mamba": 1.9, "softmax": 2.4})
    intro = results(groups).intro
    assert "mamba2 has a convolution of width 4, a gate and a skip (D); 2mamba has a convolution of width 2" in intro
    assert "2mamba is behind mamba2, whose block also has a convolution of width 4, a gate and a skip (D)" in intro


def test_equal_blocks_need_no_sentence(tmp_path):
    assert "blocks" not in results(single(tmp_path, {"mamba2s": 1.9, "softmax-conv": 2.4})).intro


def test_only_published_losses_of_one_setting_can_be_put_in_an_order(tmp_path):
    intro = results(single(tmp_path / "a", {"mamba2": 1.7, "softmax": 1.9, "linear": 2.0})).intro
    assert "the order of softmax and linear can" in intro and "not that of mamba2 (one head)" in intro
    other = results(single(tmp_path / "b", {"softmax": 1.9, "linear": 2.0}, linear={"length": 128})).intro
    assert "nor can its order: these rows differ in length" in other


def test_speeds_have_their_range_over_seeds_and_the_load(comparison, tmp_path):
    section = results(single(tmp_path, {"softmax": 2.0}))
    (row,) = section.parts[0].rows
    assert row[titles(section.parts[0]).index("tokens/s")].note == "load 7.2"
    several = results(grouped(collect([comparison])))
    notes = [row[titles(several.parts[0]).index("tokens/s")].note for row in several.parts[0].rows]
    assert notes[0] == "2,350 to 2,350" and notes[-1]


RATES = (1e-3, 1e-2)
DECODE_MS = {"softmax": 6.0, "2mamba": 1.0, "linear": 1.5}


@pytest.fixture
def grid(tmp_path):
    """Three mechanisms in one block, two rates on the first seed, the better one on two more; recall and costs."""
    folder = tmp_path / "grid"
    base = Recipe(output=str(folder), steps=100, length=64, test_rows=8)
    levels = {"softmax": 2.4, "2mamba": 2.3, "linear": 2.9}
    runs = plan(base, list(levels), 3, learning_rates=RATES)
    for run in runs:
        write_run(run.recipe, levels[run.name] + 0.1 * (run.recipe.learning_rate == RATES[0]))
    others = following(runs, 3)
    for run in others:
        write_run(run.recipe, levels[run.name] + 0.001 * (run.name == "linear") * run.seed)
    rows = []
    for row in summary([*runs, *others]):
        accuracy = {"softmax": 0.99, "2mamba": 0.98, "linear": 0.1}[row.name]
        ends = (max(accuracy - 0.02, 0),), (min(accuracy + 0.02, 1),)
        recall = Recall((8,), (accuracy,), *ends, (0.125,), 1000, 3e-3)
        rows.append(dataclasses.replace(row, recall=recall, decode_ms=DECODE_MS[row.name], decode_quartiles=(0.25, 7.125)))
    content = {"command": "maclaurin compare", "rows": list(map(dataclasses.asdict, rows)), "shows": "It shows little."}
    (folder / "compare.json").write_text(json.dumps(content))
    return folder, rows


def test_the_page_has_the_rows_of_the_comparison_with_rates_recall_and_costs(grid):
    folder, rows = grid
    groups = grouped(collect([folder]))
    assert [group.row for group in groups] == rows
    assert groups[0].row.learning_rate == RATES[1] and groups[0].row.seeds == 3
    assert groups[0].row.loss == pytest.approx(sum(run.test[-1][1] for run in groups[0].runs) / 3)
    assert differences(groups) == []


def test_a_run_beside_a_comparison_is_judged_by_validation_and_borrows_no_costs(grid, tmp_path):
    """Test losses and validation losses are never in one column, and a larger model has no figures of a smaller one."""
    folder, _ = grid
    write_run(Recipe(output=str(tmp_path / "first"), mixer="2mamba", mixer_options='{"block": "gated"}', steps=100), 2.0)
    groups = grouped(collect([folder, tmp_path / "first"]))
    for group in groups:
        losses = [run.validation[-1][1] for run in group.runs]
        assert group.row.loss == pytest.approx(sum(losses) / len(losses))
    alone = next(group for group in groups if group.runs[0].folder.name == "first")
    assert alone.row.decode_ms is None and alone.row.recall is None
    assert all(group.row.decode_ms is not None for group in groups if group is not alone)
    assert all(group.row.decode_quartiles == (0.25, 7.125) for group in groups if group is not alone)
    assert not any("eval_every" in group.row.name or "intermediate_size" in group.row.name for group in groups)


def test_the_headline_answers_text_recall_and_cost(grid):
    folder, _ = grid
    runs = collect([folder])
    groups = grouped(runs)
    assert headline(groups) == "Text: 2mamba. Recall: softmax (level: 2mamba). Smallest state: linear"
    said = lead(groups, runs)
    assert said[0].startswith("Text: 2mamba has the lowest loss") and "no other is level" in said[0]
    assert said[1].startswith("Constant state: 2mamba has the lowest loss of those") and "(ahead)" in said[1]
    assert said[2].startswith("Recall: softmax answers 0.990 of 8 pairs; level with it: 2mamba. linear did no better")
    assert "2mamba decodes fastest after 16k tokens, 1.00 ms" in said[3]
    assert "It shows little." in said
    charts = {chart.key: chart for chart in build([folder], measure=False).charts()}
    assert [trace.name for trace in charts["loss-state"].figure.data] == ["2mamba", "softmax", "linear"]
    assert [trace.y[0] for trace in charts["recall-state"].figure.data] == [0.98, 0.99, 0.1]


@pytest.mark.parametrize("content", ["{", "[]", '{"rows": 3}', '{"rows": [{"name": "2mamba", "recall": {"pairs": [1]}}]}'])
def test_a_damaged_comparison_leaves_its_runs(grid, content):
    folder, rows = grid
    (folder / "compare.json").write_text(content)
    assert [group.name for group in grouped(collect([folder]))] == [row.name for row in rows]
    assert "recall-state" not in build([folder], measure=False).html()
