"""Training on a corpus without an end: the first steps come at once, and a run that goes on equals an undisturbed one."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import count

import pytest
import torch
from safetensors.torch import load_file

from maclaurin.data.corpus import HELD_OUT, Corpus, held_out
from maclaurin.evals.text import documents_of
from maclaurin.training import Recipe, train
from maclaurin.training import run as run_module
from maclaurin.training import text as text_module
from maclaurin.training.trainer import LanguageTrainer
from tests.hub import serving, use

SMALL = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "mixer": "linear"}


class Endless(Corpus):
    name, streams = "songs", True

    def documents(self, split):
        for number in count():
            text = f"{number} green bottles hanging on the wall\n"
            if split == "all" or held_out(text) == (split == "held-out"):
                yield text

    def fingerprint(self):
        return "5095" * 16


def recipe(folder, **fields):
    fields = {"length": 32, "batch_size": 2, "steps": 10, "eval_rows": 3, "warmup_steps": 2, "save_every": 2, **fields}
    return Recipe(**{"output": str(folder / "run"), "corpus": "songs", "track": "none", **SMALL, **fields})


@pytest.fixture
def endless(tmp_path, monkeypatch):
    monkeypatch.setenv("MACLAURIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(text_module, "open_corpus", lambda spec, text_field: Endless())
    # blocks of 4 and 8 sequences: ten steps of two go through several, and the cache grows between them
    monkeypatch.setattr("maclaurin.data.streams.FIRST_BLOCK", 4)
    monkeypatch.setattr("maclaurin.data.streams.LARGEST_BLOCK", 8)
    monkeypatch.setattr("maclaurin.data.growing.FIRST_PIECE", 64)
    monkeypatch.setattr("maclaurin.data.growing.LARGEST_PIECE", 64)
    return tmp_path


def dies_at(step):
    class Dies(LanguageTrainer):
        def training_step(self, *args, **kwargs):
            if self.state.global_step == step:
                raise RuntimeError("power cut")
            return super().training_step(*args, **kwargs)

    return Dies


def assert_same_weights(one, other):
    got, expected = (load_file(folder / "model.safetensors") for folder in (one, other))
    assert got.keys() == expected.keys() and all(torch.equal(got[name], expected[name]) for name in expected)


def tokens_in(cache, split):
    (file,) = (cache / "tokens").glob(f"*-{split}-*/tokens.bin")
    return file.stat().st_size // 2


@pytest.mark.parametrize(
    ("cache", "fields"),
    [
        ("kept", {}),
        ("removed", {}),
        ("further", {}),
        ("kept", {"tokens": 300}),
        ("removed", {"rows": "documents"}),
        ("removed", {"tokenizer": "bpe:300"}),
    ],
    ids=str,
)
def test_a_resumed_run_equals_an_undisturbed_one_bit_for_bit(endless, monkeypatch, fields, cache):
    monkeypatch.setattr(text_module, "SAMPLE", 3000)
    assert train(recipe(endless, **fields)).finished
    (endless / "run").rename(endless / "undisturbed")
    shutil.rmtree(endless / "cache")
    monkeypatch.setattr(run_module, "LanguageTrainer", dies_at(5))
    with pytest.raises(RuntimeError, match="power cut"):
        train(recipe(endless, **fields))
    assert not list((endless / "cache" / "tokens").glob("*/meta.json"))  # it was still growing
    monkeypatch.setattr(run_module, "LanguageTrainer", LanguageTrainer)
    if cache == "removed":
        shutil.rmtree(endless / "cache")
    if cache == "further":
        train(recipe(endless, output=str(endless / "longer"), steps=30))
    assert train(recipe(endless, **fields), resume=True).finished
    assert_same_weights(endless / "run", endless / "undisturbed")


def test_a_run_takes_from_an_endless_corpus_what_it_needs(endless):
    train(recipe(endless))
    # 20 sequences of 32 tokens and the rest of their block; a held-out document is one in twenty
    assert 640 <= tokens_in(endless / "cache", "train") < 1200
    assert 3 * 32 <= tokens_in(endless / "cache", "held-out") < 300


def test_more_steps_go_on_in_the_same_order(endless):
    assert train(recipe(endless, steps=6, schedule="constant")).finished
    assert train(recipe(endless, schedule="constant"), resume=True).finished
    (endless / "run").rename(endless / "longer")
    assert train(recipe(endless, schedule="constant")).finished
    assert_same_weights(endless / "run", endless / "longer")


def test_a_run_keeps_the_bound_and_the_order_it_began_with(endless):
    train(recipe(endless, steps=2, tokens=300))
    with pytest.raises(ValueError, match="has tokens 300, the recipe gives 0: it cannot go on"):
        train(recipe(endless), resume=True)


def test_a_run_from_before_corpora_were_streamed_goes_on_with_its_order(endless, monkeypatch):
    """It has the plain fingerprint of its corpus, and reads all of it, shuffled as a whole."""
    rows = [f"{number} green bottles hanging on the wall\n" for number in range(60)]
    monkeypatch.setattr(Endless, "documents", lambda self, split: iter(rows))
    monkeypatch.setattr(Endless, "streams", False)
    train(recipe(endless, steps=6, schedule="constant"))
    shutil.copytree(endless / "run", endless / "old")
    train(recipe(endless, schedule="constant"), resume=True)
    monkeypatch.setattr(Endless, "streams", True)
    train(recipe(endless, schedule="constant", output=str(endless / "old")), resume=True)
    assert_same_weights(endless / "old", endless / "run")


def test_bounds_are_for_local_files_too(folder):
    """The first tokens of the corpus, and no more: a change behind them changes no weight, but it is another corpus."""
    local = {"corpus": str(folder / "text"), "tokens": 320}
    train(recipe(folder, **local))
    (folder / "run").rename(folder / "before")
    with open(folder / "text" / "songs.jsonl", "a") as stream:
        stream.write("\n" + json.dumps({"text": "and one more"}))
    train(recipe(folder, **local))
    assert_same_weights(folder / "run", folder / "before")


def test_a_dataset_of_the_hub_streams_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("MACLAURIN_CACHE", str(tmp_path / "cache"))
    songs = tmp_path / "songs"
    songs.mkdir()
    rows = (json.dumps({"text": f"{number} green bottles hanging on the wall\n"}) for number in range(3000))
    (songs / "data.jsonl").write_text("\n".join(rows))
    with serving({"datasets/owner/songs": songs}) as hub:
        use(monkeypatch, hub.address, tmp_path / "hub")
        train(recipe(tmp_path, corpus="owner/songs"))
        # a block of 256 sequences, of all the 3000 songs
        assert tokens_in(tmp_path / "cache", "train") < 50_000 and not list(tmp_path.glob("cache/tokens/*/meta.json"))
        (tmp_path / "run").rename(tmp_path / "undisturbed")
        monkeypatch.setattr(run_module, "LanguageTrainer", dies_at(5))
        with pytest.raises(RuntimeError, match="power cut"):
            train(recipe(tmp_path, corpus="owner/songs"))
        monkeypatch.setattr(run_module, "LanguageTrainer", LanguageTrainer)
        shutil.rmtree(tmp_path / "cache")
        train(recipe(tmp_path, corpus="owner/songs"), resume=True)
    assert_same_weights(tmp_path / "run", tmp_path / "undisturbed")


def test_a_validation_file_is_all_validated_on_and_nothing_is_held_out(folder):
    (folder / "other.txt").write_text("ten red bottles hanging on the wall\n" * 30)
    fields = {"corpus": str(folder / "text"), "validation": str(folder / "other.txt"), "rows": "documents", "length": 2000}
    train(recipe(folder, **fields, steps=2, batch_size=1))
    (all_of_it,) = (folder / "cache" / "tokens").glob("text-all-*/meta.json")
    assert json.loads(all_of_it.read_text())["documents"] == 150
    (other,) = (folder / "cache" / "tokens").glob("other.txt-all-*/tokens.bin")
    assert other.stat().st_size == 2 * (30 * len("ten red bottles hanging on the wall\n") + 1)
    assert list(documents_of(str(folder / "run"), None)) == [(folder / "other.txt").read_text()]


def test_a_validation_file_may_be_moved_but_not_changed(folder):
    (folder / "other.txt").write_text("ten red bottles\n" * 30)
    fields = {"corpus": str(folder / "text")}
    train(recipe(folder, **fields, validation=str(folder / "other.txt"), steps=2))
    (folder / "other.txt").rename(folder / "moved.txt")
    train(recipe(folder, **fields, validation=str(folder / "moved.txt"), steps=4), resume=True)
    (folder / "moved.txt").write_text("nine red bottles\n" * 30)
    for validation in (str(folder / "moved.txt"), ""):
        with pytest.raises(ValueError, match=r"is not the text that .* has been trained on"):
            train(recipe(folder, **fields, validation=validation, steps=6), resume=True)


def test_a_model_of_an_endless_corpus_is_scored_on_the_first_documents(endless, monkeypatch):
    train(recipe(endless, steps=1))
    monkeypatch.setattr("maclaurin.evals.text.open_corpus", lambda spec, text_field: Endless())
    documents = list(documents_of(str(endless / "run"), None))
    assert len(documents) == 3 and all(map(held_out, documents)) and HELD_OUT < 0.5


def start(folder, *extra):
    fields = {
        "length": 32,
        "batch_size": 2,
        "steps": 150,
        "save_every": 10,
        "eval_every": 150,
        "tokens": 100_000,
        "track": "none",
        **SMALL,
    }
    flags = [f"--{name}={value}" for name, value in {**fields, "output": folder / "run", "corpus": folder / "text"}.items()]
    command = [sys.executable, "-m", "maclaurin.cli", "train", *flags, *extra]
    return subprocess.Popen(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


@pytest.mark.slow
def test_a_run_that_is_killed_in_between_equals_an_undisturbed_one(folder):
    rows = (
        json.dumps({"text": f"{number} green bottles hanging on the wall\n" * (1 + number % 4)}) for number in range(3000)
    )
    (folder / "text" / "songs.jsonl").write_text("\n".join(rows))
    assert start(folder).wait() == 0
    (folder / "run").rename(folder / "undisturbed")
    shutil.rmtree(folder / "cache")
    after = 0
    for extra in ((), ("--resume",)):
        process = start(folder, *extra)
        while process.poll() is None and after >= _last(folder):
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        after = _last(folder)
    assert start(folder, "--resume").wait() == 0
    assert_same_weights(folder / "run", folder / "undisturbed")


def _last(folder):
    return max((int(path.name.split("-")[1]) for path in (folder / "run").glob("checkpoint-*")), default=0)
