"""The shell, as a user types it."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from rich.console import Console

import maclaurin
from maclaurin.cli import COMMANDS, main
from maclaurin.commands import mixers as commands
from maclaurin.common.sizes import size_text
from maclaurin.data import open_tokenizer
from maclaurin.mixers.overview import overview
from tests.shell import in_a_process, typed


def refused(*arguments, text="", run=typed):
    """The one sentence of a bad input."""
    result = typed(*arguments, text=text)
    assert result.returncode == 2, result.stderr
    assert len(result.stderr.splitlines()) == 1, result.stderr
    return result.stderr.removeprefix("maclaurin: ")


def test_mixers_lists_every_mixer_with_its_facts():
    result = typed("mixers")
    assert result.returncode == 0, result.stderr
    for name in maclaurin.available_mixers():
        assert name in result.stdout
    for word in ("O(T)", "O(T²)", "1k, 8k, 64k", "after so many tokens", "crossover", "1058", "conv_width=2", "fold_every"):
        assert word in result.stdout


def test_mixers_has_whole_names_and_sizes_on_a_terminal_of_80_columns(monkeypatch, capsys):
    monkeypatch.setattr(commands, "screen", lambda: Console(width=80))
    with pytest.raises(SystemExit, match="0"):
        main(["mixers"])
    table = capsys.readouterr().out.split("after so many tokens")[0]
    assert "…" not in table
    for row in overview("*", 1024, 16, (1024,)):
        assert f"\n{row['name']} " in table and size_text(row["state_nbytes"]["1024"]) in table


def test_mixers_as_json():
    rows = {row["name"]: row for row in json.loads(typed("mixers", "--json").stdout)}
    assert list(rows) == maclaurin.available_mixers()
    assert rows["2mamba"]["crossover"] == 1058
    assert rows["softmax"]["crossover"] is None
    assert rows["softmax"]["state_nbytes"]["8192"] == 2 * 8192 * 1024 * 4 + 8
    assert rows["2mamba"]["state_nbytes"]["8192"] < rows["softmax"]["state_nbytes"]["8192"] / 7


def test_one_mixer_or_a_pattern():
    assert [row["name"] for row in json.loads(typed("mixers", "2mamba*", "--json").stdout)] == [
        "2mamba",
        "2mamba-gated",
        "2mamba-orders",
        "2mamba-e",
        "2mamba-delta",
    ]


def test_mixers_explains_a_row_of_the_thesis():
    (row,) = overview("paper-2/Mamba-2S", 64, 4, (1024,))
    (mixer,) = overview("mamba2s", 64, 4, (1024,))
    assert row["name"] == "paper-2/Mamba-2S" and row["state_nbytes"] == mixer["state_nbytes"]
    assert row["options"]["value_discretization"] == "dt" and row["options"]["norm"] == "output"


def test_mixers_explains_one():
    (row,) = json.loads(typed("mixers", "2mamba", "--d-model", "64", "--num-heads", "4", "--json").stdout)
    assert "w_ts" in row["maths"] and row["bidirectional"]
    assert row["state"]["attention.recurrent"] == [4, 136, 17]
    cost = row["multiply_adds"]
    assert cost["1024"]["decoding"] == pytest.approx(cost["4096"]["decoding"], rel=0.1)
    printed = typed("mixers", "2mamba", "--d-model", "64", "--num-heads", "4").stdout
    for part in ("value_discretization", "maths", "state after 4096 tokens", "attention.recurrent 4 x 136 x 17", "decoding"):
        assert part in printed


def test_an_unknown_mixer_is_one_sentence_and_exit_code_2():
    assert refused("mixers", "2mambo").startswith("unknown mixer '2mambo' (did you mean '2mamba'?); available: ")


def test_doctor_reports_versions_devices_backends_and_checks():
    report = json.loads(typed("doctor", "--json").stdout)
    assert report["versions"]["maclaurin"] == maclaurin.__version__
    assert "cpu" in report["devices"]
    assert report["backends"]["torch"].startswith("ready")
    assert report["checks"]["torch backend in float64"].startswith("ok")
    assert isinstance(report["missing"], list)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does(name, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    assert f"maclaurin {name}" in capsys.readouterr().out


def test_without_a_command_there_is_a_list_and_exit_code_2(capsys):
    with pytest.raises(SystemExit, match="2"):
        main([])
    listed = capsys.readouterr().out
    assert all(f"  {name} " in listed for name in COMMANDS)


def test_generate_from_a_prompt_a_file_or_standard_input(trained, tmp_path):
    (tmp_path / "prompt.txt").write_text("9 green")
    flags = ("generate", trained, "--max_new_tokens", 8, "--temperature", 0)
    by_prompt, by_file, by_input = (
        typed(*flags, "--prompt", "9 green"),
        typed(*flags, "--file", tmp_path / "prompt.txt"),
        in_a_process(*flags, text="9 green"),
    )
    assert by_prompt.returncode == 0, by_prompt.stderr
    assert by_prompt.stdout.startswith("9 green")
    assert by_prompt.stdout == by_file.stdout == by_input.stdout
    for words in ("7 tokens read in", "8 written at", "tokens/s", "state "):
        assert words in by_prompt.stderr
    figures = json.loads(typed(*flags, "--prompt", "9 green", "--json").stdout)
    assert "9 green" + figures["text"] + "\n" == by_prompt.stdout


def test_eval_of_a_file_of_standard_input_and_of_its_own_held_out_text(trained, tmp_path):
    (tmp_path / "text.md").write_text("3 green bottles hanging on the wall")
    by_file = json.loads(typed("eval", trained, tmp_path / "text.md", "--json").stdout)
    by_input = json.loads(typed("eval", trained, "-", "--json", text="3 green bottles hanging on the wall").stdout)
    texts = [by_file.pop("text"), by_input.pop("text")]
    assert texts == [f"all of {tmp_path / 'text.md'}", "standard input"] and by_file == by_input
    assert (by_file["tokens"], by_file["bytes"], by_file["documents"]) == (34, 35, 1)
    result = typed("eval", trained)
    corpus = json.loads((trained / "recipe.json").read_text())["corpus"]
    scored = f"scored: the validation part of {corpus}, the corpus of its training\n"
    for words in (scored, "nats per token, perplexity", "bits per byte"):
        assert words in result.stdout, result.stderr


def test_models_that_cannot_be_opened(trained, tmp_path):
    assert refused("eval", tmp_path / "nothing", run=in_a_process).startswith("model ")  # and no library warns
    assert "has no config.json" in refused("generate", tmp_path, "--prompt", "x")
    other = tmp_path / "other"
    shutil.copytree(trained, other, ignore=shutil.ignore_patterns("checkpoint-*"))

    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "mixer": "softmax"}))
    assert "does not fit this configuration" in refused("eval", other)

    (other / "config.json").write_text(json.dumps({**config, "vocab_size": 200}))
    assert "does not fit this configuration" in refused("eval", other)
    (other / "config.json").write_text(json.dumps(config))

    tokenizer = open_tokenizer("bpe:300", ["green bottles hanging on the wall"] * 2)
    tokenizer.add_tokens([f"<{i}>" for i in range(100)])
    tokenizer.save_pretrained(other)
    assert "more than the 257 of the model" in refused("eval", other)

    (other / "model.safetensors").write_bytes(b"\0" * 100)
    assert "model.safetensors" in refused("eval", other)


def test_texts_that_cannot_be_read(trained, tmp_path):
    assert "'missing.txt' is no file or folder" in refused("eval", trained, "missing.txt")
    assert "missing.txt" in refused("generate", trained, "--file", tmp_path / "missing.txt")
    (tmp_path / "empty.txt").write_text("")
    assert "the text is too short" in refused("eval", trained, tmp_path / "empty.txt")
    assert "the prompt is empty" in refused("generate", trained, text="")
    assert "not both" in refused("generate", trained, "--prompt", "x", "--file", tmp_path / "empty.txt")
    assert "holds no text" in refused("train", "--corpus", tmp_path / "empty.txt", "--output", tmp_path / "run")
    (tmp_path / "binary").write_bytes(b"\0\1\2")
    assert "is no text" in refused("eval", trained, tmp_path / "binary")


def test_the_core_needs_pytorch_alone():
    """Importing and running ops and mixers touches none of the libraries that only some users have."""
    blocked = (
        "numpy",
        "transformers",
        "triton",
        "rich",
        "typer",
        "safetensors",
        "einops",
        "wandb",
        "torchvision",
        "datasets",
        "plotly",
    )
    program = (
        "import torch, sys\n"
        f"for name in {blocked!r}: sys.modules.setdefault(name, None)\n"
        "import maclaurin\n"
        "mixer = maclaurin.build_mixer('2mamba', 32, 4)\n"
        "y, state = mixer(torch.randn(1, 5, 32))\n"
        "assert y.shape == (1, 5, 32)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_bfloat16_works_or_is_refused_whatever_is_imported_first():
    """On a machine that forbids AMX the process would die of an illegal instruction."""
    environment = {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"}
    step = "maclaurin.build_mixer('softmax', 32, 4).bfloat16()(torch.randn(1, 64, 32).bfloat16())"
    for imports in ("import maclaurin, torch", "import torch, maclaurin"):
        command = [sys.executable, "-c", f"{imports}\n{step}"]
        result = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert result.returncode == 0 or "ValueError: a bfloat16 matrix product on this CPU" in result.stderr, result
        assert result.returncode == 0 or imports.startswith("import torch")


def test_lab_lists_runs_and_is_found_by_the_report(tmp_path):
    listed = typed("lab").stdout
    assert "separation" in listed and "card" in listed
    ran = typed(
        "lab", "--quick", "rotation", "--seed", "1", "--json", "--output", str(tmp_path)
    )  # on either side of the name
    assert ran.returncode == 0, ran.stderr
    (result,) = json.loads(ran.stdout)
    assert result["name"] == "rotation" and result["settings"]["seed"] == 1 and result["claims"]
    assert typed("report", str(tmp_path), "--no-measure").returncode == 0
    assert (tmp_path / "report.html").read_text().count("rotation") > 1


def test_bad_lab_is_one_sentence():
    assert "nothing" in refused("lab", "nothing")
    assert "'--m': Input should be a valid integer" in refused("lab", "separation", "--m", "x")
    assert "--colour" in refused("lab", "separation", "--colour", "red")
    assert "at least one mixer" in refused("lab", "card")
    assert "'nobody' is neither a mixer" in refused("lab", "card", "nobody")


def test_the_names_of_the_package_are_there():
    for name in maclaurin.__all__:
        assert name in dir(maclaurin)
        assert getattr(maclaurin, name) is not None
    with pytest.raises(AttributeError, match="build_mixers"):
        _ = maclaurin.build_mixers
