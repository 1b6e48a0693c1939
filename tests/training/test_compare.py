"""Comparisons: equal budgets, runs that are done once, a table that says what they gave."""

import json
from pathlib import Path

import pytest
import torch

from maclaurin.models import MaclaurinForCausalLM
from maclaurin.report.blocks import Block
from maclaurin.report.runs import mixer_label
from maclaurin.training import Recipe, model_size, train
from maclaurin.training.budgets import BUDGETS
from maclaurin.training.compare import following, plan, summary
from maclaurin.training.configured import compare_recipe
from maclaurin.training.contenders import BLOCKS, MECHANISMS, PUBLISHED
from tests.shell import typed


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("size", ["tiny", "small", "medium"])
def test_parameters_are_matched_within_two_percent(size, block):
    runs = plan(Recipe(size=size), block=block)
    counts = [run.parameters for run in runs]
    assert max(counts) / min(counts) < 1.02


@pytest.mark.parametrize(("block", "name"), [("gated", name) for name in MECHANISMS] + [("published", n) for n in PUBLISHED])
def test_parameters_and_states_are_those_of_the_model(block, name):
    """Of a size that is free: all of the model but its embeddings, head and norms, and the cache after some tokens."""
    base = Recipe(hidden_size=64, num_hidden_layers=3, num_attention_heads=2)
    (run,) = plan(base, [name], 1, block=block)
    model = MaclaurinForCausalLM(run.recipe.config(vocab_size=10))
    layers = model.model.layers
    assert (model.config.hidden_size, len(layers), model.config.num_attention_heads) == (64, 3, 2)
    norms = sum(p.numel() for key, p in layers.named_parameters() if "layernorm" in key)
    assert run.parameters == sum(p.numel() for p in layers.parameters()) - norms
    with torch.no_grad():
        cache = model.eval()(torch.ones(1, 700, dtype=torch.long)).past_key_values
    assert model_size.state_nbytes(model_size.layers(run.recipe), 700) == pytest.approx(cache.nbytes, rel=0.01)


def test_contenders_differ_in_nothing_but_the_mixer():
    runs = plan(Recipe(output="x", steps=7), ["softmax", "2mamba"], seeds=2)
    assert [(run.name, run.seed) for run in runs] == [("softmax", 0), ("2mamba", 0), ("softmax", 1), ("2mamba", 1)]
    shared = {"steps", "length", "batch_size", "learning_rate", "corpus", "tokenizer", "seed"}
    first, second = (vars(run.recipe) for run in runs[:2])
    assert all(first[name] == second[name] for name in shared)
    assert [run.seed for run in plan(Recipe(seed=5), ["softmax"], seeds=2)] == [5, 6]


@pytest.mark.parametrize(
    ("mixers", "sentence"),
    [
        ("2mambo", r"mixers has '2mambo' \(did you mean '2mamba'\?\); it may have softmax, .*softmax-conv, .*retnet"),
        (
            "gla,2mamba:conv_widht=4",
            r"'2mamba' has no option 'conv_widht' \(did you mean 'conv_width'\?\); it takes: .*gate",
        ),
        ("2mamba:conv_width=wide", "conv_width"),
        ("gla+mambo", "mixers has 'mambo'"),
        ("2mamba+gla:fold_at=9", "'gla' has no option 'fold_at'"),
        ("mamba2+2mamba+paper-2/2Mamba", "mixers must give '2mamba' the same options in all layers of one contender"),
        ("gla,gla", "mixers has 'gla' twice"),
        ("conv_width=4", "mixers must begin with a name"),
        (",", "mixers must name at least one contender"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence_before_any_run(mixers, sentence, tmp_path):
    with pytest.raises((ValueError, TypeError), match=sentence):
        plan(Recipe(output=str(tmp_path)), mixers, 1)
    assert not list(tmp_path.iterdir())


def test_seeds_must_be_at_least_one():
    with pytest.raises(ValueError, match="seeds must be at least 1"):
        plan(Recipe(), ["2mamba"], 0)


def test_any_registered_mixer_with_options_is_a_contender():
    mixers = "gla,2mamba:conv_width=4,gate=true,mamba2:d_state=16,softmax-conv"
    runs = plan(Recipe(output="x"), mixers, seeds=1, block="published")
    assert [(run.name, run.recipe.mixer, run.recipe.options()) for run in runs] == [
        ("gla", "gla", {}),
        ("2mamba:conv_width=4,gate=true", "2mamba", {"conv_width": 4, "gate": True}),
        ("mamba2:d_state=16", "mamba2", {"expand": 1, "d_state": 16}),  # beside the options of the contender
        ("softmax-conv", "softmax", {"conv_width": 2}),
    ]
    assert Path(runs[1].recipe.output).name == "2mamba,conv_width=4,gate=true-seed0"
    as_list = plan(Recipe(output="x"), ["gla", "2mamba:conv_width=4,gate=true"], seeds=1)
    assert [run.name for run in as_list] == [run.name for run in runs[:2]]


def test_layers_in_turn_are_a_contender():
    """Each in the block, with the options behind them for all."""
    gated, plain = plan(Recipe(output="x", num_hidden_layers=3), "2mamba+gated-delta,2mamba+gla:conv_width=2", 1)
    assert gated.recipe.mixers() == ["2mamba", "gated-delta"]
    assert gated.recipe.options() == {"2mamba": {"block": "gated"}, "gated-delta": {"block": "gated"}}
    assert gated.recipe.config().layer_mixers() == ["2mamba", "gated-delta", "2mamba"]
    assert Path(gated.recipe.output).name == "2mamba+gated-delta-seed0"
    assert plain.recipe.options() == {name: {"block": "gated", "conv_width": 2} for name in ("2mamba", "gla")}
    assert abs(gated.parameters / plain.parameters - 1) < 0.02


def test_all_contenders_have_one_block():
    """A convolution of width 4, a gate and a skip, or none of them; a gate of its own stays."""
    for block, around in (("gated", Block(4, True, True)), ("llama", Block(0, False, False))):
        runs = plan(Recipe(), block=block)
        assert [run.name for run in runs] == list(MECHANISMS)
        found = {mixer.kind: Block.of(mixer) for run in runs for mixer, _ in model_size.layers(run.recipe)}
        if block == "llama":  # Mamba-2 is a block of its own, and gated-delta has its gate
            found = {name: own for name, own in found.items() if name not in ("mamba2", "gated-delta")}
        assert set(found.values()) == {around}, block


def test_an_option_is_stronger_than_the_block():
    run, own = plan(Recipe(), "2mamba:block=llama,gla:conv_width=2")
    assert Block.of(model_size.layers(run.recipe)[0][0]) == Block(0, False, False)
    assert Block.of(model_size.layers(own.recipe)[0][0]) == Block(2, True, True)


def finish(run, validation, test=None, **more):
    run.result_path.parent.mkdir(parents=True, exist_ok=True)
    result = {"held_out_loss": validation, "tokens_per_second": 10.0, "peak_bytes": 5, "seconds": 1.0, **more}
    run.result_path.write_text(json.dumps(result | ({} if test is None else {"test_loss": test})))


def test_the_rate_is_chosen_on_the_first_seed_by_validation_and_judged_by_the_test(tmp_path):
    base = Recipe(output=str(tmp_path), test_rows=4)
    runs = plan(base, "linear,2mamba", 3, learning_rates=(1e-3, 1e-2))
    assert [(run.name, run.seed, run.recipe.learning_rate) for run in runs] == [
        ("linear", 0, 1e-3),
        ("2mamba", 0, 1e-3),
        ("linear", 0, 1e-2),
        ("2mamba", 0, 1e-2),
    ]
    for run, validation, test in zip(runs[:3], (2.0, 2.5, 1.9), (1.0, 3.0, 3.5), strict=True):
        finish(run, validation, test)
    assert {(run.name, run.seed, run.recipe.learning_rate) for run in following(runs, 3)} == {
        ("linear", 1, 1e-2),  # by validation, though its test is the worst
        ("linear", 2, 1e-2),
    }
    finish(runs[3], 2.6, 2.0)
    others = following(runs, 3)
    assert [(run.name, run.seed) for run in others] == [("linear", 1), ("2mamba", 1), ("linear", 2), ("2mamba", 2)]
    for run, test in zip(others, (3.6, 3.1, 3.7, 3.2), strict=True):
        finish(run, 9.0, test)
    best, worst = summary([*runs, *others])
    assert (best.name, best.learning_rate, best.by_seed) == ("2mamba", 1e-3, ((0, 3.0), (1, 3.1), (2, 3.2)))
    assert worst.tried == ((1e-3, 2.0), (1e-2, 1.9)) and worst.loss == pytest.approx(3.6)


def test_a_rate_that_diverges_is_not_chosen_and_all_of_them_are_an_error(tmp_path):
    runs = plan(Recipe(output=str(tmp_path), test_rows=4), "linear", 2, learning_rates=(1e-3, 1.0))
    finish(runs[0], 2.0, 2.0)
    runs[1].result_path.parent.mkdir()
    runs[1].result_path.write_text(json.dumps({"diverged": "the loss is nan at step 3", "seconds": 1.0}))
    assert [run.recipe.learning_rate for run in following(runs, 2)] == [1e-3]
    assert summary(runs)[0].learning_rate == 1e-3
    runs[0].result_path.write_text(json.dumps({"diverged": "the loss is nan at step 9", "seconds": 1.0}))
    with pytest.raises(ValueError, match="linear diverged with every learning rate, the smallest of which is"):
        following(runs, 2)


def test_one_rate_needs_no_choice():
    runs = plan(Recipe(output="x"), "linear", 2)
    assert [(run.seed, Path(run.recipe.output).name) for run in runs] == [(0, "linear-seed0"), (1, "linear-seed1")]
    assert following(runs, 2) == []


def test_flags_win_over_the_budget_and_a_size_over_its_widths():
    recipe, rates = compare_recipe({})
    assert rates == BUDGETS["minutes"].learning_rates and (recipe.hidden_size, recipe.test_rows) == (64, 512)
    assert compare_recipe({"lr": 0.5, "steps": 7})[1] == (0.5,)
    assert compare_recipe({"size": "small"})[0].config().hidden_size == 1024
    recipe, rates = compare_recipe({}, budget="night", learning_rates=(0.1, 0.2))
    assert (recipe.steps, recipe.length, rates) == (2000, 512, (0.1, 0.2))
    with pytest.raises(ValueError, match="give learning_rate or learning_rates, not both"):
        compare_recipe({"lr": 0.5}, learning_rates=(0.1,))
    with pytest.raises(ValueError, match="budget"):
        compare_recipe({}, budget="year")


def test_options_that_are_objects_stay_options():
    (run,) = plan(Recipe(), 'gla:rotary="selective",rotary_options={"theta":1}', 1)
    assert run.recipe.config().options_of("gla")["rotary_options"] == {"theta": 1}


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("name", ["2mamba:conv_width=4,gate=true", "gla", "mamba2", "2mamba+gla:conv_width=2"])
def test_a_page_names_a_contender_as_it_was_typed(name, block):
    (run,) = plan(Recipe(), name, 1, block=block)
    assert mixer_label(run.recipe) == name


def test_the_summary_ranks_by_mean_loss_with_its_spread(tmp_path):
    runs = plan(Recipe(output=str(tmp_path)), ["linear", "2mamba"], seeds=2)
    for run, loss in zip(runs, (3.0, 2.0, 3.2, 2.1), strict=True):
        run.result_path.parent.mkdir()
        run.result_path.write_text(
            json.dumps({"held_out_loss": loss, "tokens_per_second": 10.0, "peak_bytes": 5, "seconds": 1.0})
        )
    best, worst = summary(runs)
    assert (best.name, best.rank, worst.name, worst.rank) == ("2mamba", 1, "linear", 2)
    assert best.loss == pytest.approx(2.05)
    assert best.spread == pytest.approx(0.0707, abs=1e-4)
    assert best.seeds == 2


def test_a_comparison_goes_on_run_by_run(tmp_path, monkeypatch):
    monkeypatch.setenv("MACLAURIN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text").mkdir()
    rows = (json.dumps({"text": f"{i} green bottles hanging on the wall\n" * 4}) for i in range(150))
    (tmp_path / "text" / "songs.jsonl").write_text("\n".join(rows))
    command = ["compare", "--mixers=linear,2mamba", "--seeds=2", "--steps=3"]
    command += [f"--output={tmp_path / 'out'}", f"--corpus={tmp_path / 'text'}", "--batch_size=2", "--eval_rows=4"]
    command += ["--length=32", "--test_rows=4", "--learning_rates=1e-3,1e-2", "--no_recall", "--jobs=2"]
    first = typed(*command)
    assert first.returncode == 0, first.stderr
    assert "1. " in first.stdout and "test loss" in first.stdout
    page = tmp_path / "out" / "report.html"
    assert first.stdout.splitlines()[-1] == str(page)
    text = page.read_text()
    assert "maclaurin compare --mixers=linear,2mamba" in text and f"torch {torch.__version__}" in text
    table = json.loads((tmp_path / "out" / "compare.json").read_text())["rows"]
    assert {row["name"] for row in table} == {"linear", "2mamba"}
    assert all(row["seeds"] == 2 and len(row["tried"]) == 2 and row["decode_ms"] > 0 for row in table)
    finished = tmp_path / "out" / "linear-rate0.01-seed0"
    assert not list(finished.glob("checkpoint-*")) and (finished / "model.safetensors").exists()
    assert json.loads((finished / "result.json").read_text())["peak_bytes"] > 2**20
    with pytest.raises(ValueError, match="holds a finished run of `compare`, which keeps no checkpoint"):
        train(Recipe.load(finished), resume=True)
    kept = (finished / "result.json").stat().st_mtime_ns
    (tmp_path / "out" / "2mamba-rate0.01-seed0" / "result.json").unlink()
    assert typed(*command).returncode == 0
    assert (finished / "result.json").stat().st_mtime_ns == kept
    assert json.loads((tmp_path / "out" / "compare.json").read_text())["rows"][0]["loss"] == table[0]["loss"]
