"""The suites, with cells so small that they take a second: what is kept, what is repeated, what is refused."""

import io
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from rich.console import Console

from maclaurin.cli import main
from maclaurin.evals.budget import parameters
from maclaurin.evals.cells import Cell, Problem, Row, Setting
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.learn import TEST_SEED, Outcome, Score, learn, warmup_and_cosine
from maclaurin.evals.models import build
from maclaurin.evals.page import page
from maclaurin.evals.parts import training_part, validation_part
from maclaurin.evals.planning import check, plan
from maclaurin.evals.runner import load, path_of, run, save
from maclaurin.evals.saved import continuations, needle_table
from maclaurin.evals.show import distance_table, result_table
from maclaurin.evals.suites import PRESETS, SUITES
from maclaurin.evals.suites.vision import KERNELS
from maclaurin.evals.summary import bootstrap, interval, summary, wilson
from maclaurin.models.folder import open_model

TINY = Setting(width=16, heads=2, layers=1, inner=16, steps=4, batch=4, examples=10)
TRAIN = (Problem("mqar", {"length": 16, "pairs": 2, "vocab_size": 16}),)
TEST = (*TRAIN, Problem("mqar", {"length": 32, "pairs": 4, "vocab_size": 16}))


def cell(label="softmax", learning_rate=1e-3, seed=0, setting=TINY, train=TRAIN, test=TEST, row=None):
    return Cell("tiny", label, row or Row((label,)), setting, train, test, learning_rate, seed)


def experiment(**changes):
    rows = {"softmax": Row(("softmax",)), "linear": Row(("linear",))}
    return replace(Experiment("tiny", "Tiny", rows, TINY, TRAIN, TEST, (1e-3, 1e-2), axis="pairs"), **changes)


def without_time(outcome):
    return {name: value for name, value in outcome.to_dict().items() if name != "seconds"}


def printed(table):
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


# --- numbers ---


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (81, 263, 0.2553, 0.3662), (1, 1, 0.2065, 1.0)],
)
def test_wilson(right, count, low, high):
    """81 of 263 is the example of Newcombe (1998), method 3; the others follow from the formula by hand."""
    assert wilson(right / count, count) == pytest.approx((low, high), abs=5e-5)


def test_intervals_over_seeds_hold_the_mean_and_are_the_same_again():
    values = [0.2, 0.9, 0.95, 1.0]
    low, high = bootstrap(values)
    assert 0.2 <= low < np.mean(values) < high <= 1.0
    assert bootstrap(values) == (low, high)
    assert interval([0.9], 100) == wilson(0.9, 100)
    assert interval([1.0, 1.0], 50) == wilson(1.0, 100)  # seeds that agree do not make a result certain


def test_the_learning_rate_rises_then_falls():
    factors = [warmup_and_cosine(step, 100) for step in range(100)]
    assert factors[0] == 0.1 and factors[9] == 1.0 and factors[10] == 1.0
    assert all(a >= b for a, b in pairwise(factors[9:]))
    assert factors[-1] == pytest.approx(0.01, abs=1e-3)


# --- one cell ---


def test_the_same_cell_gives_the_same_numbers():
    first, second = learn(cell()), learn(cell())
    assert without_time(first) == without_time(second)
    assert without_time(first) != without_time(learn(cell(seed=1)))


def test_a_cell_learns_what_it_is_asked():
    """Two keys and two values: answers stand at the query, not one token later."""
    problem = (Problem("mqar", {"length": 8, "pairs": 1, "vocab_size": 6}),)
    setting = replace(TINY, width=32, layers=2, inner=32, steps=400, batch=32, stop_at=0.99, examples=100)
    outcome = learn(cell("2mamba", 1e-2, setting=setting, train=problem, test=problem))
    assert outcome.scores[0].accuracy > 0.95
    assert outcome.steps < 400  # it stopped when it could
    assert sum(bucket[3] for bucket in outcome.scores[0].by_distance) == 100


def test_distances_count_every_answer():
    outcome = learn(cell())
    for score, pairs in zip(outcome.scores, (2, 4), strict=True):
        assert sum(asked for *_, asked in score.by_distance) == 10 * pairs
        assert sum(right for *_, right, _ in score.by_distance) == pytest.approx(score.accuracy * 10 * pairs)


def test_a_cell_that_diverges_answers_nothing():
    outcome = learn(cell("linear", 1e30))
    assert outcome.diverged and outcome.steps <= 4
    assert outcome.validation == 0 and all(score.accuracy == score.exact == 0 for score in outcome.scores)


def test_sequences_images_and_windows():
    listops = (Problem("listops", {"longest": 32, "shortest": 4, "depth": 3, "arguments": 3}),)
    outcome = learn(cell("gla", setting=replace(TINY, model="classifier"), train=listops, test=listops))
    assert outcome.scores[0].length == 32 and outcome.scores[0].state_bytes > 0
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    digits = (Problem("digits"),), (Problem("digits", {"split": "test"}),)
    outcome = learn(cell("inline", setting=replace(TINY, model="vision"), train=digits[0], test=digits[1]))
    assert outcome.scores[0].examples == 359 and outcome.scores[0].state_bytes is None
    hybrid = Row(("mlstm", "sliding-window"), {"sliding-window": {"window": 8}}, short_window=2, test_window=4)
    wide = replace(hybrid, test_window=16)
    setting = replace(TINY, layers=2)
    narrow, wide = (learn(cell("hybrid", setting=setting, row=row)) for row in (hybrid, wide))
    assert narrow.parameters == wide.parameters
    assert narrow.scores[0].state_bytes < wide.scores[0].state_bytes


def test_validation_examples_are_no_training_examples():
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    task = Problem("digits").task()
    train, validation = training_part(task), validation_part(task)
    assert len(train) + len(validation) == len(task)
    count = len(validation)
    seen = {tuple(row.tolist()) for row in train.sample(len(train), 0).inputs.flatten(1)}
    assert sum(tuple(row.tolist()) in seen for row in validation.sample(count, 0).inputs.flatten(1)) == 0


# --- many cells ---


def test_cells_go_through_json_and_are_named_by_what_decides_their_numbers():
    one = cell(row=Row(("gla",), {"gla": {"rotary": "selective", "rotary_options": {"rank": 4}}}))
    assert Cell.from_json(one.to_json()).key == one.key
    assert Cell.from_json(one.to_json()) == one
    assert replace(one, label="other", experiment="other").key == one.key
    others = [replace(one, seed=1), replace(one, learning_rate=2e-3), replace(one, setting=replace(TINY, steps=5))]
    assert len({one.key, *(other.key for other in others)}) == 4


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


def test_the_table_and_the_page_show_what_was_measured(tmp_path):
    tiny = experiment(seeds=2, published={"softmax": "1.000"}, source="a paper")
    errors = run(tiny.cells(2)[:-1], tmp_path, jobs=1)
    table = json.loads(json.dumps(summary(tiny, tmp_path, errors)))
    softmax, linear = table["rows"]
    assert linear["unfinished"] == 1 and softmax["unfinished"] == 0
    tried = {entry["learning_rate"]: entry["accuracy"] for entry in softmax["validation"]}
    assert list(tried) == [1e-3, 1e-2] and tried[softmax["learning_rate"]] == max(tried.values())
    for point in softmax["points"]:
        assert 0 <= point["low"] <= point["value"] <= point["high"] <= 1
        assert len(point["by_seed"]) == 2 and point["state_bytes"] > 0
    text = printed(result_table(table))
    for word in (
        "softmax",
        "linear",
        "2 pairs",
        "4 pairs",
        f"*{softmax['learning_rate']:g}",
        "published elsewhere",
        "a paper",
    ):
        assert word in text, word
    html = page({"command": "maclaurin eval", "suite": "tiny", "tables": [table]}).html()
    for word in ("tiny-pairs", "tiny-distance", "table-tiny", "shaded", "a paper"):
        assert word in html


def outcome(value):
    scores = [Score(share, share, 10, 16, 8, [(1, 2, 3, 4)]) for share in (0.5, value)]
    return Outcome(value, scores, 100, 4, False, 1.0)


def test_one_test_is_drawn_with_its_seeds(tmp_path):
    tiny = experiment(seeds=2, learning_rates=(1e-3,), axis="", test=TEST[1:], reference=None)
    for one in tiny.cells(2):
        save(one, replace(outcome(0.6 + 0.2 * one.seed), scores=outcome(0.6 + 0.2 * one.seed).scores[1:]), tmp_path)
    drawn = page({"command": "", "suite": "tiny", "tables": [summary(tiny, tmp_path, {})]})
    (chart,) = [chart for chart in drawn.charts() if chart.key == "tiny-test"]
    seeds, mean, *others = chart.figure.data
    assert list(seeds.x) == [0.6, 0.8] and list(seeds.y) == ["softmax", "softmax"]
    assert list(mean.x) == pytest.approx([0.7]) and mean.error_x.arrayminus[0] > 0.1
    assert [trace.y[0] for trace in others] == ["linear", "linear"]


def test_the_table_says_what_it_cost(tmp_path):
    """All cells count, those of the learning rate that was not chosen, too; what is not done yet does not."""
    tiny = experiment(reference=None, note="Mind the gap.")
    cells = tiny.cells(1)
    for one, seconds in zip(cells[:-1], (30.0, 60.0, 90.0), strict=True):
        save(one, replace(outcome(0.5 + one.learning_rate), steps=7, seconds=seconds), tmp_path)
    table = summary(tiny, tmp_path, {})
    assert (table["cells"], table["core_seconds"]) == (3, 180)
    text = printed(result_table(table))
    html = page({"command": "", "suite": "tiny", "tables": [table]}).html()
    for word in ("cells: 3, in 3.0 core-minutes", "Mind the gap.", "core-s a run"):
        assert word in text and word in html, word
    softmax = next(line for line in text.splitlines() if "softmax" in line)
    assert " 7 " in softmax and " 90 " in softmax  # those of the chosen rate


def test_seconds_are_of_the_processor():
    """Waiting, as for a core that others use, is not counted."""
    setting = replace(TINY, steps=1, stop_at=None)
    assert learn(cell(setting=setting), lambda step, loss: time.sleep(1.0)).seconds < 0.9


def test_rows_are_compared_seed_by_seed(tmp_path):
    tiny = experiment(seeds=3, learning_rates=(1e-3,), against={"softmax": "linear"}, reference=None)
    shares = {"softmax": (0.9, 0.7, 0.8), "linear": (0.6, 0.75, 0.7)}
    cells = tiny.cells(3)
    for one in cells[:-1]:
        save(one, outcome(shares[one.label][one.seed]), tmp_path)
    softmax, linear = summary(tiny, tmp_path, {})["rows"]
    assert softmax["against"] is linear["against"] is None  # the third pair is not there yet
    save(cells[-1], outcome(shares[cells[-1].label][2]), tmp_path)
    table = summary(tiny, tmp_path, {})
    softmax, linear = table["rows"]
    assert linear["against"] is None
    against = softmax["against"]
    assert against["row"] == "linear" and against["seeds_above"] == 2
    assert [against[name] for name in ("difference", "lowest", "highest")] == pytest.approx([0.35 / 3, -0.05, 0.3])
    text = printed(result_table(table))
    assert "+0.117 to linear" in text and "-0.050 … +0.300, above in 2 of 3" in text
    html = page({"command": "", "suite": "tiny", "tables": [table]}).html()
    assert "above in 2 of 3" in html.replace("\N{NO-BREAK SPACE}", " ")
    only = replace(tiny, rows={"softmax": tiny.rows["softmax"]})  # `--mixers softmax`
    assert summary(only, tmp_path, {})["rows"][0]["against"] is None


def test_recall_by_distance_is_printed(tmp_path):
    tiny = experiment(learning_rates=(1e-3,), rows={"softmax": Row(("softmax",))})
    assert distance_table(summary(tiny, tmp_path, {})) is None
    (only,) = tiny.cells(1)
    scores = [Score(0.5, 0.5, 4, 16, 8, []), Score(0.5, 0.5, 4, 32, 8, [(2, 4, 3, 4), (16, 32, 1, 8)])]
    save(only, Outcome(0.5, scores, 100, 4, False, 1.0), tmp_path)
    text = printed(distance_table(summary(tiny, tmp_path, {})))
    for word in ("32 tokens", "2–3", "16–31", "0.750", "0.125"):
        assert word in text, word


def test_a_heat_map_for_depth_by_length(tmp_path):
    problems = [Problem("passkey", {"length": length, "depth": depth}) for length in (32, 64) for depth in (0.0, 1.0)]
    train = (Problem("passkey", {"length": 32}),)
    needle = experiment(
        train=train, test=tuple(problems), axis="length", across="depth", metric="exact", learning_rates=(1e-3,)
    )
    needle = replace(needle, setting=replace(TINY, steps=1, batch=1, examples=2), rows={"linear": Row(("linear",))})
    assert run(needle.cells(1), tmp_path, jobs=1) == {}
    drawn = page({"command": "", "suite": "needle", "tables": [summary(needle, tmp_path, {})]})
    heat = next(chart.figure for chart in drawn.charts() if chart.figure.data[0].type == "heatmap")
    assert list(heat.data[0].x) == ["32", "64"] and list(heat.data[0].y) == ["0", "1"]


def test_a_table_of_nothing(tmp_path):
    table = summary(experiment(), tmp_path, {})
    result_table(table)
    assert "No cell has finished yet" in page({"command": "", "suite": "tiny", "tables": [table]}).html()


# --- suites ---


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("suite", SUITES)
def test_every_experiment_can_be_trained(suite, preset):
    if preset == "paper" and suite in ("needle", "vision", "swax"):
        with pytest.raises(ValueError, match="no preset 'paper'"):
            plan(suite, preset)
        return
    for planned in plan(suite, preset):
        assert not any("," in label for label in planned.rows)  # `--mixers` has commas between
        assert planned.axis == "" or all(planned.axis in problem.options for problem in planned.test)
        assert set(planned.published) <= {*planned.rows, "softmax", "mamba2", "metala"}
        assert {*planned.against, *planned.against.values()} <= set(planned.rows)
        assert bool(planned.published) == bool(planned.source) or planned.source


@pytest.mark.parametrize("preset", ["quick", "standard"])
def test_digits_compare_like_with_like(preset):
    """A kernel divided by its sum and the same one centred are models of the same shape; all rows have equal sizes."""
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    (digits,) = plan("vision", preset)
    task, settings = digits.train[0].task(), digits.settings()
    for kernel in KERNELS:
        divided, centred = digits.rows[f"linear-{kernel}"], digits.rows[f"centred-{kernel}"]
        assert divided.options["linear"]["feature_map"] == centred.options["inline"]["feature_map"] == kernel
        shapes = [
            {name: tuple(weight.shape) for name, weight in build(row, digits.setting, task).state_dict().items()}
            for row in (divided, centred)
        ]
        assert shapes[0] == shapes[1]
    sizes = [parameters(row, settings[label], task) for label, row in digits.rows.items()]
    assert max(sizes) - min(sizes) < 0.01 * min(sizes)
    assert digits.seeds == 5


def test_recall_trains_with_more_pairs_than_the_first_order_holds_and_fewer_than_the_second():
    """A head of d channels has d features of first order and d (d + 1) / 2 of second: with as many keys it can be exact."""
    (recall,) = plan("recall")
    channels = recall.setting.width // recall.setting.heads
    hardest = max(problem.options["pairs"] for problem in recall.train)
    assert channels < hardest < channels * (channels + 1) // 2
    assert max(problem.options["pairs"] for problem in recall.test) > hardest


@pytest.mark.parametrize("preset", ["quick", "standard"])
def test_rows_of_swax_differ_in_their_windows_alone(preset):
    (swax,) = plan("swax", preset)
    trained = max(problem.options["length"] for problem in swax.train)
    rows = list(swax.rows.values())
    without = [
        {name: {**own, "window": 0} if name == "sliding-window" else own for name, own in row.options.items()}
        for row in rows
    ]
    assert all(options == without[0] for options in without)
    windows = [row.options["sliding-window"]["window"] for row in rows]
    assert windows == [trained // 16, trained // 4, trained, trained, trained // 16]
    assert [row.short_window for row in rows] == [None, None, None, trained // 16, None]
    assert [row.test_window for row in rows] == [None, None, None, None, trained]
    assert max(problem.options["length"] for problem in swax.test) > 2 * trained  # beyond the window in two steps
    assert swax.seeds >= 3 and swax.setting.stop_at is None  # an early end would leave out the schedule's last part


@pytest.mark.slow
def test_selective_rotations_keep_parity_at_four_times_the_trained_lengths():
    """Not to the last bit with every seed: docs/evals.md has the figures."""
    (parity,) = plan("track", mixers=["gla-selective", "gla"])
    longest = max(problem.options["length"] for problem in parity.train)
    far = next(n for n, problem in enumerate(parity.test) if problem.options["length"] == 4 * longest)
    found = {label: [] for label in parity.rows}
    for one in parity.cells(parity.seeds):
        found[one.label].append(learn(one).scores[far].accuracy)
    assert statistics.fmean(found["gla-selective"]) > 0.95
    assert max(found["gla"]) < 0.6


def test_all_rows_of_tracking_have_the_same_parameters():
    """qlstm, whose gates are the heaviest, is what the others are matched to."""
    (parity,) = plan("track")
    task = parity.train[0].task()
    counts = [parameters(parity.rows[label], setting, task) for label, setting in parity.settings().items()]
    assert max(counts) < 1.01 * min(counts)


def test_embeddings_start_as_large_as_the_setting_says_and_the_head_does_not():
    task = TRAIN[0].task()
    torch.manual_seed(0)
    usual = build(Row(("softmax",)), TINY, task).model
    torch.manual_seed(0)
    large = build(Row(("softmax",)), replace(TINY, embedding_std=0.5), task).model
    torch.testing.assert_close(large.model.embed_tokens.weight, 25 * usual.model.embed_tokens.weight)
    assert torch.equal(large.lm_head.weight, usual.lm_head.weight)
    with pytest.raises(ValueError, match="embedding_std must be above 0"):
        replace(TINY, embedding_std=0.0)
    assert cell(setting=replace(TINY, embedding_std=0.5)).key != cell().key


def test_smoothed_labels_leave_a_loss_and_are_another_cell():
    losses = {}
    for smoothing in (0.0, 0.5):
        one = cell(setting=replace(TINY, label_smoothing=smoothing, steps=20))
        losses[smoothing] = []
        learn(one, lambda step, loss, kept=losses[smoothing]: kept.append(loss))
    assert losses[0.0] != losses[0.5]
    assert cell(setting=replace(TINY, label_smoothing=0.5)).key != cell().key
    with pytest.raises(ValueError, match="label_smoothing must be at least 0 and below 1"):
        replace(TINY, label_smoothing=1.0)


def test_bad_settings_say_what_to_change():
    with pytest.raises(ValueError, match="suite must be one of 'recall'"):
        plan("recal")
    with pytest.raises(ValueError, match="preset must be one of"):
        plan("recall", "fast")
    with pytest.raises(ValueError, match=r"mixers must be one of .*'2mamba'.* got '2mambo'"):
        plan("recall", mixers=["2mambo"])
    with pytest.raises(ValueError, match="seeds must be at least 1"):
        plan("recall", seeds=0)
    with pytest.raises(ValueError, match="steps must be at least 1"):
        plan("recall", steps=0)
    with pytest.raises(ValueError, match="learning_rates must be above 0"):
        plan("recall", learning_rates=[-1.0])
    with pytest.raises(ValueError, match="causal only"):
        plan("vision", mixers=["mlstm"])
    with pytest.raises(ValueError, match="raise length, or lower pairs"):
        check(experiment(test=(Problem("mqar", {"length": 16, "pairs": 8, "vocab_size": 64}),)))
    with pytest.raises(ValueError, match="same vocab_size"):
        check(experiment(test=(Problem("mqar", {"length": 16, "pairs": 2, "vocab_size": 64}),)))
    with pytest.raises(ValueError, match="must divide the 1 layers"):
        check(experiment(rows={"both": Row(("softmax", "linear"))}))
    with pytest.raises(ValueError, match="jobs must be at least 1"):
        run([], "", jobs=0)


def test_any_mixer_can_be_a_row():
    (planned,) = plan("recall", mixers=["rglru", "linear-conv"], seeds=2, steps=7, learning_rates=[1e-4])
    assert planned.rows == {"rglru": Row(("rglru",)), "linear-conv": Row(("linear",), {"linear": {"conv_width": 2}})}
    cells = planned.cells(planned.seeds)
    assert len(cells) == 4 and {cell.setting.steps for cell in cells} == {7}
    assert {cell.learning_rate for cell in cells} == {1e-4}


# --- the shell ---


def command(*arguments):
    return [sys.executable, "-m", "maclaurin.cli", "eval", *map(str, arguments)]


TINY_RUN = (
    "--suite",
    "track",
    "--mixers",
    "softmax,gla-selective",
    "--steps",
    "2",
    "--learning-rates",
    "0.001",
    "--jobs",
    "1",
)


def test_the_shell_runs_a_suite_and_goes_on_after_a_kill(tmp_path, capsys):
    output = ("--output", tmp_path / "out")
    with subprocess.Popen(command(*TINY_RUN, *output), stderr=subprocess.PIPE, text=True) as process:
        assert "parity, softmax" in process.stderr.readline()
        process.kill()
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out" / "cells").glob("*.json")}
    assert len(kept) >= 1
    result = subprocess.run(command(*TINY_RUN, *output, "--json"), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "[1/2]" not in result.stderr  # the first is not trained again
    results = json.loads(result.stdout)
    assert results == json.loads((tmp_path / "out" / "results.json").read_text())
    assert [row["label"] for row in results["tables"][0]["rows"]] == ["softmax", "gla-selective"]
    assert all(len(row["points"]) == 5 for row in results["tables"][0]["rows"])
    assert (tmp_path / "out" / "eval.html").is_file()
    for name, written in kept.items():
        assert (tmp_path / "out" / "cells" / name).stat().st_mtime_ns == written
    with pytest.raises(SystemExit) as ended:
        main(["eval", *map(str, (*TINY_RUN, *output))])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "gla-selective" in printed and "published elsewhere" in printed and "eval.html" in printed


def test_the_shell_is_interrupted_with_one_sentence(tmp_path):
    long = ("--suite", "track", "--mixers", "softmax", "--steps", "100000", "--jobs", "1", "--output", tmp_path)
    process = subprocess.Popen(command(*long), stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "worker-0.txt").exists():
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert "the same command goes on" in process.communicate(timeout=120)[1]
    assert process.returncode == 130


def needles(lengths, depths, examples):
    problems = tuple(Problem("passkey", {"length": length, "depth": depth}) for length in lengths for depth in depths)
    setting = replace(TINY, examples=examples)
    return experiment(name="passkey", train=problems, test=problems, axis="length", across="depth", setting=setting)


def test_a_trained_model_answers_needles(trained, tmp_path, monkeypatch, capsys):
    """Through the shell: a table, a file of figures and a page with a heat map, of a model of four steps of training."""
    monkeypatch.setitem(SUITES, "needle", lambda preset: [needles((16, 32), (0.0, 1.0), 3)])
    arguments = ["eval", str(trained), "--suite", "needle", "--output", str(tmp_path)]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    printed = capsys.readouterr().out
    assert ended.value.code == 0 and trained.name in printed and "length 32" in printed and "eval.html" in printed
    results = json.loads((tmp_path / "results.json").read_text())
    (row,) = results["tables"][0]["rows"]
    assert [(point["length"], point["depth"], point["value"]) for point in row["points"]] == [
        (16, 0, 0),
        (16, 1, 0),
        (32, 0, 0),
        (32, 1, 0),
    ]
    assert row["points"][-1]["tokens"] > 200 and row["points"][-1]["state_bytes"] > 0
    charts = page(results).charts()
    (heat,) = (chart.figure for chart in charts if chart.figure.data[0].type == "heatmap")
    assert list(heat.data[0].x) == ["16", "32"] and list(heat.data[0].y) == ["0", "1"]
    html = (tmp_path / "eval.html").read_text()
    assert 'id="passkey-0"' in html and "A trained model continues every prompt" in html and "Every cell trains" not in html


def test_a_trained_model_that_says_the_key_is_right(trained, monkeypatch):
    model, tokenizer = open_model(str(trained))
    asked = needles((16, 32), (0.5,), 3)
    prompts = {prompt.text: prompt for problem in asked.test for prompt in problem.task().prompts(3, TEST_SEED)}

    def knows(self, ids, **_):
        """Says the key of every prompt but those of 32 characters of hay, where it says another one."""
        texts = tokenizer.batch_decode(ids)
        said = [prompts[text].answers[0] if len(text) < 275 else "0000" for text in texts]
        return torch.cat([ids, torch.tensor(tokenizer([f"{key}. " for key in said])["input_ids"])], 1)

    monkeypatch.setattr(type(model), "generate", knows)
    table = needle_table(model, tokenizer, "mine", asked, asked.test)
    lengths = sorted({len(text) for text in prompts})
    assert lengths[0] < 275 <= lengths[1]
    assert [point["value"] for point in table["rows"][0]["points"]] == [1, 0]


def test_prompts_of_different_lengths_are_continued_as_if_alone(trained):
    model, _ = open_model(str(trained))
    prompts = [[5, 6, 7], [8, 9], [1, 2, 3], [4] * 9]
    assert continuations(model, prompts) == [continuations(model, [prompt])[0] for prompt in prompts]


def test_a_trained_model_answers_nothing_but_needles(trained):
    model, tokenizer = open_model(str(trained))
    with pytest.raises(ValueError, match="a trained model can answer needles, not 'mqar'"):
        needle_table(model, tokenizer, "mine", experiment(), TRAIN)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "give the folder of a trained model, or --suite"),
        (("runs/first", "--suite", "recall"), "the suite 'needle' only"),
        (("--suite", "recal"), "suite must be one of"),
        (("--suite", "recall", "--learning-rates", "fast"), "learning_rates must be numbers"),
    ],
)
def test_the_shell_says_what_is_missing(arguments, sentence, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["eval", *arguments])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and sentence in error and len(error.splitlines()) == 1
