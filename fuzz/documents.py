"""Documents of any length, handed to a causal op or mixer in pieces: padded, packed or dense, with the state in between.

However that is done, a document must come out as if it had been alone and whole.
"""

# N documents, T time of the longest one, P tokens of all documents in one piece

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fuzz.case import Draw
from maclaurin.ops import State

Call = Callable[[dict[str, Tensor], dict[str, Any], State | None], tuple[Tensor, State | None]]


@dataclass(frozen=True)
class Layout:
    """Where the tokens of each document stand in the batch of one piece, and the argument that says so."""

    shape: tuple[int, int]
    rows_P: Tensor
    columns_P: Tensor
    argument: dict[str, Any]


@dataclass(frozen=True)
class Poison:
    """One token of one document whose numbers nothing before it, and no other document, may feel."""

    document: int
    at: int

    def past(self, outputs: list[Tensor]) -> dict[str, Tensor]:
        kept = [y[: self.at] if n == self.document else y for n, y in enumerate(outputs)]
        return {"outputs before the poisoned token": torch.cat([y.flatten() for y in kept])}


def poisoned(draw: Draw, tokens: dict[str, Tensor], lengths: list[int]) -> tuple[dict[str, Tensor], Poison]:
    """The tokens with a number that is not finite, or the largest there is, in one place."""
    document = draw.choice([n for n, length in enumerate(lengths) if length > 1])
    poison = draw.note("poison", Poison(document, draw.randrange(1, lengths[document])))
    name = draw.one("poisoned input", sorted(tokens))
    value = draw.one("poisoned with", (math.nan, math.inf, -math.inf, torch.finfo(tokens[name].dtype).max))
    if name in ("log_decay", "dt"):
        value = math.nan  # a decay cannot be positive, a time step not negative
    changed = {**tokens, name: tokens[name].clone()}
    changed[name][poison.document, poison.at] = value
    return changed, poison


def draw_lengths(draw: Draw, documents: int, longest: int) -> list[int]:
    """All of one length, or any, empty ones included."""
    if draw.chance(0.5):
        return [longest] * documents
    lengths = [draw.randint(0, longest) for _ in range(documents)]
    lengths[draw.randrange(documents)] = longest
    return draw.note("lengths", lengths)


def draw_cuts(draw: Draw, lengths: list[int], at_once: bool) -> list[list[int]]:
    """Where each document ends in every piece, the last one included; the same number of pieces for all."""
    longest = max(lengths)
    if at_once:
        shares = [0, longest]
    elif draw.chance(0.25):
        singles = draw.randint(1, min(longest, 12))  # at the end: token by token, as decoding does
        shares = [0, *range(longest - singles, longest + 1)]
    else:
        shares = sorted([0, longest, *(draw.randint(0, longest) for _ in range(draw.choice((0, 0, 1, 1, 2, 3))))])
    draw.note("cuts", shares)
    return [[min(share, length) for share in shares] for length in lengths]


def in_pieces(
    draw: Draw,
    tokens: dict[str, Tensor],
    lengths: list[int],
    call: Call,
    layouts: tuple[str, ...],
    *,
    differentiable: bool = False,
    at_once: bool = False,
) -> list[Tensor]:
    """The outputs of every document, whole again. Where they are to be differentiable, states go on as they are."""
    cuts = draw_cuts(draw, lengths, at_once)
    outputs: list[list[Tensor]] = [[] for _ in lengths]
    state: State | None = None
    for piece in range(len(cuts[0]) - 1):
        spans = [(bounds[piece], bounds[piece + 1]) for bounds in cuts]
        counts = [end - start for start, end in spans]
        if not any(counts):
            continue
        layout = draw_layout(draw, counts, layouts)
        garbage = draw.choice((0.0, 1e4, math.nan))
        batch = {name: _laid_out(name, x, spans, layout, garbage) for name, x in tokens.items()}
        y, state = call(batch, layout.argument, state)
        for document, part in enumerate(y[layout.rows_P, layout.columns_P].split(counts)):
            outputs[document].append(part)
        if state is not None and not differentiable:
            state = handed_over(draw, state)
    return [torch.cat(parts) if parts else next(iter(tokens.values())).new_zeros(0) for parts in outputs]


def draw_layout(draw: Draw, counts: list[int], layouts: tuple[str, ...]) -> Layout:
    if len(set(counts)) == 1 and draw.chance(0.7):
        return _padded(counts, [list(range(count)) for count in counts], max(counts), {})
    kind = draw.one("layout", layouts)
    if kind == "cu_seqlens":
        bounds = torch.tensor([0, *counts]).cumsum(0)
        columns = torch.cat([torch.arange(start, end) for start, end in pairwise(bounds.tolist())])
        given = bounds if draw.chance(0.5) else bounds.tolist()
        return Layout((1, int(bounds[-1])), torch.zeros_like(columns), columns, {"cu_seqlens": given})
    width = max(counts) + draw.choice((0, 0, 1, 3))
    if kind == "lengths":
        places = [list(range(count)) for count in counts]
        return _padded(counts, places, width, {"lengths": torch.tensor(counts)})
    places = [_places(draw, count, width) for count in counts]
    mask = torch.zeros(len(counts), width, dtype=draw.choice((torch.bool, torch.long)))
    for row, columns in enumerate(places):
        mask[row, columns] = 1
    return _padded(counts, places, width, {"attention_mask": mask})


def _places(draw: Draw, count: int, width: int) -> list[int]:
    """Padding on the right, on the left, or anywhere."""
    start = draw.choice((0, width - count, None))
    return sorted(draw.sample(range(width), count)) if start is None else list(range(start, start + count))


def _padded(counts: list[int], places: list[list[int]], width: int, argument: dict[str, Any]) -> Layout:
    rows = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    columns = torch.tensor([place for row in places for place in row], dtype=torch.long)
    return Layout((len(counts), width), rows, columns, argument)


def _laid_out(name: str, x: Tensor, spans: list[tuple[int, int]], layout: Layout, garbage: float) -> Tensor:
    """Padding holds garbage; as a log decay it must not be positive."""
    tokens_P = torch.cat([x[document, start:end] for document, (start, end) in enumerate(spans)])
    value = -1e4 if name == "log_decay" and garbage > 0 else garbage
    empty = torch.full((*layout.shape, *x.shape[2:]), value, dtype=x.dtype)
    return empty.index_put((layout.rows_P, layout.columns_P), tokens_P)


def handed_over(draw: Draw, state: State) -> State:
    """The same state by another way: copied, its sequences selected one by one, or through a file."""
    way = draw.choice(("as it is", "as it is", "as it is", "clone", "select", "detach", "file"))
    if way == "clone":
        return state.clone()
    if way == "detach":
        return state.detach()
    if way == "select":
        return state.select(list(range(state.batch_size)))
    if way == "file":
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            path = Path(folder) / "state.safetensors"
            state.save(path)
            return State.load(path)
    return state
