"""Packed batches of transformers: several documents in one row, told apart by any of three arguments.

transformers gives linear layers `seq_idx` (the number of a token's document) or `cu_seq_lens_q` (where documents begin), and
attention layers `position_ids` (0 where a document begins); which one arrives differs from model to model. Here one says it
for all layers: `telling_documents` completes the arguments of a model, and `Documents` is what the kernels make of them.
"""

# B batch, T time, N documents

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

STACKS = ("layers", "blocks")  # what the model has that hands tokens to its layers, as against one that wraps it


@dataclass(frozen=True)
class Documents:
    """Where documents begin, the rows of a batch one after the other: bounds (N+1,) of B·T tokens in B rows."""

    bounds: Tensor
    rows: int
    tokens: int  # per row

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Documents | None:
        """Of a layer's arguments; None where every row is one document."""
        for name in ("cu_seqlens", "cu_seq_lens_q"):
            if (bounds := arguments.get(name)) is not None:
                return cls._several(bounds.long(), 1, int(bounds[-1]))
        if (number_BT := arguments.get("seq_idx")) is not None:
            return cls._where(number_BT.diff() != 0)
        return None

    @classmethod
    def of_model(cls, arguments: Mapping[str, Any]) -> Documents | None:
        """Of a model's arguments. Beside a mask positions count padding, as they do for transformers' own attention."""
        position_BT = arguments.get("position_ids")
        if position_BT is None or position_BT.dim() != 2 or arguments.get("attention_mask") is not None:
            return cls.of(arguments)
        return cls.of(arguments) or cls._where(position_BT.diff() != 1)

    @classmethod
    def _where(cls, begins: Tensor) -> Documents | None:
        first = torch.ones(begins.shape[0], 1, dtype=torch.bool, device=begins.device)
        begins_BT = torch.cat([first, begins], dim=1)
        starts = begins_BT.flatten().nonzero().flatten()
        end = torch.tensor([begins_BT.numel()], dtype=torch.long, device=begins.device)
        return cls._several(torch.cat([starts, end]), *begins_BT.shape)

    @classmethod
    def _several(cls, bounds: Tensor, rows: int, tokens: int) -> Documents | None:
        return cls(bounds, rows, tokens) if len(bounds) > rows + 1 else None

    def flat(self, x: Tensor) -> Tensor:
        """(B,T,...) as one row; refuses what the bounds do not cover."""
        if tuple(x.shape[:2]) != (self.rows, self.tokens):
            raise ValueError(
                f"packed documents must cover the batch: they have {self.rows} rows of {self.tokens} tokens, "
                f"the layer was given {tuple(x.shape[:2])}"
            )
        return x.reshape(1, -1, *x.shape[2:])

    def in_rows(self, y: Tensor) -> Tensor:
        return y.reshape(self.rows, self.tokens, *y.shape[2:])

    def last(self, state: Tensor) -> Tensor:
        """Of the states of all documents (N,...), those behind the rows' ends (B,...): a cache goes on from there."""
        ends = torch.arange(1, self.rows + 1, dtype=torch.long, device=state.device) * self.tokens
        return state[torch.searchsorted(self.bounds, ends) - 1]

    def numbers(self) -> Tensor:
        """seq_idx (B,T), counted through the rows."""
        lengths = self.bounds.diff()
        return (
            torch.arange(len(lengths), dtype=torch.int32, device=lengths.device)
            .repeat_interleave(lengths)
            .view(self.rows, -1)
        )

    def positions(self) -> Tensor:
        """position_ids (B,T)."""
        starts = self.bounds[:-1].repeat_interleave(self.bounds.diff())
        return (torch.arange(len(starts), dtype=torch.long, device=starts.device) - starts).view(self.rows, -1)


_of_this_call: ContextVar[Documents | None] = ContextVar("_of_this_call", default=None)


@contextmanager
def known(documents: Documents | None) -> Iterator[None]:
    """For layers that are not handed a model's arguments."""
    token = _of_this_call.set(documents)
    try:
        yield
    finally:
        _of_this_call.reset(token)


def documents_of(arguments: Mapping[str, Any]) -> Documents | None:
    return Documents.of(arguments) or _of_this_call.get()


class Packing(Enum):
    """How the layers of an architecture learn of the documents in a packed batch."""

    HANDED_ON = "the model hands its arguments on to them"
    ASKED = "it does not: they ask `documents_of`, which a backward pass that computes a layer again could not answer"
    MASKED = "handed on, but to softmax as a mask that the model makes without regard to positions"
    REFUSED = "some of its layers cannot keep documents apart"


def telling_documents(forward: Callable[..., Any], packing: Packing) -> Callable[..., Any]:
    """A model's `forward` that tells the documents of a packed batch to all of its layers."""
    takes_positions = "position_ids" in inspect.signature(forward).parameters

    @functools.wraps(forward)
    def telling(self: Any, *args: Any, **kwargs: Any) -> Any:
        documents = Documents.of_model(kwargs) or _of_this_call.get()
        if documents is not None and any(hasattr(self, name) for name in STACKS):
            kwargs = _told(self, kwargs, documents, packing, takes_positions)
        with known(documents):
            return forward(self, *args, **kwargs)

    return telling


def _told(
    model: Any, kwargs: dict[str, Any], documents: Documents, packing: Packing, takes_positions: bool
) -> dict[str, Any]:
    if packing is Packing.REFUSED:
        raise ValueError(f"{type(model).__name__} takes no packed batches: {packing.value}")
    if packing is Packing.ASKED and model.training and getattr(model, "gradient_checkpointing", False):
        raise ValueError(f"{type(model).__name__} takes packed batches without gradient checkpointing only")
    told = dict(kwargs)
    if packing is not Packing.ASKED:
        told.setdefault("seq_idx", documents.numbers())
    if takes_positions and told.get("position_ids") is None:
        told["position_ids"] = documents.positions()
    if packing is Packing.MASKED and told.get("attention_mask") is None:
        told["attention_mask"] = {"full_attention": _mask(model, documents), "linear_attention": None}
    return told


def _mask(model: Any, documents: Documents) -> Any:
    from transformers.masking_utils import create_causal_mask

    shape = (documents.rows, documents.tokens, 1)
    tokens = torch.empty(shape, dtype=model.dtype, device=model.device)  # asked for its shape and type only
    return create_causal_mask(
        config=model.config,
        inputs_embeds=tokens,
        attention_mask=None,
        past_key_values=None,
        position_ids=documents.positions(),
    )
