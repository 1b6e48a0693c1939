"""Compiles what the kept table of Triton kernels lacks, and keeps it: `maclaurin doctor --gpu-compile kept` prints it.

    nice python scripts/keep_gpu_table.py

A row is there or not by its target, kernel, precision, head size and tile. After a kernel has changed, take its rows out
of maclaurin/machine/gpu_compiled.csv first. An interrupted run goes on where it ended.
"""

from maclaurin.machine.gpu_compile import Compiled, compiled
from maclaurin.machine.gpu_table import KEPT, in_order, keep, kept


def main() -> None:
    before = kept() if KEPT.exists() else []
    made: list[Compiled] = []
    for target, case, row in in_order(before):
        if row is None:
            made.append(compiled(case, target))
            print(made[-1], flush=True)
            keep(row for _, _, row in in_order([*before, *made]) if row is not None)
    keep(row for _, _, row in in_order([*before, *made]) if row is not None)


if __name__ == "__main__":
    main()
