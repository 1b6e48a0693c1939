"""The proof that the search finds faults: kernels with one line changed and checks taken out, each found within a minute.

`python -m fuzz.mutants` (make fuzz-mutants). A finding counts if the same case is right without the change.
"""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from fuzz.build import ROOT, build
from fuzz.run import Found, Plan, Worker, search
from fuzz.targets import KERNELS, matching

SECONDS = 60


@dataclass(frozen=True)
class Kernel:
    """A line of csrc/ that says something else."""

    what: str
    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Check:
    """A check, as module:function, that lets everything pass; and the targets that should miss it."""

    what: str
    function: str
    targets: tuple[str, ...]


MUTANTS: tuple[Kernel | Check, ...] = (
    Kernel(
        "the last key of a block is left out",
        "quadratic_forward.h",
        "met = smaller(keys, position + i + count - begin);",
        "met = smaller(keys, position + i + count - begin - 1);",
    ),
    Kernel(
        "what is read from the memory has not decayed",
        "chunked_forward.h",
        "const float times = silent[i] ? 0 : from_start[i];",
        "const float times = silent[i] ? 0 : 1;",
    ),
    Kernel(
        "grouped heads read the keys of another head",
        "quadratic_forward.h",
        "const int64_t g = h / (call.H / call.G), queries",
        "const int64_t g = h % call.G, queries",
    ),
    Kernel(
        "the last channel beside whole vectors is not written",
        "conv.h",
        "for (int64_t c = whole; c < call.C; ++c) {",
        "for (int64_t c = whole; c + 1 < call.C; ++c) {",
    ),
    Kernel(
        "a fold takes its totals from the wrong column of the memory",
        "step_memory.h",
        "to[f * W + V] = keep * from[f * W + V] + sum(total);",
        "to[f * W + V] = keep * from[f * W] + sum(total);",
    ),
    Check("states of other shapes pass", "maclaurin.ops.checks:token_state", ("states",)),
    Check(
        "a checkpoint of another model is resumed",
        "maclaurin.training.run:_check_same_model",
        ("file-recipe", "file-checkpoint"),
    ),
)


def main() -> int:
    missed = 0
    with tempfile.TemporaryDirectory(prefix="fuzz-mutants-") as folder:
        for number, mutant in enumerate(MUTANTS):
            found = hunt(plan_of(mutant, Path(folder) / str(number)))
            missed += found is None
            how = f"NOT found in {SECONDS} s" if found is None else f"found after {found.seconds:.0f} s: {found.cause}"
            print(f"{mutant.what}: {how}", flush=True)
    return 1 if missed else 0


def hunt(plan: Plan) -> Found | None:
    """The first failure of a case that is right without the change; None after a minute."""
    unchanged = Worker(replace(plan, worker_options=()))
    spent = 0.0
    try:
        while spent < SECONDS:
            books = search(replace(plan, seconds=SECONDS - spent), _silent)
            for key, found in books.found.items():
                found.seconds += spent
                if key not in plan.known and "end" in unchanged.run(found.target, found.number):
                    return found
            # other cases: these fail without the change too
            plan = replace(plan, seed=plan.seed + 1, known=plan.known | books.found.keys())
            spent += books.seconds
            if not unchanged.alive:
                unchanged.close()
                unchanged = Worker(replace(plan, worker_options=()))
    finally:
        unchanged.close()
    return None


def plan_of(mutant: Kernel | Check, folder: Path) -> Plan:
    if isinstance(mutant, Check):
        module, function = mutant.function.split(":")
        if not hasattr(importlib.import_module(module), function):
            raise ValueError(f"the mutant {mutant.what!r} takes out {mutant.function}, which is not there any more")
        return Plan(
            matching(list(mutant.targets)),
            SECONDS,
            jobs=2,
            stop_at_first=True,
            worker_options=("--without", mutant.function),
        )
    sources = folder / "csrc"
    shutil.copytree(ROOT / "csrc", sources)
    path = sources / mutant.file
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(
            f"the mutant {mutant.what!r} changes a line that csrc/{mutant.file} does not have once: {mutant.old}"
        )
    path.write_text(text.replace(mutant.old, mutant.new))
    library = build(sources, folder, "-DCMAKE_CXX_FLAGS=-w")  # what is unused now is no news
    return Plan(matching(list(KERNELS)), SECONDS, jobs=2, stop_at_first=True, worker_options=("--library", str(library)))


def _silent(line: str) -> None:
    """A proof prints its verdicts alone."""


if __name__ == "__main__":
    sys.exit(main())
