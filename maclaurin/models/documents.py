"""Which tokens of a batch are one document, as collators of transformers and TRL say it."""

# B batch, T time

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from maclaurin.ops.transforms import has_numbers

Bounds = Tensor | Sequence[int]
NOT_IN_GRAPHS = "position_ids must not restart, nor seq_idx change, in a compiled model: it cannot separate packed documents"


def document_bounds(
    size: tuple[int, int],
    attention_mask: Tensor | None,
    *,
    cu_seqlens: Bounds | None = None,
    cu_seq_lens_q: Bounds | None = None,
    seq_idx: Tensor | None = None,
    position_ids: Tensor | None = None,
) -> Bounds | None:
    """Where the documents of a batch of `size` (B, T) begin and end in its tokens, one sequence after the other.

    Bounds as such come first, then seq_idx (B,T), which changes from document to document, then position_ids (B,T), which
    do not rise where a document begins. Positions are compared between real tokens: those of padding mean nothing. None
    where every sequence is one document. Stretches of padding between documents become documents of their own.
    """
    given = cu_seqlens if cu_seqlens is not None else cu_seq_lens_q
    if given is not None:
        _check_given(given, size, attention_mask)
        return given
    if seq_idx is not None:
        numbers = seq_idx.expand(size)
        begins = numbers[:, 1:] != numbers[:, :-1]
    elif position_ids is not None and size[1] > 1:
        begins = _restarts(position_ids.expand(size), attention_mask)
    else:
        return None
    if not has_numbers(begins):
        # how many documents there are is not known before the graph runs
        torch._assert_async(begins.any().logical_not(), NOT_IN_GRAPHS)
        return None
    if not bool(begins.any()):
        return None
    if attention_mask is not None:
        begins = begins | (attention_mask[:, 1:] != attention_mask[:, :-1])
    begins = F.pad(begins, (1, 0), value=True).flatten()
    return F.pad(begins.nonzero().flatten(), (0, 1), value=begins.numel())


def _restarts(positions_BT: Tensor, attention_mask: Tensor | None) -> Tensor:
    """(B, T−1): whether a token's position does not exceed that of the real token before it."""
    if attention_mask is None:
        return positions_BT[:, 1:] <= positions_BT[:, :-1]
    real = attention_mask.bool()
    slots = torch.arange(positions_BT.shape[1], dtype=torch.long, device=positions_BT.device)
    last_real = torch.where(real, slots, -1).cummax(1).values[:, :-1]
    before = positions_BT.gather(1, last_real.clamp(min=0))
    return real[:, 1:] & (last_real >= 0) & (positions_BT[:, 1:] <= before)


def _check_given(bounds: Bounds, size: tuple[int, int], attention_mask: Tensor | None) -> None:
    if attention_mask is not None:
        raise ValueError("give at most one of attention_mask with padding and cu_seqlens: documents have no padding")
    B, T = size
    if isinstance(bounds, Tensor) and not has_numbers(bounds):
        return
    if B > 1 and not {row * T for row in range(B)} <= set(map(int, bounds)):
        raise ValueError(f"cu_seqlens must have a bound at the start of each of the {B} sequences of {T} tokens")
