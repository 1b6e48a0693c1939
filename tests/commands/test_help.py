"""Help costs no library: neither PyTorch nor transformers is imported for it, and no command takes 0.7 s of CPU time."""

import inspect
import json
import resource
import subprocess
import sys

import pytest

from maclaurin import lab
from maclaurin.cli import COMMANDS
from maclaurin.commands.declared import declared
from maclaurin.lab import EXPERIMENTS, HELPERS, run
from maclaurin.models.linearised.students import NAMES
from maclaurin.training.conversion import SOFTMAX, STUDENTS

HEAVY = ("torch", "transformers", "numpy", "plotly", "datasets", "huggingface_hub", "scipy", "pandas", "triton")
LINES = [
    ["--help"],
    ["--version"],
    *([name, "--help"] for name in COMMANDS),
    ["lab"],
    *(["lab", name, "--help"] for name in (*EXPERIMENTS, "all", "card")),
]
MOST = 0.7  # seconds of CPU


def test_help_imports_nothing_heavy():
    """All in one process, so that what is found first is the line that imported it."""
    code = f"""
import contextlib, io, json, sys
from maclaurin.cli import main
found = {{}}
for line in {LINES!r}:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main(line)
    found[" ".join(line)] = [sorted(set({HEAVY!r}) & set(sys.modules)), said.getvalue()]
print(json.dumps(found))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    for line, (imported, said) in json.loads(result.stdout).items():
        assert not imported, line
        assert said.strip(), line
        assert line == "--version" or "Usage: maclaurin" in said, line


def cpu(*line):
    """Seconds of CPU time of a process of its own, the least of three: other work on the machine adds to it."""
    least = float("inf")
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "maclaurin", *line], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        least = min(least, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        if least < MOST:
            break
    return least


@pytest.mark.parametrize("line", [["train"], ["convert"], ["lab", "separation"], ["lm_eval"]], ids=" ".join)
def test_help_takes_less_than_0_7_seconds_of_cpu(line):
    """Of those that once imported the most; the others are bounded by what they import."""
    assert cpu(*line, "--help") < MOST


@pytest.mark.parametrize("name", [*EXPERIMENTS, "card"])
def test_what_is_declared_is_what_runs(name):
    """Names, types and defaults read from the source are those of the function."""
    own = name.replace("-", "_")
    function = lab.card if name == "card" else run.function_of(name)
    read = declared(HELPERS.get(name, f"maclaurin.lab.experiments.{own}"), own)
    shown = inspect.signature(function)
    assert inspect.signature(read) == shown.replace(return_annotation=inspect.Signature.empty)
    assert inspect.getdoc(read) == inspect.getdoc(function)


def test_students_of_a_conversion_are_those_that_can_be_built():
    assert (*STUDENTS, "sliding-window", SOFTMAX) == NAMES
