"""The shell, as a user types it."""

import json
import subprocess
import sys

import pytest

import maclaurin


def run(*arguments):
    return subprocess.run([sys.executable, "-m", "maclaurin.cli", *arguments], capture_output=True, text=True)


def test_mixers_lists_every_mixer_with_its_facts():
    result = run("mixers")
    assert result.returncode == 0, result.stderr
    for name in maclaurin.available_mixers():
        assert name in result.stdout
    for word in ("O(T)", "O(T²)", "1k tokens", "8k tokens", "64k tokens", "crossover", "1058", "conv_width=2", "fold_every"):
        assert word in result.stdout


def test_mixers_as_json():
    rows = {row["name"]: row for row in json.loads(run("mixers", "--json").stdout)}
    assert list(rows) == maclaurin.available_mixers()
    assert rows["2mamba"]["crossover"] == 1058
    assert rows["softmax"]["crossover"] is None
    assert rows["softmax"]["state_nbytes"]["8192"] == 2 * 8192 * 1024 * 4 + 8
    assert rows["2mamba"]["state_nbytes"]["8192"] < rows["softmax"]["state_nbytes"]["8192"] / 7


def test_one_mixer_or_a_pattern():
    assert [row["name"] for row in json.loads(run("mixers", "2mamba*", "--json").stdout)] == ["2mamba", "2mamba-e"]
    assert "value_discretization" in run("mixers", "2mamba").stdout


def test_an_unknown_mixer_is_one_sentence_and_exit_code_2():
    result = run("mixers", "2mambo")
    assert result.returncode == 2
    assert result.stderr.startswith("maclaurin: unknown mixer '2mambo', did you mean '2mamba'?")
    assert len(result.stderr.splitlines()) == 1


def test_doctor_reports_versions_devices_backends_and_checks():
    report = json.loads(run("doctor", "--json").stdout)
    assert report["versions"]["maclaurin"] == maclaurin.__version__
    assert "cpu" in report["devices"]
    assert report["backends"]["torch"].startswith("ready")
    assert report["checks"]["forms agree"].startswith("ok")
    assert isinstance(report["missing"], list)
    assert "versions" in run("doctor").stdout


@pytest.mark.parametrize("arguments", [("--help",), ("mixers", "--help"), ("doctor", "--help")])
def test_help(arguments):
    assert run(*arguments).returncode == 0


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
