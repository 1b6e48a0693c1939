"""Sources of the hub: fetched, recognised and converted without a pickle; refused in a sentence, before any weights."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from transformers import AutoTokenizer

from maclaurin.cli import main
from maclaurin.convert.sources import recognise
from tests.hub import serving, use

QUICK = ("--max_length", "16", "--batch_size", "4", "--transfer_steps", "1", "--recover_steps", "1", "--eval_rows", "8")
TEMPLATE = "{{ messages[0].content }}!"


@pytest.fixture
def hub(source, tmp_path):
    """A hub with a llama whose owner also left a pickle, a t5, and a bert of which there is nothing but a pickle."""
    made = {name: shutil.copytree(source("bert"), tmp_path / "hub" / name) for name in ("t5", "pickled", "empty")}
    made["llama"] = shutil.copytree(source("llama"), tmp_path / "hub" / "llama")
    (made["llama"] / "chat_template.jinja").write_text(TEMPLATE)
    for name in ("llama", "pickled"):
        (made[name] / "pytorch_model.bin").write_bytes(b"never to be seen")
    described = json.loads((made["t5"] / "config.json").read_text())
    (made["t5"] / "config.json").write_text(json.dumps(described | {"model_type": "t5"}))
    for name in ("pickled", "empty"):
        (made[name] / "model.safetensors").unlink()
    with serving({f"models/owner/{name}": folder for name, folder in made.items()}) as hub:
        yield hub


@pytest.fixture
def asked_here(hub, monkeypatch, tmp_path):
    use(monkeypatch, hub.address, tmp_path / "cache")
    return hub


def shell(*arguments):
    """The exit code."""
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    return stopped.value.code


def refusal(capsys, *arguments):
    """What the shell says of a bad source: exit code 2, and one line."""
    capsys.readouterr()
    assert shell("convert", *arguments) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and said[0].startswith("maclaurin: source ")
    return said[0]


def test_a_model_is_fetched_and_converted_and_again_when_the_hub_is_gone(hub, corpus, monkeypatch, tmp_path):
    home = tmp_path / "home"
    own = {"HF_ENDPOINT": hub.address, "HF_HOME": str(home), "MACLAURIN_CACHE": str(tmp_path), "NO_PROXY": "127.0.0.1"}
    unset = ("HF_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    environment = {key: value for key, value in os.environ.items() if key not in unset} | own
    command = ["convert", "owner/llama", "--corpus", corpus, "--lengths", "", *QUICK]
    first = [sys.executable, "-m", "maclaurin.cli", *command, "--output", str(tmp_path / "first")]
    done = subprocess.run(first, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    fetched = {name.removeprefix("owner/llama/") for name in hub.asked}
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= fetched
    assert not any(name.endswith(".bin") for name in fetched)
    assert AutoTokenizer.from_pretrained(tmp_path / "first").chat_template == TEMPLATE

    hub.stop()
    use(monkeypatch, hub.address, home / "hub")
    monkeypatch.setenv("MACLAURIN_CACHE", str(tmp_path))
    assert shell(*command, "--output", str(tmp_path / "second")) == 0
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "second")]
    assert weights[0] == weights[1]


def test_of_what_is_not_supported_only_the_description_is_fetched(asked_here):
    with pytest.raises(ValueError, match="is a t5"):
        recognise("owner/t5")
    assert "owner/t5/config.json" in asked_here.asked
    assert not any(name.endswith((".safetensors", ".bin")) for name in asked_here.asked)


def test_pickles_are_seen_and_not_fetched(asked_here, capsys):
    assert "only pickled weights (pytorch_model.bin)" in refusal(capsys, "owner/pickled", "--output", "nowhere")
    assert "has no weights" in refusal(capsys, "owner/empty", "--output", "nowhere")
    assert not any(name.endswith(".bin") for name in asked_here.asked)


def test_a_name_without_a_model_and_a_hub_that_is_gone_are_a_sentence_each(asked_here, capsys):
    assert "'owner/none' is no folder here, and is unknown to the hub" in refusal(
        capsys, "owner/none", "--output", "nowhere"
    )
    assert "cannot be had from the hub: Repo id must" in refusal(capsys, "owner/no ne", "--output", "nowhere")
    asked_here.stop()
    said = refusal(capsys, "owner/llama", "--output", "nowhere")
    assert "cannot be had from the hub: " in said and "Connection refused" in said
