"""The proof that the search finds faults: kernels with one line changed and checks taken out, each found within a minute.

`python -m fuzz.mutants` (make fuzz-mutants). A finding counts if the same case is right without the change.
"""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fuzz.build import ROOT, build
from fuzz.run import Plan, search
from fuzz.targets import matching

SECONDS = 60
CALLS = ("ops",)  # where a wrong kernel shows as wrong numbers


@dataclass(frozen=True)
class Kernel:
    """A changed line of csrc/."""

    what: str
    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Check:
    """A check, as module:function, that lets everything pass; and the targets that should find that out."""

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
        "what is read from the recurrent state has not decayed",
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
        "a token does not see what all earlier ones of its block have written",
        "delta_block.h",
        "minus_e.add_product({between + i, 1, ROW}, u + c, shape.v_row, i);",
        "minus_e.add_product({between + i, 1, ROW}, u + c, shape.v_row, smaller(i, ROWS));",
    ),
    Kernel(
        "a step of the delta rule forgets that the state decays",
        "delta_step.h",
        "to[f * V + c] = at.keep[f] * state[f * V + c] + at.key[f] * u[c];",
        "to[f * V + c] = state[f * V + c] + at.key[f] * u[c];",
    ),
    Kernel(
        "keys of the delta rule have no gradient as readers",
        "delta_backward.h",
        "dk[c] = at_.dk_reader[at + c] + at_.dk_writer[at + c] + at_.dk_own[at + c];",
        "dk[c] = at_.dk_writer[at + c] + at_.dk_own[at + c];",
    ),
    Kernel(
        "the constant of a series counts once",
        "attend.h",
        "return score * score + first * first;",
        "return score * score + 0.0f * first;",
    ),
    Kernel(
        "a fold takes its totals from the wrong column of the recurrent state",
        "step_state.h",
        "to[i * W + V] = keep * from[i * W + V] + fold.totals[f + i];",
        "to[i * W + V] = keep * from[i * W] + fold.totals[f + i];",
    ),
    Check("states of other shapes pass", "maclaurin.ops.checks:token_state", ("states",)),
    Check(
        "links that lead out of a model's folder are followed",
        "maclaurin.models.checked:stays_inside",
        ("file-config", "file-weights", "file-index"),
    ),
)


def main() -> int:
    missed = 0
    with tempfile.TemporaryDirectory(prefix="fuzz-mutants-") as folder:
        for number, mutant in enumerate(MUTANTS):
            found = list(search(plan_of(mutant, Path(folder) / str(number)), _silent).found.values())
            missed += not found
            how = f"found after {found[0].seconds:.0f} s: {found[0].cause}" if found else f"NOT found in {SECONDS} s"
            print(f"{mutant.what}: {how}", flush=True)
    return 1 if missed else 0


def plan_of(mutant: Kernel | Check, folder: Path) -> Plan:
    if isinstance(mutant, Check):
        targets, options = mutant.targets, ("--without", checked(mutant))
    else:
        targets, options = CALLS, ("--library", str(compiled(mutant, folder)))
    return Plan(matching(list(targets)), SECONDS, jobs=2, stop_at_first=True, worker_options=options, only_by_options=True)


def checked(mutant: Check) -> str:
    module, function = mutant.function.split(":")
    if not hasattr(importlib.import_module(module), function):
        raise ValueError(f"the mutant {mutant.what!r} takes out {mutant.function}, which is not there any more")
    return mutant.function


def changed(mutant: Kernel) -> str:
    """Its file with the line changed."""
    text = (ROOT / "csrc" / mutant.file).read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(
            f"the mutant {mutant.what!r} changes a line that csrc/{mutant.file} does not have once: {mutant.old}"
        )
    return text.replace(mutant.old, mutant.new)


def compiled(mutant: Kernel, folder: Path) -> Path:
    sources = folder / "csrc"
    shutil.copytree(ROOT / "csrc", sources)
    (sources / mutant.file).write_text(changed(mutant))
    return build(sources, folder, "-DCMAKE_CXX_FLAGS=-w")  # a change may leave variables unused


def _silent(line: str) -> None:
    """A proof prints its verdicts alone."""


if __name__ == "__main__":
    sys.exit(main())
