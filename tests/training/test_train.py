"""Training: resumed runs equal undisturbed ones, nothing is lost, and every bad input is one sentence."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from maclaurin.training import NonFiniteLossError, Recipe, train
from maclaurin.training import run as run_module
from maclaurin.training.configured import train_recipe
from maclaurin.training.trainer import LanguageTrainer
from tests.shell import typed

STEPS = 8


def recipe(folder, **fields):
    fields = {"length": 32, "batch_size": 2, "steps": STEPS, "eval_rows": 3, "warmup_steps": 2, "save_every": 2, **fields}
    return Recipe(**{"output": str(folder / "run"), "corpus": str(folder / "text"), **fields})


def weights(folder):
    return load_file(folder / "run" / "model.safetensors")


def assert_same_weights(got, expected):
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[name], expected[name]) for name in expected)


def test_a_run_leaves_a_model_a_log_and_the_last_evaluation(folder):
    result = train(recipe(folder))
    assert result.finished
    log = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    last = [entry for entry in log if "eval_loss" in entry][-1]
    assert last["step"] == STEPS
    assert last["eval_loss"] == result.held_out_loss < 5.6
    assert sorted(path.name for path in (folder / "run").glob("checkpoint-*")) == ["checkpoint-6", "checkpoint-8"]
    assert not list((folder / "run").glob("*.bin"))


def test_a_resumed_run_equals_an_undisturbed_one_bit_for_bit(folder, monkeypatch):
    train(recipe(folder))
    expected = weights(folder)
    (folder / "run").rename(folder / "undisturbed")

    class Dies(LanguageTrainer):
        def training_step(self, *args, **kwargs):
            if self.state.global_step == 5:
                raise RuntimeError("power cut")
            return super().training_step(*args, **kwargs)

    monkeypatch.setattr(run_module, "LanguageTrainer", Dies)
    with pytest.raises(RuntimeError, match="power cut"):
        train(recipe(folder))
    monkeypatch.undo()
    monkeypatch.setenv("MACLAURIN_CACHE", str(folder / "cache"))
    assert train(recipe(folder), resume=True).finished
    assert_same_weights(weights(folder), expected)
    steps = [json.loads(line)["step"] for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)


@pytest.mark.parametrize(
    "fields",
    [
        {"corpus": "missing.txt"},
        {"tokenizer": "nowhere"},
        {"mixer_options": {"conv_widht": 4}},
        {"length": 10**6},
        {"short_window": 4},
        {"trainer": {"optim": "adamw_bnb_8bit"}},  # which is not installed, as the trainer finds when it begins
    ],
)
def test_a_refused_run_leaves_nothing_behind(folder, fields):
    for output in (folder / "made" / "here" / "run", folder / "mine"):
        if output.name == "mine":
            output.mkdir()
            (output / "notes.txt").write_text("mine")
        with pytest.raises((ValueError, ImportError)):
            train(recipe(folder, output=str(output), track="none", **fields))
    assert not (folder / "made").exists()
    assert {path.name for path in (folder / "mine").iterdir()} == {"notes.txt", "run.lock"}


def test_a_full_disk_leaves_the_old_checkpoint(folder, monkeypatch):
    class FullDisk(LanguageTrainer):
        def _save_optimizer_and_scheduler(self, output_dir):
            if self.state.global_step > 2:
                raise OSError(28, "No space left on device")
            super()._save_optimizer_and_scheduler(output_dir)

    monkeypatch.setattr(run_module, "LanguageTrainer", FullDisk)
    with pytest.raises(OSError, match="No space left"):
        train(recipe(folder))
    assert sorted(path.name for path in (folder / "run").iterdir() if path.is_dir()) == ["checkpoint-2", "tensorboard"]
    monkeypatch.setattr(run_module, "LanguageTrainer", LanguageTrainer)
    assert train(recipe(folder), resume=True).finished


def test_a_loss_that_is_not_finite_stops_with_step_layer_and_checkpoint(folder, monkeypatch):
    class Breaks(LanguageTrainer):
        def training_step(self, model, *args, **kwargs):
            if self.state.global_step == 3:
                model.model.layers[2].mlp.up_proj.weight.data.fill_(torch.nan)
            return super().training_step(model, *args, **kwargs)

    monkeypatch.setattr(run_module, "LanguageTrainer", Breaks)
    with pytest.raises(
        NonFiniteLossError, match=r"the loss is nan at step 4: .* in model\.layers\.2\.mlp\.up_proj; .*checkpoint-2"
    ):
        train(recipe(folder))


def test_evaluation_is_weighted_by_tokens(folder):
    """One document per sequence, of very different lengths: the mean over tokens, not over sequences or batches."""
    result = train(recipe(folder, rows="documents", length=200, eval_rows=5, steps=2))
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from maclaurin.data import DocumentRows, open_corpus, tokenise

    model = AutoModelForCausalLM.from_pretrained(folder / "run").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "run")
    rows = DocumentRows(tokenise(open_corpus(str(folder / "text")), "held-out", tokenizer), 200)
    total, tokens = 0.0, 0
    for index in range(5):
        ids = rows[index][None]
        total += model(ids, labels=ids, num_items_in_batch=1).loss.item()
        tokens += ids.shape[1] - 1
    assert abs(result.held_out_loss - total / tokens) < 1e-5


SMALL = ("--hidden_size=16", "--intermediate_size=16", "--num_hidden_layers=1", "--num_attention_heads=2", "--track=none")


def start(folder, *extra):
    fields = recipe(folder, steps=60, save_every=3)
    flags = [
        f"--{name}={getattr(fields, name)}" for name in ("output", "corpus", "length", "batch_size", "steps", "save_every")
    ]
    command = [sys.executable, "-m", "maclaurin.cli", "train", *flags, *extra]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_checkpoint(folder, process, after=0):
    while process.poll() is None:
        steps = [int(path.name.split("-")[1]) for path in (folder / "run").glob("checkpoint-*")]
        if steps and max(steps) > after:
            return max(steps)
        time.sleep(0.02)
    return None


def test_ctrl_c_saves_and_says_how_to_go_on(folder):
    process = start(folder, *SMALL)
    wait_for_checkpoint(folder, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert f"go on with: {sys.executable} -m maclaurin.cli train --output {folder / 'run'} --resume" in output
    finished = typed("train", "--output", folder / "run", "--resume", "--save_every", 60)
    assert "60 steps, validation loss" in finished.stdout, finished.stderr


@pytest.mark.slow
def test_five_kills_in_a_row_change_nothing(folder):
    assert start(folder).wait() == 0
    expected = weights(folder)
    (folder / "run").rename(folder / "undisturbed")
    reached = 0
    for attempt in range(5):
        process = start(folder, *(["--resume"] if attempt else []))
        reached = wait_for_checkpoint(folder, process, reached) or reached
        time.sleep(0.05 * attempt)
        process.kill()
        process.wait()
    assert start(folder, "--resume").wait() == 0
    assert_same_weights(weights(folder), expected)


def test_yaml_and_flags_have_the_same_names(tmp_path):
    (tmp_path / "run.yaml").write_text("mixer: softmax\nsteps: 7\nlearning_rate: 0.5\n")
    recipe = train_recipe({"steps": 9}, tmp_path / "run.yaml")
    assert (recipe.mixer, recipe.steps, recipe.learning_rate) == ("softmax", 9, 0.5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"schedule": "sine"}, "schedule must be one of"),
        ({"size": "huge"}, "size must be one of"),
        ({"mixer_options": "{"}, "mixer_options must be JSON"),
        ({"mixer_options": "[]"}, "mixer_options must be a JSON object"),
        ({"learning_rate": -1.0}, "learning_rate must not be negative"),
        ({"track": "paper"}, "track must be one of"),
    ],
)
def test_bad_recipes(fields, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**fields)


def test_bad_runs(folder):
    with pytest.raises(ValueError, match="there is no checkpoint to resume from"):
        train(recipe(folder), resume=True)
    with pytest.raises(ValueError, match="unknown mixer 'nothing'"):
        train(recipe(folder, mixer="nothing"))
    train(recipe(folder, steps=1))
    with pytest.raises(ValueError, match="holds a run already"):
        train(recipe(folder))


def test_a_checkpoint_of_another_model_is_refused(folder):
    train(recipe(folder, steps=2))
    for fields, message in (
        ({"mixer": "softmax"}, "has mixer '2mamba-orders', the recipe gives 'softmax'"),
        ({"mixer_options": '{"conv_width": 4}'}, "has mixer_options"),
        ({"tokenizer": "bpe:300"}, "has tokenizer 'bytes', the recipe gives 'bpe:300'"),
    ):
        with pytest.raises(ValueError, match=message):
            train(recipe(folder, steps=4, **fields), resume=True)
    assert train(recipe(folder, steps=4), resume=True).finished


def test_trackers(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(recipe(folder, steps=4))
    train(recipe(folder, steps=6), resume=True)
    events = EventAccumulator(str(folder / "run" / "tensorboard"))
    events.Reload()
    log = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    logged = {entry["step"]: entry["eval_loss"] for entry in log if "eval_loss" in entry}
    seen = {event.step: event.value for event in events.Scalars("eval/loss")}
    assert seen == pytest.approx(logged)
    with pytest.raises(ValueError, match="tracker 'wandb' is not installed"):
        train(recipe(folder, track="wandb", output=str(folder / "other")))


def test_one_short_text_is_enough(folder):
    (folder / "song.txt").write_text("ten green bottles hanging on the wall\n" * 60)
    assert train(recipe(folder, corpus=str(folder / "song.txt"))).finished


def test_bad_input_on_the_shell_is_one_sentence_and_exit_code_2(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = typed("train", "--corpus", tmp_path / "missing.txt")
    assert result.returncode == 2
    assert result.stderr.startswith("maclaurin: corpus")
    assert len(result.stderr.splitlines()) == 1
