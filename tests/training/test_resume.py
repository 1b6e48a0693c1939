"""Going on: only from what is whole, only by one process, with the flags that are given; nothing of a user's is removed."""

import json
import os
import pickle
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from maclaurin import cli
from maclaurin.processes.lock import locked
from maclaurin.processes.stopping import Terminated
from maclaurin.training import Recipe, train
from maclaurin.training import run as run_module
from maclaurin.training.checkpoints import IDENTITY, MANIFEST, last_whole, seal
from maclaurin.training.compare import Run, latest, plan
from maclaurin.training.configured import train_recipe
from maclaurin.training.execution import Watch, execute
from maclaurin.training.trainer import LanguageTrainer

SMALL = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "mixer": "linear"}
FILES = ("config.json", "model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")


def recipe(folder, **fields):
    fields = {"length": 32, "batch_size": 2, "steps": 4, "eval_rows": 3, "warmup_steps": 2, "save_every": 2, **fields}
    fields = {"output": str(folder / "run"), "corpus": str(folder / "songs.txt"), "track": "none", **SMALL, **fields}
    return Recipe(**fields)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run of 4 steps with two checkpoints, and what 6 undisturbed steps give."""
    folder = tmp_path_factory.mktemp("begun")
    (folder / "songs.txt").write_text("ten green bottles hanging on the wall\n" * 60)
    train(recipe(folder, steps=6), cache=folder / "cache")
    (folder / "run").rename(folder / "undisturbed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "LanguageTrainer", at_step(4, lambda: os.kill(os.getpid(), signal.SIGINT)))
        train(recipe(folder, steps=6), cache=folder / "cache")
    return folder


@pytest.fixture
def folder(begun, tmp_path, monkeypatch):
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("MACLAURIN_CACHE", str(tmp_path / "empty"))
    return tmp_path


def at_step(step, act):
    class Acts(LanguageTrainer):
        def training_step(self, *args, **kwargs):
            if self.state.global_step + 1 == step:
                act()
            return super().training_step(*args, **kwargs)

    return Acts


def go_on(folder, **fields):
    return train(recipe(folder, **{"steps": 6, **fields}), resume=True, cache=folder / "cache")


def names(folder):
    return sorted(path.name for path in (folder / "run").glob("checkpoint-*"))


def assert_undisturbed(folder):
    got, expected = (load_file(folder / name / "model.safetensors") for name in ("run", "undisturbed"))
    assert all(torch.equal(got[name], expected[name]) for name in expected)


def remove_manifests(folder):
    for step in (2, 4):
        (folder / "run" / f"checkpoint-{step}" / MANIFEST).unlink()


def test_only_what_the_run_has_made_is_removed(folder):
    run = folder / "run"
    for name in ("checkpoint-best", "checkpoint-2-best", "checkpoint-1", "checkpoint-", "checkpoint-02", ".staging"):
        (run / name).mkdir()
        (run / name / "notes.txt").write_text("mine")
    shutil.copytree(run / "checkpoint-2", run / "checkpoint-0")  # renamed by hand
    shutil.copytree(folder / "undisturbed" / "checkpoint-4", run / "checkpoint-3")  # of another run
    mine = {path.relative_to(run): path.read_bytes() for path in run.glob("checkpoint-[013b-]*/*") if path.is_file()}
    go_on(folder, steps=8)
    assert {"checkpoint-6", "checkpoint-8"} <= set(names(folder)) and not {"checkpoint-2", "checkpoint-4"} & set(
        names(folder)
    )
    for name in ("checkpoint-best", "checkpoint-2-best", "checkpoint-1", "checkpoint-", "checkpoint-02", ".staging"):
        assert (run / name / "notes.txt").read_text() == "mine"
    assert mine and all((run / path).read_bytes() == content for path, content in mine.items())


def test_a_folder_in_the_way_of_a_checkpoint_is_kept(folder, capsys):
    (folder / "run" / "checkpoint-6").mkdir()
    (folder / "run" / "checkpoint-6" / "notes.txt").write_text("mine")
    go_on(folder)
    assert_undisturbed(folder)
    (kept,) = (folder / "run").glob("checkpoint-6-kept-*")
    assert (kept / "notes.txt").read_text() == "mine"
    assert "was not made by this run" in capsys.readouterr().err


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("damage", ["missing", "cut"])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_never_gone_on_from(folder, name, damage, sealed, capsys):
    if not sealed:
        remove_manifests(folder)
    file = folder / "run" / "checkpoint-4" / name
    content = file.read_bytes()
    file.unlink()
    if damage == "cut":
        file.write_bytes(content[: len(content) // 2])
    assert last_whole(folder / "run") == folder / "run" / "checkpoint-2"
    assert name.removesuffix(".pth") in capsys.readouterr().err


def test_a_run_goes_on_from_the_last_whole_checkpoint(folder):
    (folder / "run" / "checkpoint-4" / "optimizer.pt").unlink()
    assert go_on(folder).finished
    assert_undisturbed(folder)


def test_without_a_whole_checkpoint_a_run_does_not_go_on(folder):
    for step in (2, 4):
        (folder / "run" / f"checkpoint-{step}" / "optimizer.pt").unlink()
    with pytest.raises(ValueError, match=r"no checkpoint in .* is whole: .*checkpoint-4 lacks optimizer\.pt"):
        go_on(folder)


def test_one_changed_bit_is_noticed(folder):
    file = folder / "run" / "checkpoint-4" / "optimizer.pt"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert last_whole(folder / "run") == folder / "run" / "checkpoint-2"


class RunsCode:
    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return (Path.touch, (self.file,))


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("write", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))])
def test_a_crafted_checkpoint_runs_no_code(folder, name, sealed, write):
    shutil.rmtree(folder / "run" / "checkpoint-2")
    checkpoint = folder / "run" / "checkpoint-4"
    (checkpoint / MANIFEST).unlink()
    write(RunsCode(folder / "ran"), checkpoint / name)
    if sealed:
        seal(checkpoint, json.loads((folder / "run" / IDENTITY).read_text())["run"])
    with pytest.raises(ValueError, match=rf"{name.split('.')[0]}.* cannot be read") as caught:
        go_on(folder)
    assert not (folder / "ran").exists()
    assert len(str(caught.value).splitlines()) == 1


def test_weights_that_are_missing_are_not_drawn_anew(folder):
    checkpoint = folder / "run" / "checkpoint-4"
    (checkpoint / MANIFEST).unlink()
    weights = load_file(checkpoint / "model.safetensors")
    lost = weights.popitem()[0]
    save_file(weights, checkpoint / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=rf"model\.safetensors cannot be read: .*lacks 1 weights, such as {lost}"):
        go_on(folder)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("global_step", "4"),
        ("global_step", 10**400),
        ("global_step", 4.0),
        ("train_batch_size", None),
        ("epoch", [1]),
        ("total_flos", 10**400),
        ("best_model_checkpoint", 7),
        ("log_history", {}),
        ("log_history", [{"eval_loss": "low"}]),
        ("unheard_of", 1),
    ],
)
def test_a_crafted_trainer_state_is_named_by_its_field(folder, field, value):
    shutil.rmtree(folder / "run" / "checkpoint-2")
    checkpoint = folder / "run" / "checkpoint-4"
    (checkpoint / MANIFEST).unlink()
    state = json.loads((checkpoint / "trainer_state.json").read_text()) | {field: value}
    (checkpoint / "trainer_state.json").write_text(json.dumps(state))
    with pytest.raises(ValueError, match=rf"trainer_state\.json (must have|has).*{field}"):
        go_on(folder)


def test_a_run_is_one_process_at_a_time(folder):
    with locked(folder / "run" / "run.lock", "test"):
        with pytest.raises(ValueError, match=rf"in use by process {os.getpid()} on {socket.gethostname()}"):
            go_on(folder)
        with pytest.raises(ValueError, match="in use by process"):
            train(recipe(folder), cache=folder / "cache")
    (folder / "run" / "run.lock").write_text("process 1 on elsewhere, which died\n")
    assert go_on(folder).finished


def test_intervals_given_at_resume_take_effect_and_are_what_is_recorded(folder):
    go_on(folder, steps=8, save_every=1, eval_every=3, keep=3)
    assert names(folder) == ["checkpoint-6", "checkpoint-7", "checkpoint-8"]
    log = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in log if "eval_loss" in entry and entry["step"] > 4] == [6, 8]
    assert (Recipe.load(folder / "run").save_every, Recipe.load(folder / "run").eval_every) == (1, 3)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", 1),
        ("batch_size", 1),
        ("length", 16),
        ("learning_rate", 0.5),
        ("weight_decay", 0.5),
        ("text_field", "body"),
        ("tokenizer", "bpe:300"),
        ("rows", "documents"),
        ("hidden_size", 32),
    ],
)
def test_what_a_run_cannot_change_is_refused_by_name(folder, field, value):
    before = (folder / "run" / "recipe.json").read_text()
    with pytest.raises(ValueError, match=rf"has {field} .* the recipe gives {value!r}: it cannot go on"):
        go_on(folder, **{field: value})
    assert (folder / "run" / "recipe.json").read_text() == before


def test_a_corpus_may_be_moved_but_not_changed(folder):
    moved = folder / "elsewhere.txt"
    (folder / "songs.txt").rename(moved)
    assert go_on(folder, corpus=str(moved), steps=5).finished
    moved.write_text("nine green bottles\n" * 60)
    with pytest.raises(ValueError, match=r"corpus '.*elsewhere\.txt' is not the text that .* has been trained on"):
        go_on(folder, corpus=str(moved))


def test_steps_that_are_taken_cannot_be_taken_back(folder):
    with pytest.raises(ValueError, match=r"steps must be at least the 4 that .* has taken, got 3"):
        go_on(folder, steps=3)


def test_flags_win_over_the_file_and_the_file_over_the_run(folder):
    (folder / "more.yaml").write_text("steps: 9\nkeep: 5\nlearning_rate: 1e-3\n")
    recipe = train_recipe({"output": str(folder / "run"), "keep": 7}, folder / "more.yaml", resume=True)
    assert (recipe.steps, recipe.keep, recipe.hidden_size, recipe.learning_rate) == (9, 7, 16, 1e-3)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_the_run_goes_on_as_if_nothing_had_been(folder, number, monkeypatch):
    before = signal.getsignal(number)
    monkeypatch.setattr(run_module, "LanguageTrainer", at_step(5, lambda: os.kill(os.getpid(), number)))
    result = go_on(folder)
    assert (result.finished, result.steps, result.stopped_by) == (False, 5, number)
    assert "checkpoint-5" in names(folder) and signal.getsignal(number) is before
    monkeypatch.undo()
    assert go_on(folder).finished
    assert_undisturbed(folder)


def test_the_second_signal_ends_at_once(folder, monkeypatch):
    def twice():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(run_module, "LanguageTrainer", at_step(5, twice))
    with pytest.raises(Terminated):
        go_on(folder)
    assert "checkpoint-5" not in names(folder)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_on_the_shell_a_signal_says_how_to_go_on_and_is_the_exit_code(folder, number, code, monkeypatch, capsys):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv("MACLAURIN_CACHE", str(folder / "cache"))
    monkeypatch.setattr(run_module, "LanguageTrainer", at_step(5, lambda: os.kill(os.getpid(), number)))
    try:
        with pytest.raises(SystemExit) as ended:
            cli.main(["train", "--output", str(folder / "run"), "--resume"])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == code and "checkpoint-5" in names(folder)
    assert f"stopped after step 5; go on with: maclaurin train --output {folder / 'run'}" in capsys.readouterr().out


def test_a_disk_that_is_full_is_one_sentence_and_the_last_checkpoint_stays(folder, monkeypatch):
    size = (folder / "run" / "checkpoint-4" / "optimizer.pt").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    fill = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, before[1]))  # noqa: E731
    monkeypatch.setattr(run_module, "LanguageTrainer", at_step(6, fill))
    try:
        with pytest.raises(OSError, match=r"checkpoint-6 could not be written: .*") as caught:
            go_on(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(str(caught.value).splitlines()) == 1
    assert names(folder) == ["checkpoint-2", "checkpoint-4"] and not list((folder / "run").glob(".staging*"))
    monkeypatch.undo()
    assert go_on(folder).finished
    assert_undisturbed(folder)


GARBAGE = {
    "nothing": b"",
    "no UTF-8": b'{"steps": "\xff"}',
    "a list": b"[1]",
    "deep": b"[" * 100_000,
    "a long number": b'{"steps": ' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize(
    "name", ["recipe.json", "run.json", "checkpoint-4/manifest.json", "checkpoint-4/trainer_state.json"]
)
def test_garbage_is_a_sentence_with_the_file(folder, name, content):
    shutil.rmtree(folder / "run" / "checkpoint-2")
    if "state" in name:
        (folder / "run" / "checkpoint-4" / MANIFEST).unlink()
    (folder / "run" / name).write_bytes(content)
    with pytest.raises(ValueError, match=Path(name).name) as caught:
        go_on(folder)
    assert len(str(caught.value).splitlines()) == 1 and len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("steps", "4"),
        ("steps", True),
        ("steps", 10**30),
        ("learning_rate", [1]),
        ("mixer", 5),
        ("gradient_checkpointing", 1),
    ],
)
def test_fields_of_a_recipe_have_their_types(folder, field, value):
    (folder / "run" / "recipe.json").write_text(json.dumps(asdict(recipe(folder)) | {field: value}))
    with pytest.raises(ValueError, match=rf"recipe\.json must have .* as {field}, got"):
        Recipe.load(folder / "run")


@pytest.mark.parametrize("content", [*GARBAGE.values(), b'{"held_out_loss": "low"}', b'{"held_out_loss": 1}'])
def test_a_result_that_is_none_is_a_sentence_with_the_file(folder, content):
    run = Run("linear", 0, recipe(folder), 1)
    run.result_path.write_bytes(content)
    with pytest.raises(ValueError, match=r"result\.json"):
        run.result()


def test_a_result_of_another_recipe_is_no_result_of_this_one(folder):
    result = {"held_out_loss": 1.0, "peak_bytes": 1, "seconds": 1.0, "tokens_per_second": None}
    run = Run("linear", 0, recipe(folder, steps=6, save_every=1), 1)
    run.result_path.write_text(json.dumps(result))
    assert run.result() == result
    with pytest.raises(ValueError, match="holds a result with steps 6, not 9: give another output"):
        Run("linear", 0, recipe(folder, steps=9), 1).result()


def test_lines_of_a_log_that_are_none_are_passed_over(folder):
    with open(folder / "run" / "log.jsonl", "ab") as stream:
        stream.write(b"\n".join([*GARBAGE.values(), b'{"eval_loss": 7', b'"step"', b"null"]))
    assert isinstance(latest(folder / "run")["eval_loss"], float)
    assert go_on(folder).finished
    lines = (folder / "run" / "log.jsonl").read_text().splitlines()
    assert all(isinstance(json.loads(line)["step"], int) for line in lines)


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "x0: &x0 {steps: 1}\n" + "".join(f"x{i + 1}: &x{i + 1} {{<<: [{', '.join([f'*x{i}'] * 9)}]}}\n" for i in range(9))


@pytest.mark.parametrize(
    "text",
    [
        "steps: [1]",
        "steps: yes",
        "steps: many",
        "learning_rate: fast",
        "learning_rate: .inf",
        "mixer: 5",
        "- steps",
        "steps",
        "nothing: 1",
        "? [a]\n: 1",
        "steps: !!python/object/apply:os.system ['touch ran']",
        "steps: {",
        "[" * 20_000,
        "steps: " + "9" * 5000,
        "steps: \0",
        "mixer: " + "x" * 2**20,
        BOMB,
        MERGES,
    ],
    ids=range(18),
)
def test_a_bad_config_is_one_short_sentence(tmp_path, text):
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"^config '.*run\.yaml'") as caught:
        train_recipe({}, tmp_path / "run.yaml")
    assert len(str(caught.value).splitlines()) == 1 and len(str(caught.value)) < 1000


def child_of(run):
    text = (Path(run) / "run.lock").read_text() if (Path(run) / "run.lock").exists() else ""
    return int(text.split()[1]) if text else None


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_stopped_comparison_has_its_run_saved(folder, monkeypatch):
    monkeypatch.setenv("MACLAURIN_CACHE", str(folder / "cache"))
    (run,) = plan(recipe(folder, output=str(folder / "compare"), steps=100_000), ["linear"], 1)
    output = Path(run.recipe.output)

    class Stopping(Watch):
        def update(self, run, figures):
            if list(output.glob("checkpoint-*")):
                raise Terminated

    with pytest.raises(Terminated):
        execute([run], Stopping())
    assert "stopped after step" in (output / "output.txt").read_text()
    assert last_whole(output) is not None and not is_running(child_of(output))


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_a_killed_comparison_takes_its_run_with_it(folder, monkeypatch):
    monkeypatch.setenv("MACLAURIN_CACHE", str(folder / "cache"))
    fields = asdict(recipe(folder, output=str(folder / "compare"), steps=100_000)) | {"mixer": "softmax"}
    flags = [f"--{name}={value}" for name, value in fields.items()]
    command = [sys.executable, "-m", "maclaurin.cli", "compare", "--mixers=linear", "--seeds=1", "--no_recall", *flags]
    comparison = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    output = folder / "compare" / "linear-seed0"
    try:
        while not list(output.glob("checkpoint-*")) and comparison.poll() is None:
            time.sleep(0.1)
    finally:
        comparison.kill()
        comparison.wait()
    child = child_of(output)
    deadline = time.monotonic() + 20
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not is_running(child)
