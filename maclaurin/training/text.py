"""The text of a run: its corpora, its tokenizer, and the sequences to train on, to validate on and to test on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from maclaurin.data import DocumentRows, PackedRows, StreamedRows, open_corpus, open_tokenizer, tokenise
from maclaurin.data.corpus import SAMPLE, Corpus, beginning, validation_split
from maclaurin.data.halves import Halves
from maclaurin.data.tokens import growing
from maclaurin.training.recipe import Recipe

Rows = PackedRows | DocumentRows


@dataclass(frozen=True)
class Sequences:
    """test: of documents that are neither in `train` nor in `validation`; None where the recipe has no test."""

    tokenizer: Any
    train: Rows | StreamedRows
    validation: Rows
    test: Rows | None


class Text:
    """known: the fingerprint of the data of a run that goes on, "" for that of a new one."""

    def __init__(self, recipe: Recipe, known: str) -> None:
        self.recipe = recipe
        self.corpus = open_corpus(recipe.corpus, text_field=recipe.text_field)
        self.validation = open_corpus(recipe.validation, text_field=recipe.text_field) if recipe.validation else None
        # a run from before corpora were streamed goes on with the order that it began with
        self.streams = recipe.tokens > 0 or (self.corpus.streams and known != self.corpus.fingerprint())

    @cached_property
    def fingerprint(self) -> str:
        """Of everything that decides what the run sees, and in which order."""
        own = self.corpus.fingerprint()
        if self.validation is None and not self.streams:
            return own
        parts = [own, self.streams, self.validation.fingerprint() if self.validation else None]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def sequences(self, cache: Path | None, count: int) -> Sequences:
        """The sequences to train on are `count` if they are streamed."""
        recipe = self.recipe
        split = "all" if self.validation else "train"
        documents = self.corpus.documents(split)
        tokenizer = open_tokenizer(recipe.tokenizer, beginning(documents, SAMPLE) if self.streams else documents)
        kind = PackedRows if recipe.rows == "packed" else DocumentRows
        train: Rows | StreamedRows
        if self.streams:
            entry = growing(self.corpus, split, tokenizer, cache)
            train = StreamedRows(entry, kind, recipe.length, count=count, seed=recipe.seed, tokens=recipe.tokens)
        else:
            train = kind(tokenise(self.corpus, split, tokenizer, cache), recipe.length)
        judge = self.validation or self.corpus
        apart = validation_split(judge) if self.validation else "held-out"
        if not recipe.test_rows:
            return Sequences(tokenizer, train, self._judges(judge, apart, tokenizer, cache, recipe.eval_rows), None)
        halves = Halves(judge, apart)
        return Sequences(
            tokenizer,
            train,
            self._judges(halves, "validation", tokenizer, cache, recipe.eval_rows),
            self._judges(halves, "test", tokenizer, cache, recipe.test_rows),
        )

    def _judges(self, corpus: Corpus, split: str, tokenizer: Any, cache: Path | None, count: int) -> Rows:
        """At least `count` sequences of a split, or all that there are."""
        length = self.recipe.length
        if self.recipe.rows == "packed":
            return PackedRows(tokenise(corpus, split, tokenizer, cache, tokens=count * length), length)
        return DocumentRows(tokenise(corpus, split, tokenizer, cache, documents=count), length)
