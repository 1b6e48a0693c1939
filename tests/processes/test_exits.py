"""A command that needs a package which is not installed says which, and which extra installs it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from maclaurin.processes.exits import EXTRAS, errors_as_sentences

# distributions whose package has another name
IMPORTED_AS = {
    "lm-eval": "lm_eval",
    "pillow": "PIL",
    "prometheus-client": "prometheus_client",
    "pyyaml": "yaml",
    "scikit-learn": "sklearn",
}

COMMANDS = [
    ["train"],
    ["compare"],
    ["generate", "x", "--prompt", "x"],
    ["eval", "x"],
    ["convert", "x", "--output", "y"],
    ["lab", "card", "softmax"],
    ["bench", "limits"],
    ["suite", "recall"],
    ["report", "x"],
    ["lm_eval", "--model", "hf", "--tasks", "x"],
    ["cache"],
]


def test_every_optional_package_has_its_extra():
    """Those of pyproject.toml for users, but for other people's kernels, which the benchmarks do without."""
    extras = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    found = {}
    for extra in ("serve", "hf", "eval", "report"):  # what serve shares with hf is of hf
        names = (re.match(r"[\w-]+", requirement)[0] for requirement in extras[extra])
        found |= {IMPORTED_AS.get(name, name): extra for name in names if name != "maclaurin"}
    assert found == EXTRAS


def test_without_the_extras_every_command_is_one_sentence_and_exit_code_2(tmp_path):
    program = f"""
import contextlib, io, sys
for name in {list(EXTRAS)!r}:
    sys.modules[name] = None
from maclaurin.cli import main
for arguments in {COMMANDS!r}:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            main(arguments)
    except SystemExit as ended:
        print(arguments[0], ended.code, said.getvalue().replace("\\n", "|"))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [arguments[0] for arguments in COMMANDS], result.stdout
    for line in lines:
        assert re.fullmatch(r"\w+ 2 maclaurin: [^|]* pip install 'maclaurin\[(hf|eval|report)\]'\|", line), line


def test_a_library_that_looks_for_another_itself_is_understood(monkeypatch, capsys):
    """As the Trainer does with accelerate, whose absence is no ModuleNotFoundError."""
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(SystemExit, match="2"), errors_as_sentences():
        raise ImportError("Using the `Trainer` requires `accelerate>=1.1`: please run `pip install transformers[torch]`")
    assert capsys.readouterr().err == (
        "maclaurin: this needs accelerate, which is not installed: pip install 'maclaurin[hf]'\n"
    )


@pytest.mark.parametrize("message", ["No module named 'maclaurin.nothing'", "cannot import name 'x' from 'transformers'"])
def test_other_failed_imports_are_bugs_and_show_where(message):
    with pytest.raises(ImportError, match="name"), errors_as_sentences():
        raise ImportError(message)
