"""`make bench`: memory, forms, decoding and training; tables on the screen, figures in results/bench.json."""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path

import torch
from rich.console import Console

from benchmarks import decode, forms, memory, training
from maclaurin.ops import linear_attention, power_attention, reference

PARTS = {"memory": memory.run, "forms": forms.run, "decode": decode.run, "training": training.run}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help=f"which of {', '.join(PARTS)}; all by default")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("results/bench.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    console = Console(width=160, highlight=False)
    _correct_first()
    console.print(
        f"torch {torch.__version__}, Python {platform.python_version()}, {arguments.threads} threads, {platform.machine()}"
    )
    results = {part: PARTS[part](console) for part in arguments.parts or PARTS}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(results, indent=2))
    console.print(f"figures: {arguments.output}")


def _correct_first() -> None:
    """No speed is printed for a result that is wrong."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 300, 2, 16) for _ in range(3))
    log_decay = -torch.rand(1, 300, 2)
    for op, oracle in ((power_attention, reference.power_attention), (linear_attention, reference.linear_attention)):
        q_positive, k_positive = q.abs(), k.abs()
        expected = oracle(*(x.double() for x in (q_positive, k_positive, v, log_decay)))
        y, _ = op(q_positive, k_positive, v, log_decay, form="chunked", chunk_size=64)
        error = float((y - expected).norm() / expected.norm())
        if error > 2e-4:
            raise SystemExit(f"{op.__name__} is wrong here (relative error {error:.1e}): no speed is measured")


if __name__ == "__main__":
    main()
