"""Text that no model has been trained on: perplexity, and how far the teacher agrees."""

# B batch, T time, V vocabulary

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maclaurin.common.progress import counted
from maclaurin.data import PackedRows, open_corpus, tokenise
from maclaurin.judge.result import OnText


def held_out_rows(corpus: str, tokenizer: Any, rows: int, length: int) -> list[Tensor]:
    """So many sequences (1, length) from all over the validation part of a corpus."""
    packed = PackedRows(tokenise(open_corpus(corpus), "held-out", tokenizer), length)
    if len(packed) < rows:
        raise ValueError(
            f"corpus {corpus!r} has {len(packed)} sequences of {length} tokens to validate on, fewer than {rows}"
        )
    step = len(packed) // rows
    return [
        torch.as_tensor(packed[index * step]["input_ids"], dtype=torch.long, device="cpu")[None] for index in range(rows)
    ]


@torch.no_grad()
def on_text(models: dict[str, Any], teacher: Any, rows: Sequence[Tensor]) -> dict[str, OnText]:
    """Of every model. The teacher reads each sequence once."""
    sums = {name: torch.zeros(3, dtype=torch.float64, device="cpu") for name in models}
    tokens = 0
    for ids in counted(rows, "reading", "sequences"):
        targets = ids[0, 1:]
        wanted = _log_probabilities(teacher, ids)
        for name, model in models.items():
            got = wanted if model is teacher else _log_probabilities(model, ids)
            loss = F.nll_loss(got, targets, reduction="sum")
            same = (got.argmax(-1) == wanted.argmax(-1)).sum()
            kl = F.kl_div(got, wanted, log_target=True, reduction="sum")
            sums[name] += torch.stack([loss, same, kl]).double()
        tokens += len(targets)
    return {name: _result(found / tokens, tokens) for name, found in sums.items()}


def _log_probabilities(model: Any, ids: Tensor) -> Tensor:
    logits: Tensor = model(ids.to(model.device), use_cache=False).logits[0, :-1]
    return F.log_softmax(logits.float().cpu(), dim=-1)


def _result(means: Tensor, tokens: int) -> OnText:
    loss, same, kl = means.tolist()
    return OnText(tokens, math.exp(loss), same, kl)
