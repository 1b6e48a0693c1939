"""Groups of commands that are listed with one line each and imported when they are used."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

YES = {"yes", "true", "t", "y", "1"}
NO = {"no", "false", "f", "n", "0"}
# --batch_size and --batch-size are one flag, everywhere
BOTH_SPELLINGS: dict[str, Any] = {"token_normalize_func": lambda name: name.replace("_", "-")}

ALONE = "last"  # the value of a flag that may stand alone, where it does

# help in columns cuts long flags off where the terminal is narrow
PLAIN: dict[str, Any] = {"add_completion": False, "rich_markup_mode": None}


class LazyGroup(TyperGroup):
    """Listing the commands imports none of them."""

    lines: ClassVar[Mapping[str, str]]  # what each does, in a line

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: TyperCommand(name, short_help=line) for name, line in self.lines.items()}

    @staticmethod
    def load(name: str) -> Callable[..., Any] | typer.Typer:
        """The function of a command, or a group of its own."""
        raise NotImplementedError

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else command_of(self.load(name), name), rest


class Command(TyperCommand):
    """Flags that are true or false take a value too: `--tied`, `--no-tied` and `--tied false`. Those whose metavar stands in
    brackets may do without one: `--resume` and `--resume auto`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        may_stand_alone = {name for option in self.params if (option.metavar or "").startswith("[") for name in option.opts}
        args = list(_with_values(args, may_stand_alone))
        flags = {_dashed(name) for option in self.params if option.secondary_opts for name in option.opts}
        words = any(option.param_type_name == "argument" for option in self.params)
        return super().parse_args(ctx, list(_as_flags(args, flags, words)))


def command_of(made: Callable[..., Any] | typer.Typer, name: str) -> Any:
    """The command that typer makes of a function, which may have `context_settings` of its own."""
    if isinstance(made, typer.Typer):
        return get_command(made)
    app = typer.Typer(**PLAIN)
    app.command(name, cls=Command, context_settings=getattr(made, "context_settings", None))(made)
    return get_command(app)


def _with_values(args: Sequence[str], alone: Collection[str]) -> Iterator[str]:
    for word, following in zip(args, [*args, "-"][1:], strict=True):
        yield word
        if word in alone and following.startswith("-"):
            yield ALONE


def _as_flags(args: Sequence[str], flags: Collection[str], words: bool) -> Iterator[str]:
    """`--flag true`, `--flag=true` -> `--flag`; `--flag false` -> `--no-flag`, for those that can be either.

    words: whether the command takes words of its own. If not, one behind a flag is meant as its value.
    """
    rest = list(args)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if not name.startswith("--") or _dashed(name) not in flags:
            yield name + equals + value
            continue
        if not equals and rest and (rest[0].lower() in YES | NO or not (words or rest[0].startswith("-"))):
            equals, value = "=", rest.pop(0)
        if equals and value.lower() not in YES | NO:
            raise ValueError(f"{name} must be true or false, got {value!r}")
        yield name if value.lower() not in NO else f"--no-{name.removeprefix('--')}"


def _dashed(name: str) -> str:
    return name.replace("_", "-")
