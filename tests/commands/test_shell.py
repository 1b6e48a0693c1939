"""The shell beside its commands: version, `python -m`, completion, and JSON with nothing else on standard output."""

import json
import os
import subprocess
import sys

import pytest

import maclaurin
from maclaurin.cli import main


def shell(capsys, *arguments, code=0):
    """What it prints, on standard output and on standard error."""
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, arguments)))
    said = capsys.readouterr()
    assert ended.value.code == code, said.err
    return said.out, said.err


def in_a_shell(*arguments, **environment):
    command = [sys.executable, "-m", "maclaurin", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


def test_version_and_module():
    result = in_a_shell("--version")
    assert (result.returncode, result.stdout) == (0, f"{maclaurin.__version__}\n")


def completed(words, shell="bash"):
    environment = {"_MACLAURIN_COMPLETE": f"complete_{shell}", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    return in_a_shell(**environment).stdout.split()


def test_commands_experiments_and_flags_are_completed_without_pytorch():
    assert completed("maclaurin rep") == ["reproduce", "report"]
    assert completed("maclaurin lab lo") == ["long-prompt", "locality"]
    assert "--learning_rate" in completed("maclaurin train --le")
    script = in_a_shell("--show-completion", "bash").stdout
    assert "_MACLAURIN_COMPLETE=complete_bash" in script


@pytest.mark.parametrize("shell_name", ["bash", "zsh", "fish"])
def test_completion_is_installed_for_the_shell(shell_name, tmp_path):
    result = in_a_shell("--install-completion", shell_name, HOME=str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert any(path.is_file() and "maclaurin" in path.read_text() for path in tmp_path.rglob("*"))


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.setenv("MACLAURIN_CACHE", str(tmp_path / "cache"))
    rows = (json.dumps({"text": f"{i} green bottles hanging on the wall\n" * 4}) for i in range(150))
    (tmp_path / "songs.jsonl").write_text("\n".join(rows))
    return tmp_path / "songs.jsonl"


def test_json_of_train_compare_and_report_is_all_of_standard_output(corpus, tmp_path, capsys):
    """In the words of transformers, with a mixer that has options, and an optimizer that is none of the recipe's fields."""
    flags = ["--max_steps", 2, "--length", 32, "--per_device_train_batch_size", 2, "--eval_rows", 4, "--corpus", corpus]
    flags += ["--optim", "sgd", "--lr", 1e-3, "--max_grad_norm", 0.5, "--lr_scheduler_type", "linear", "--json"]
    out, _ = shell(
        capsys, "train", *flags, "--output_dir", tmp_path / "run", "--track", "none", "--mixer", "gla:conv_width=2"
    )
    result = json.loads(out)
    assert (result["output"], result["steps"], result["finished"]) == (str(tmp_path / "run"), 2, True)
    assert result["held_out_loss"] < 6

    mixers = "linear,gla:conv_width=2"
    flags += ["--no_recall", "--seeds", 1]
    out, _ = shell(capsys, "compare", "--mixers", mixers, *flags, "--output_dir", tmp_path / "compared")
    compared = json.loads(out)
    assert compared == json.loads((tmp_path / "compared" / "compare.json").read_text())
    assert {row["name"] for row in compared["rows"]} == {"linear", "gla:conv_width=2"}
    stored = json.loads((tmp_path / "compared" / "gla,conv_width=2-seed0" / "recipe.json").read_text())
    assert (stored["trainer"], stored["clip"], stored["schedule"]) == ({"optim": "sgd"}, 0.5, "linear")

    out, _ = shell(capsys, "report", tmp_path / "compared", "--no-measure", "--json")
    report = json.loads(out)
    assert report["page"] == str(tmp_path / "compared" / "report.html") and report["figures"] == []
    assert [row["name"] for row in report["rows"]] == [row["name"] for row in compared["rows"]]


def test_json_of_bench(tmp_path, monkeypatch, capsys):
    from maclaurin import bench
    from maclaurin.bench.results import Results, Setting

    def run(parts, *, threads, long, console, options):
        console.print("something to read")
        return Results(Setting(torch="2", python="3", threads=threads, cpu="one", native=None, load=0.0))

    monkeypatch.setattr(bench, "run", run)
    out, err = shell(capsys, "bench", "limits", "--json", "--output", tmp_path)
    assert json.loads(out) == json.loads((tmp_path / "bench.json").read_text())
    assert "something to read" in err and "bench.html" in err


@pytest.mark.parametrize("name", ["train", "compare", "suite", "generate", "report", "bench", "eval", "convert"])
def test_no_flag_is_abbreviated_or_ignored(name, capsys):
    words = {"suite": ["track"], "generate": ["x"], "report": ["x"]}.get(name, [])
    for flag in ("--outpu", "--jso", "--nothing"):
        _, err = shell(capsys, name, *words, flag, "x", code=2)
        assert f"No such option: {flag}" in err and len(err.splitlines()) == 1
