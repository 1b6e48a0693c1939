"""Tasks by name. A task is a class and the options that make it what its paper describes."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from maclaurin.common.choices import near_miss
from maclaurin.data.tasks.base import Task


@dataclass(frozen=True)
class Entry:
    name: str
    task: type[Task[Any]]
    summary: str
    preset: dict[str, Any]

    def options(self) -> dict[str, Any]:
        """Every option and its default under this name; `inspect.Parameter.empty` where there is none."""
        parameters = inspect.signature(self.task).parameters.values()
        return {parameter.name: self.preset.get(parameter.name, parameter.default) for parameter in parameters}


_entries: dict[str, Entry] = {}


def register(name: str, task: type[Task[Any]], summary: str, **preset: Any) -> None:
    if name in _entries:
        raise ValueError(f"a task named {name!r} is registered already")
    _entries[name] = Entry(name, task, summary, preset)


def available_tasks(pattern: str = "*") -> list[str]:
    """The names of all tasks, or of those that match a pattern such as "niah-*"."""
    return [name for name in _entries if fnmatchcase(name, pattern)]


def task_entry(name: str) -> Entry:
    if name not in _entries:
        raise ValueError(f"unknown task {name!r}{near_miss(name, _entries)}; available: {', '.join(_entries)}")
    return _entries[name]


def task(name: str, **options: Any) -> Task[Any]:
    """A task by name: `task("mqar", length=256, pairs=16)`."""
    entry = task_entry(name)
    known = entry.options()
    for option in options:
        if option not in known:
            raise ValueError(
                f"task {name!r} has no option {option!r}{near_miss(option, known)}; it takes: {', '.join(known)}"
            )
    missing = [option for option, default in known.items() if default is inspect.Parameter.empty and option not in options]
    if missing:
        raise ValueError(f"task {name!r} needs {', '.join(missing)}")
    return entry.task(**{**entry.preset, **options})
