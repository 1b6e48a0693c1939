"""Sequences for training: documents packed to full length, or one document per sequence.

The thesis (arXiv 2507.23632 and 2602.17363) has one document per sequence.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from maclaurin.data.entry import TokenFile


class PackedRows(Dataset[dict[str, Any]]):
    """Sequence i is the i-th stretch of `length` tokens. A document that its end cuts goes on in the next as a new one."""

    def __init__(self, file: TokenFile, length: int) -> None:
        if len(file) < length:
            raise ValueError(f"the corpus has {len(file)} tokens, fewer than one sequence of {length}")
        self.file, self.length = file, length

    def __len__(self) -> int:
        return len(self.file) // self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        start = index * self.length
        first, last = np.searchsorted(self.file.ends, [start, start + self.length], side="right")
        inside = self.file.ends[first:last] - start
        bounds = np.unique(np.concatenate([[0], inside, [self.length]]))
        tokens = self.file.tokens[start : start + self.length]
        return {"input_ids": torch.from_numpy(tokens.astype(np.int64)), "bounds": torch.from_numpy(bounds)}

    @staticmethod
    def collate(sequences: list[dict[str, Any]]) -> dict[str, Tensor]:
        """All sequences concatenated to one of packed documents."""
        ids = torch.cat([sequence["input_ids"] for sequence in sequences])[None]
        lengths = torch.cat([sequence["bounds"].diff() for sequence in sequences])
        cu_seqlens = torch.cat([torch.zeros(1, dtype=torch.long, device="cpu"), lengths.cumsum(0)])
        labels = ids.clone()
        labels[:, cu_seqlens[:-1]] = -100  # nothing comes before the first token of a document
        return {"input_ids": ids, "labels": labels, "cu_seqlens": cu_seqlens}


class DocumentRows(Dataset[Tensor]):
    """Sequence i is the i-th document, cut to `length` tokens."""

    def __init__(self, file: TokenFile, length: int) -> None:
        self.file, self.length = file, length

    def __len__(self) -> int:
        return len(self.file.ends)

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(self.file.document(index)[: self.length].astype(np.int64))

    @staticmethod
    def collate(documents: list[Tensor]) -> dict[str, Tensor]:
        """Padded on the right; padding has no label."""
        ids = torch.nn.utils.rnn.pad_sequence(documents, batch_first=True)
        lengths = ids.new_tensor([len(document) for document in documents])
        mask = torch.arange(ids.shape[1], dtype=torch.long, device=ids.device) < lengths[:, None]
        return {"input_ids": ids, "labels": ids.masked_fill(~mask, -100), "attention_mask": mask.long()}
