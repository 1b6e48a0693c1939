"""What linear means: every linear mixer must have the same cost per token at 2048 and at 16384 tokens.

Training: forward and backward of one layer on one sequence; beside it a batch of eight short sequences, as many tokens as
the long one, which helps mechanisms with small chunks. Decoding: one more token, after 1024 and after 16384 others. Second
order uses the quadratic form up to a few thousand tokens, because it is faster there; measured is its linear form, and the
time of `form="auto"` beside it. Products: the matrix products that PyTorch does in the step at 2048 tokens, alone, in the
same run; no layer can be faster than they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import maclaurin
from maclaurin.bench.products import products_of, repeat
from maclaurin.common.arguments import one_of
from maclaurin.common.records import Record
from maclaurin.common.timing import interleaved

WIDTH, HEADS = 256, 4
SHORT, LONG = 2048, 16384
CONTEXTS = (1024, 16384)
STEPS = 32
LIMIT = 1.15


@dataclass(frozen=True)
class MixerRow(Record):
    """us: microseconds per token, by shape. decode_ms: of one token, after each of CONTEXTS. Ratios: of long to short.

    products: µs per token of the matrix products of the step at SHORT, alone.
    """

    name: str
    us: Mapping[str, float]
    ratio: float
    decode_ms: Sequence[float]
    decode_ratio: float
    products: float


def run(console: Console, *, long: bool, names: Sequence[str] | None = None) -> list[MixerRow]:
    """names: which mixers, all of finite state unless given."""
    torch.manual_seed(0)
    every = [name for name in maclaurin.available_mixers() if maclaurin.build_mixer(name, WIDTH, HEADS).finite_state]
    for name in names or ():
        one_of("mixer", name, every)
    names = names or every
    table = Table(title=f"one layer of width {WIDTH}, {HEADS} heads: cost per token by length")
    columns = (
        f"µs at {SHORT}",
        f"µs at {LONG}",
        "ratio",
        f"{SHORT} x 8",
        f"{SHORT}, auto",
        "products",
        "decoding ms",
        "ratio",
    )
    for column in ("mixer", *columns):
        table.add_column(column, justify="right")
    rows = []
    for name in track(names, description="mixers", console=console, transient=True):
        row = _measure(name)
        rows.append(row)
        table.add_row(
            name,
            *(f"{row.us[key]:.1f}" for key in ("short", "long")),
            f"{row.ratio:.2f}",
            *(f"{row.us[key]:.1f}" for key in ("batch", "auto")),
            f"{row.products:.1f}",
            " ".join(f"{ms:.2f}" for ms in row.decode_ms),
            f"{row.decode_ratio:.2f}",
        )
    console.print(table)
    above = [row.name for row in rows if max(row.ratio, row.decode_ratio) > LIMIT]
    console.print(f"limit {LIMIT}: {'DOES NOT HOLD for ' + ', '.join(above) if above else 'holds for all'}")
    return rows


def _measure(name: str) -> MixerRow:
    mixer = maclaurin.build_mixer(name, WIDTH, HEADS)

    def train(batch: int, length: int, form: str) -> None:
        x = torch.randn(batch, length, WIDTH, requires_grad=True, dtype=torch.float32, device="cpu")
        y, _ = mixer(x, return_state=False, form=form)
        y.sum().backward()

    shapes = {
        "short": (1, SHORT, "chunked"),
        "long": (1, LONG, "chunked"),
        "batch": (LONG // SHORT, SHORT, "chunked"),
        "auto": (1, SHORT, "auto"),
    }
    runs: dict[str, Callable[[], object]] = {key: partial(train, *shape) for key, shape in shapes.items()}
    products = products_of(partial(train, *shapes["short"]))
    times = interleaved(runs | {"products": partial(repeat, products)}, seconds=4)
    us = {key: 1000 * timing.median / (shapes[key][0] * shapes[key][1]) for key, timing in times.items() if key in shapes}
    decode = interleaved({str(context): _Decoding(mixer, context) for context in CONTEXTS}, seconds=1)
    milliseconds = [decode[str(context)].median / STEPS for context in CONTEXTS]
    ratios = us["long"] / us["short"], milliseconds[1] / milliseconds[0]
    return MixerRow(name, us, ratios[0], milliseconds, ratios[1], 1000 * times["products"].median / SHORT)


class _Decoding:
    """Tokens one by one after `context` others. After 1024, a state that stops growing has its final size."""

    @torch.no_grad()
    def __init__(self, mixer: maclaurin.Mixer, context: int) -> None:
        self.mixer = mixer
        _, self.state = mixer(torch.randn(1, context, WIDTH, dtype=torch.float32, device="cpu"))
        self.token = torch.randn(1, 1, WIDTH, dtype=torch.float32, device="cpu")

    @torch.no_grad()
    def __call__(self) -> None:
        for _ in range(STEPS):
            _, self.state = self.mixer(self.token, self.state)
