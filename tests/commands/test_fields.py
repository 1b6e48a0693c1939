"""The fields of a dataclass and the arguments of a function as flags: typed, spelled both ways, told apart from defaults."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
import typer

from maclaurin.cli import COMMANDS, Shell, main
from maclaurin.commands.fields import takes
from maclaurin.models.config import SIZES
from maclaurin.training.recipe import FREE_SIZES, Recipe


@dataclass
class Form:
    name: str = field(default="a", metadata={"help": "What it is called."})
    max_steps: int = 10
    rate: float | None = None
    is_tied: bool = True
    sizes: tuple[float, ...] = (1.0, 2.5)


def draw(*names: str, quick: bool = False, max_steps: int = 10, sizes: tuple[int, ...] | None = None) -> None:
    """An experiment."""


@pytest.fixture
def shell(monkeypatch):
    """Runs a command line of two commands, `form` and `draw`; returns what they were given."""
    got: dict[str, Any] = {}

    @takes("given", Form, defaults={"max_steps": 77})
    def form(given: dict[str, Any], extra: Annotated[int, typer.Option(help="Of its own.")] = 3) -> None:
        """Takes a form."""
        got.update(given, extra=extra)

    @takes("given", draw, without=("quick",))
    def drawn(given: dict[str, Any]) -> None:
        got.update(given)

    monkeypatch.setattr(Shell, "lines", {"form": "takes a form", "draw": "draws"})
    monkeypatch.setattr(Shell, "load", staticmethod({"form": form, "draw": drawn}.__getitem__))

    def run(*arguments: str) -> dict[str, Any]:
        got.clear()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
        return dict(got)

    return run


def test_what_is_not_given_is_left_to_others(shell):
    assert shell("form") == {"extra": 3}
    assert shell("form", "--name", "", "--max_steps=0", "--rate", "1e-3", "--extra", "4") == {
        "name": "",
        "max_steps": 0,
        "rate": 1e-3,
        "extra": 4,
    }


def test_a_tuple_is_written_with_commas_and_names_come_first(shell):
    assert shell("form", "--sizes", "1,2.5,")["sizes"] == (1.0, 2.5)
    assert shell("draw", "x", "y", "--sizes", "3") == {"names": ["x", "y"], "sizes": (3,)}


@pytest.mark.parametrize("spelling", ["--max_steps", "--max-steps"])
def test_both_spellings(shell, spelling):
    assert shell("form", spelling, "5")["max_steps"] == shell("form", f"{spelling}=5")["max_steps"] == 5


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--is_tied"], True),
        (["--is-tied"], True),
        (["--is_tied", "yes"], True),
        (["--is_tied=True"], True),
        (["--no_is_tied"], False),
        (["--no-is-tied"], False),
        (["--is_tied", "false"], False),
        (["--is-tied=0"], False),
        (["--is_tied", "--no-is-tied"], False),
    ],
)
def test_booleans_with_and_without_a_value(shell, words, value):
    assert shell("form", *words, "--name", "b") == {"is_tied": value, "name": "b", "extra": 3}


@pytest.mark.parametrize(
    ("words", "pieces"),
    [
        (["form", "--max_step", "5"], ["--max-step", "--max-steps"]),
        (["form", "--colour", "red"], ["--colour"]),
        (["form", "--max_steps", "many"], ["--max_steps", "'many'"]),
        (["form", "--rate=fast"], ["--rate", "'fast'"]),
        (["form", "--is_tied=maybe"], ["--is_tied", "'maybe'"]),
        (["form", "--is_tied", "maybe"], ["--is_tied", "'maybe'"]),
        (["form", "--sizes", "1,b"], ["--sizes", "'1,b'"]),
        (["form", "--rate"], ["--rate"]),
        (["form", "more"], ["more"]),
        (["from"], ["'from'", "'form'"]),
        (["draw", "--quick"], ["--quick"]),
    ],
)
def test_what_cannot_be_read_is_one_sentence(shell, capsys, words, pieces):
    with pytest.raises(SystemExit) as ended:
        main(words)
    error = capsys.readouterr().err
    assert ended.value.code == 2 and len(error.splitlines()) == 1 and error.startswith("maclaurin: ")
    assert all(piece in error for piece in pieces), error


def test_help_says_what_a_field_is_and_its_default(shell, capsys):
    shell("form", "--help")
    text = " ".join(capsys.readouterr().out.split())
    for piece in ("--name <str> What it is called. (default: a)", "--max_steps <int> (default: 77)", "(default: 1.0,2.5)"):
        assert piece in text, text


def test_a_list_of_commands_imports_none_of_them(monkeypatch, capsys):
    monkeypatch.setattr(Shell, "load", staticmethod(pytest.fail))
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    listed = capsys.readouterr().out
    assert all(f"  {name} " in listed for name in COMMANDS)


def test_every_field_of_a_recipe_says_what_it_is():
    about = {entry.name: entry.metadata["help"] for entry in dataclasses.fields(Recipe)}
    assert all(about.values())
    assert all(size in about["size"] for size in SIZES)
    assert all(set(FREE_SIZES) == set(fields) for fields in SIZES.values())
