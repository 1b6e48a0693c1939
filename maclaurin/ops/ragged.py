"""Ragged batches: padding masks and packed documents, turned into dense batches of documents of similar length.

There is one rule for all ops and mixers. Every document becomes a sequence of its own, right-padded, beside documents of at
most twice its length, so that documents cannot meet, padding cannot enter a state, and at most half the work is padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor

from maclaurin.ops.checks import shape
from maclaurin.ops.states import State
from maclaurin.ops.tokens import without_padding
from maclaurin.ops.transforms import has_numbers, is_vmapped, numbers

S = TypeVar("S", bound=State)
Inputs = tuple[Tensor | None, ...]
DenseOp = Callable[[Inputs, S | None, Tensor | None], tuple[Tensor, S | None]]

SHORTEST_BUCKET = 16  # documents up to this length share a batch: more batches would cost more than the padding


def over_documents(
    op: DenseOp[S],
    inputs: Inputs,
    state: S | None,
    *,
    attention_mask: Tensor | None = None,
    cu_seqlens: Tensor | Sequence[int] | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, S | None]:
    """Apply `op(inputs, state, lengths)`, which knows dense right-padded batches only, to ragged inputs.

    inputs have shape (B, T, ...). `attention_mask` (B, T) is 1 at real tokens; `cu_seqlens` (N+1,) bounds the N documents
    packed in one sequence, and the state is then one of N sequences. The output has the layout of the inputs, with zeros at
    padding.
    The op finds zeros at padding, whatever the caller left there: a NaN times a gradient of zero would still be NaN.
    """
    output, after = _by_document(op, inputs, state, attention_mask, cu_seqlens, lengths)
    if after is not None:
        object.__setattr__(after, "sound_on", output.device)  # no field: what is made of this state is looked at again
    return output, after


def over_whole_documents(
    op: Callable[..., Tensor], inputs: Inputs, state: State | None, backend: str, **ragged: Any
) -> tuple[Tensor, None]:
    """The same for `op(*inputs, lengths=lengths)`, in which every token sees every token: there is no state."""
    if state is not None:
        raise ValueError("state must be None with causal=False: every token sees the whole sequence")
    if backend != "auto":
        raise ValueError(f"backend must be 'auto' with causal=False, got {backend!r}")
    output, _ = over_documents(lambda inputs, _, lengths: (op(*inputs, lengths=lengths), None), inputs, None, **ragged)
    return output, None


def _by_document(
    op: DenseOp[S],
    inputs: Inputs,
    state: S | None,
    attention_mask: Tensor | None,
    cu_seqlens: Tensor | Sequence[int] | None,
    lengths: Tensor | None,
) -> tuple[Tensor, S | None]:
    x = next(tensor for tensor in inputs if tensor is not None)
    B, T = x.shape[:2]
    if attention_mask is None and cu_seqlens is None and lengths is None:
        _check_rows(state, B)
        return op(inputs, state, None)
    given = {"attention_mask": attention_mask, "cu_seqlens": cu_seqlens, "lengths": lengths}
    if len(named := [name for name, value in given.items() if value is not None]) > 1:
        raise ValueError(f"give at most one of attention_mask, cu_seqlens and lengths, got {' and '.join(named)}")
    if lengths is not None:
        lengths = _checked_lengths(lengths, x)
        _check_rows(state, B)
        output, state = op(_zero_at_padding(inputs, lengths), state, lengths)
        return without_padding(output, lengths), state
    if attention_mask is not None:
        real = _checked_mask(attention_mask, x)
        if has_numbers(real) and bool(numbers(real).all()):
            attention_mask = None
        elif has_numbers(real) and is_vmapped(real):
            raise ValueError(
                "attention_mask must be 1 everywhere where it differs between the examples of a vmap, got padding: leave it "
                "out for right-padded sequences, whose padding no real token sees, and count only the real ones"
            )
        else:
            # a stable sort moves the real tokens of each sequence to the front and keeps their order
            row = torch.arange(B, dtype=torch.long, device=x.device)[:, None] * T
            positions = row + real.logical_not().to(torch.uint8).argsort(dim=1, stable=True)
            if has_numbers(real):
                return _in_buckets(op, inputs, state, positions, real.sum(1).tolist())
            output, after = _in_one_batch(op, inputs, state, positions, real.sum(1))
            return torch.zeros_like(output).index_copy(0, positions.flatten(), output).unflatten(0, (B, T)), after
    if cu_seqlens is not None:
        bounds = _checked_cu_seqlens(cu_seqlens, x)
        if isinstance(bounds, Tensor):
            return _unknown_documents(op, inputs, state, bounds)
        document_lengths = [end - begin for begin, end in pairwise(bounds)]
        slots = torch.arange(max(*document_lengths, 1), dtype=torch.long, device=x.device)
        begins = torch.tensor(bounds[:-1], dtype=torch.long, device=x.device)
        return _in_buckets(op, inputs, state, (begins[:, None] + slots).clamp(max=T - 1), document_lengths)
    _check_rows(state, B)
    return op(inputs, state, None)


def _in_buckets(
    op: DenseOp[S], inputs: Inputs, state: S | None, positions: Tensor, lengths: list[int]
) -> tuple[Tensor, S | None]:
    """`positions` (N, longest) says where in the flattened batch the tokens of each document stand.

    All sizes follow from the lengths, so that a graph made for them needs to look at no tensor.
    """
    x = next(tensor for tensor in inputs if tensor is not None)
    tokens = x.shape[0] * x.shape[1]
    flat = [None if tensor is None else tensor.flatten(0, 1) for tensor in inputs]
    _check_rows(state, len(lengths))

    outputs, places, rows, states = [], [], [], []
    for bucket in _buckets(lengths):
        chosen = torch.tensor(bucket, dtype=torch.long, device=x.device)
        bucket_lengths = [lengths[document] for document in bucket]
        longest = max(*bucket_lengths, 1)
        where = positions[chosen, :longest]
        counts = torch.tensor(bucket_lengths, dtype=torch.long, device=x.device)
        padded = None if min(bucket_lengths) == longest else counts
        documents = tuple(None if tensor is None else tensor[where] for tensor in flat)
        output, new_state = op(_zero_at_padding(documents, padded), None if state is None else state.select(chosen), padded)
        real = slice(None) if padded is None else _real_slots(counts, longest, sum(bucket_lengths))
        outputs.append(output.flatten(0, 1)[real])
        places.append(where.flatten()[real])
        rows += bucket
        states.append(new_state)

    output = torch.cat(outputs)
    result = output.new_zeros(tokens, *output.shape[1:]).index_copy(0, torch.cat(places), output)
    result = result.unflatten(0, x.shape[:2])
    kept = [new_state for new_state in states if new_state is not None]
    if not kept:
        return result, None
    joined = kept[0] if len(kept) == 1 else type(kept[0]).cat(kept)
    order = sorted(range(len(rows)), key=rows.__getitem__)
    return result, joined.select(order) if len(kept) > 1 else joined  # the documents of one bucket are in order


def _real_slots(lengths: Tensor, longest: int, total: int) -> Tensor:
    """Where the `total` tokens of documents of these lengths stand in a batch (N, longest) that is flattened."""
    before = torch.arange(len(lengths), dtype=torch.long, device=lengths.device) * longest - (lengths.cumsum(0) - lengths)
    shift = before.repeat_interleave(lengths, output_size=total)
    return shift + torch.arange(total, dtype=torch.long, device=lengths.device)


def _in_one_batch(
    op: DenseOp[S], inputs: Inputs, state: S | None, positions: Tensor, lengths: Tensor
) -> tuple[Tensor, S | None]:
    """The same where lengths cannot be looked at, so that nobody knows which documents are of similar length. Outputs are in
    the order of the positions, flattened, with zeros at padding.
    """
    _check_rows(state, positions.shape[0])
    flat = (None if tensor is None else tensor.flatten(0, 1) for tensor in inputs)
    documents = tuple(None if tensor is None else tensor[positions] for tensor in flat)
    output, after = op(_zero_at_padding(documents, lengths), state, lengths)
    return without_padding(output, lengths).flatten(0, 1), after


def _unknown_documents(op: DenseOp[S], inputs: Inputs, state: S | None, bounds: Tensor) -> tuple[Tensor, S | None]:
    """Packed documents whose bounds cannot be looked at: any of them may be as long as the sequence."""
    T = next(tensor for tensor in inputs if tensor is not None).shape[1]
    slots = torch.arange(T, dtype=torch.long, device=bounds.device)
    output, after = _in_one_batch(op, inputs, state, (bounds[:-1, None] + slots).clamp(max=T - 1), bounds.diff())
    document = torch.searchsorted(bounds[1:].contiguous(), slots, right=True)
    return output[document * T + slots - bounds[document]][None], after


def part(inputs: Inputs, lengths: Tensor | None, start: int, end: int) -> tuple[Inputs, Tensor | None]:
    """The tokens from `start` to `end` of a right-padded batch, and how many of them are real."""
    tokens = tuple(None if tensor is None else tensor[:, start:end] for tensor in inputs)
    return tokens, None if lengths is None else (lengths - start).clamp(0, end - start)


def token_by_token(op: DenseOp[S], inputs: Inputs, state: S | None, lengths: Tensor | None) -> tuple[Tensor, S | None]:
    """The recurrent form of an op: its outputs for one token after the other, and the state after the last one."""
    assert inputs[0] is not None
    outputs = []
    for t in range(inputs[0].shape[1]):
        now, present = part(inputs, lengths, t, t + 1)
        y, state = op(now, state, present)
        outputs.append(y)
    return torch.cat(outputs, dim=1), state


def _zero_at_padding(inputs: Inputs, lengths: Tensor | None) -> Inputs:
    return tuple(None if tensor is None else without_padding(tensor, lengths) for tensor in inputs)


def _buckets(lengths: list[int]) -> list[list[int]]:
    """Documents grouped by length, each group within a factor of two."""
    groups: dict[int, list[int]] = {}
    for document, length in enumerate(lengths):
        groups.setdefault((max(length, SHORTEST_BUCKET) - 1).bit_length(), []).append(document)
    return [groups[key] for key in sorted(groups)]


def _check_rows(state: State | None, expected: int) -> None:
    if state is not None and state.batch_size != expected:
        raise ValueError(f"state must hold {expected} sequences, got {state.batch_size}")


def _checked_mask(mask: Tensor, x: Tensor) -> Tensor:
    if not isinstance(mask, Tensor) or tuple(mask.shape) != tuple(x.shape[:2]):
        got = shape(mask) if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"attention_mask must be a tensor of shape {tuple(x.shape[:2])} (batch, time), got {got}")
    real = mask == 1
    if has_numbers(mask) and not bool(numbers(real | (mask == 0)).all()):
        raise ValueError("attention_mask must hold only 1 (real token) and 0 (padding), got other values or NaN")
    return real.to(x.device)


def _checked_lengths(lengths: Tensor, x: Tensor) -> Tensor:
    lengths = torch.as_tensor(lengths, device=x.device)
    B, T = x.shape[:2]
    if tuple(lengths.shape) != (B,) or lengths.is_floating_point():
        raise ValueError(
            f"lengths must be {B} whole numbers, one per sequence, got {lengths.dtype} of shape {shape(lengths)}"
        )
    if has_numbers(lengths) and bool((((values := numbers(lengths)) < 0) | (values > T)).any()):
        raise ValueError(f"lengths must lie between 0 and the {T} tokens of a sequence, got {values.tolist()}")
    return lengths.long()


def _checked_cu_seqlens(cu_seqlens: Tensor | Sequence[int], x: Tensor) -> Tensor | list[int]:
    """A list, unless it is a tensor in a graph, where nobody can look at its numbers."""
    B, T = x.shape[:2]
    if B != 1:
        raise ValueError(f"cu_seqlens describes documents packed in one sequence, but the batch has {B}")
    try:
        bounds = torch.as_tensor(cu_seqlens, device=x.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"cu_seqlens must be a list of whole numbers, got {cu_seqlens!r}") from error
    if bounds.dim() != 1 or bounds.numel() < 2 or bounds.is_floating_point() or bounds.dtype == torch.bool:
        raise ValueError(
            f"cu_seqlens must be a list of at least 2 whole numbers, got {bounds.dtype} of shape {shape(bounds)}"
        )
    if isinstance(cu_seqlens, Tensor) and not has_numbers(bounds):
        return bounds.long()
    found = cu_seqlens.tolist() if isinstance(cu_seqlens, Tensor) else list(map(int, cu_seqlens))
    if found[0] != 0 or found[-1] != T or any(begin > end for begin, end in pairwise(found)):
        raise ValueError(f"cu_seqlens must rise from 0 to the {T} tokens of the sequence, got {found[:16]}")
    return found
