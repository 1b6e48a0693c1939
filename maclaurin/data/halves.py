"""Held-out documents in two parts: "validation", by which learning rates are chosen, and "test", which decides nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

from maclaurin.common.arguments import one_of
from maclaurin.data.corpus import Corpus

HALVES = ("validation", "test")


class Halves(Corpus):
    """A split of a corpus, each of whose documents belongs to one of the two by its content alone. Where all would belong
    to one, every document is cut in the middle.
    """

    def __init__(self, corpus: Corpus, split: str) -> None:
        self.corpus, self.split = corpus, split
        self.name, self.streams = corpus.name, corpus.streams

    def documents(self, split: str) -> Iterator[str]:
        one_of("split", split, HALVES)
        cut = not self.streams and len({in_test(text) for text in self.corpus.documents(self.split)}) < 2
        for text in self.corpus.documents(self.split):
            if cut:
                middle = len(text) // 2
                yield text[middle:] if split == "test" else text[:middle]
            elif in_test(text) == (split == "test"):
                yield text

    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps([self.corpus.fingerprint(), self.split, *HALVES]).encode()).hexdigest()


def in_test(text: str) -> bool:
    """Whether a document belongs to the test part: half of them do, by a hash that is not the one of `held_out`."""
    return bool(hashlib.sha256(f"half\0{text}".encode(errors="replace")).digest()[0] & 1)
