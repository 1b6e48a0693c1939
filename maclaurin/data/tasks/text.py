"""Text as a task: which byte comes next?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from maclaurin.common.arguments import at_least_one, one_of
from maclaurin.data.tasks.base import Batch, Task
from maclaurin.data.tasks.registry import register

SPLITS = ("train", "validation", "test")

# N examples, T length


@dataclass(frozen=True)
class Text(Task[Batch]):
    """Stretches of a corpus at uniform places, and at every byte the next one as its target; 256 is the end of a document.

    corpus: "stdlib", or a file or folder (`open_corpus`). split: "train" is the training part of the corpus; "validation"
    and "test" are the two halves of its held-out documents (`halves.py`).
    """

    length: int = 256
    corpus: str = "stdlib"
    split: str = "train"

    def __post_init__(self) -> None:
        at_least_one("length", self.length)
        one_of("split", self.split, SPLITS)

    @property
    def vocab_size(self) -> int:
        return 257

    def draw(self, count: int, rng: np.random.Generator) -> Batch:
        tokens = part_of(self.corpus, self.split)
        if len(tokens) <= self.length:
            part = f"the {self.split} part of {self.corpus!r}"
            raise ValueError(f"length must be below the {len(tokens)} bytes of {part}, got {self.length}")
        start_N1 = rng.integers(len(tokens) - self.length, size=(count, 1))
        bytes_NT = torch.from_numpy(tokens[start_N1 + np.arange(self.length + 1)].astype(np.int64))
        return Batch(bytes_NT[:, :-1], bytes_NT[:, 1:])


@lru_cache(maxsize=8)
def fingerprint_of(corpus: str) -> str:
    from maclaurin.data.corpus import open_corpus

    return open_corpus(corpus).fingerprint()


@lru_cache(maxsize=8)
def part_of(corpus: str, split: str) -> np.ndarray[Any, Any]:
    """The bytes of all documents of a part, each ended by 256; read once per process, through the cache of tokens."""
    from maclaurin.data.corpus import open_corpus
    from maclaurin.data.halves import Halves
    from maclaurin.data.tokenizer import byte_tokenizer
    from maclaurin.data.tokens import tokenise

    opened = open_corpus(corpus)
    if opened.streams:
        raise ValueError(f"corpus must be 'stdlib', or a file or folder of at most 1 GiB, got {corpus!r}")
    source = opened if split == "train" else Halves(opened, "held-out")
    return tokenise(source, split, byte_tokenizer()).tokens


register("text", Text, "the next byte of a corpus")
