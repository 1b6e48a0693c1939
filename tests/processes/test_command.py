"""The command that is printed is one that can be typed."""

import sys
from importlib.machinery import ModuleSpec

import pytest

from maclaurin.processes import command
from maclaurin.processes.command import command_line


def test_it_is_found_by_its_path_where_the_shell_does_not_find_it(tmp_path, monkeypatch):
    program = tmp_path / ".venv" / "bin" / "maclaurin"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(program), "compare", "--output", "my runs"])
    monkeypatch.setattr(command.shutil, "which", lambda name: None)
    assert command_line() == ".venv/bin/maclaurin compare --output 'my runs'"
    monkeypatch.setattr(command.shutil, "which", lambda name: str(program))
    assert command_line(["train", "--resume"]) == "maclaurin train --resume"


@pytest.mark.parametrize("name", ["maclaurin.cli", "maclaurin.__main__"])
def test_as_a_module_it_is_one_again(monkeypatch, name):
    monkeypatch.setattr(sys, "argv", ["/somewhere/maclaurin/file.py", "lab", "all"])
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec(name, None))
    assert command_line() == f"{sys.executable} -m {name.removesuffix('.__main__')} lab all"
