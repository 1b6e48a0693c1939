"""What the documents show, runs; commands, which may take hours, are understood by the shell at least."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from maclaurin.cli import app
from maclaurin.commands.lazy import Command
from maclaurin.evals.suites import SUITES

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_examples_run(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"^```python\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE)
    scope = {}
    for example in examples:
        exec(compile(example, document.name, "exec"), scope)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        if not target.startswith("http"):
            assert (document.parent / target).exists(), target


def test_make_targets_of_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^    make (\S+)", (ROOT / "README.md").read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


COMMAND = re.compile(r"^ {4,}(?:\.venv/bin/)?maclaurin( (?:\\\n|.)*)|`maclaurin( [^`]*)`", re.MULTILINE)


def misunderstood(arguments):
    """What the shell has against a command line, down to the point where the command would begin its work."""
    try:
        app([argument for argument in arguments if argument != "…"], standalone_mode=False)
    except typer.TyperException as error:
        return error.format_message()
    name, first = (*arguments, "", "")[:2]
    if (name == "suite" and first not in {*SUITES, "NAME"}) or (name == "eval" and first in SUITES):
        return f"{first!r} is no such name"
    return ""


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_are_understood_by_the_shell(document, monkeypatch):
    """In blocks with all that they need; in sentences a name may stand alone."""
    monkeypatch.setattr(Command, "invoke", lambda command, context: None)
    for block, mentioned in COMMAND.findall(document.read_text()):
        arguments = shlex.split((block or mentioned).replace("\\\n", " "), comments=True)
        why = misunderstood(arguments)
        assert not why or (mentioned and len(arguments) == 1 and "Missing argument" in why), (arguments, why)
