"""A slice in time of a batch: its tokens, what each of them predicts, and the documents in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from maclaurin.common.arguments import at_least_one
from maclaurin.mixers.base import MixerState

Bounds = Tensor | Sequence[int] | None  # of the documents in a slice
Received = tuple[Tensor, MixerState | None, Bounds]  # the tokens that are to be computed here, and the state before them
CUT = ("input_ids", "labels", "cu_seqlens")


def even_bounds(tokens: int, slices: int) -> list[int]:
    """Where slices that differ by one token at most begin and end."""
    at_least_one("slices", slices)
    if tokens < slices:
        raise ValueError(f"{tokens} tokens cannot be cut into {slices} slices: give fewer slices or longer sequences")
    return [tokens * number // slices for number in range(slices + 1)]


def slice_of(batch: Mapping[str, Any], start: int, stop: int) -> dict[str, Tensor]:
    """The tokens from `start` to `stop` of every sequence, as arguments of a language model: input_ids, shift_labels and,
    of packed documents, cu_seqlens.

    batch: input_ids and labels (B, T), and cu_seqlens if the batch is one sequence of packed documents. Labels are shifted
    before they are cut, so that the last token of a slice predicts the first one of the next. The first document of a slice
    goes on from the slice before, with no token of its own where a document begins there.
    """
    for name in batch:
        if name not in CUT:
            raise ValueError(f"a batch that is cut must have {', '.join(CUT)} only, got {name!r}")
    ids, labels, bounds = batch["input_ids"], batch["labels"], batch.get("cu_seqlens")
    if bounds is None:
        return {"input_ids": ids[:, start:stop], "shift_labels": _next(labels)[:, start:stop]}
    if ids.shape[0] != 1:
        raise ValueError(f"documents must be packed in one sequence to be cut, got {ids.shape[0]} sequences")
    bounds = torch.as_tensor(bounds, device=ids.device)
    labels = labels.index_fill(1, bounds[:-1], -100)  # nothing comes before the first token of a document
    inside = bounds[(bounds >= start) & (bounds < stop)] if start else bounds[(bounds > start) & (bounds < stop)]
    return {
        "input_ids": ids[:, start:stop],
        "shift_labels": _next(labels)[:, start:stop],
        "cu_seqlens": pad(pad(inside - start, (1, 0), value=0), (0, 1), value=stop - start),
    }


def slices_of(batch: Mapping[str, Any], bounds: Sequence[int]) -> list[dict[str, Tensor]]:
    return [slice_of(batch, start, stop) for start, stop in pairwise(bounds)]


def _next(labels_BT: Tensor) -> Tensor:
    return pad(labels_BT[:, 1:], (0, 1), value=-100)
