"""`python -m fuzz`: search for a while, or replay one case."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from fuzz.build import sanitized, sanitizer_environment, sanitizer_runtime
from fuzz.run import Plan, search
from fuzz.targets import KERNELS, TARGETS, matching


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300, help="how long to search")
    parser.add_argument("--cases", type=int, help="instead: so many cases of every target")
    parser.add_argument("--only", action="append", metavar="TARGET", help=f"of {', '.join(TARGETS)}; patterns like file-*")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other cases")
    parser.add_argument("--jobs", type=int, default=2, help="processes that search at the same time")
    parser.add_argument(
        "--sanitize", action="store_true", help="with kernels under AddressSanitizer, and targets that use them"
    )
    parser.add_argument("--replay", metavar="TARGET:NUMBER", help="run this one case here, and show what it raises")
    arguments = parser.parse_args()
    if arguments.replay:
        return replay(arguments.replay)
    try:
        targets = matching(arguments.only or (list(KERNELS) if arguments.sanitize else ["*"]))
    except ValueError as error:
        parser.error(str(error))
    seconds = None if arguments.cases else arguments.seconds
    plan = Plan(targets, seconds, arguments.cases, arguments.seed, arguments.jobs)
    if arguments.sanitize:
        if (runtime := sanitizer_runtime()) is None:
            print("no search with a sanitizer: it needs CMake and a C++ compiler with libasan.so")
            return 0
        plan = replace(plan, worker_options=("--library", str(sanitized())), environment=sanitizer_environment(runtime))
    return report(plan)


def report(plan: Plan) -> int:
    books = search(plan, lambda line: print(line, flush=True))
    print(f"\n{books.table()}\n\n{books.progress()}, seed {plan.seed}")
    for found in books.found.values():
        print(f"\n{found.times} x {found.target}: {found.cause}\n    {found.replay}")
    return 1 if books.found else 0


def replay(case: str) -> int:
    from fuzz.worker import attempt, prepare

    name, _, number = case.partition(":")
    if name not in TARGETS or not number.isdecimal():
        print(f"--replay takes TARGET:NUMBER, as a failure names it, got {case!r}", file=sys.stderr)
        return 2
    prepare(library=None, without=[])
    answer = attempt(name, int(number))
    print(answer.get("end") or f"{answer['cause']}\n{answer['detail']}")
    return 0 if "end" in answer else 1


if __name__ == "__main__":
    sys.exit(main())
