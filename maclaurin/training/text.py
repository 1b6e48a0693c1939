"""The text of a run: its corpora, its tokenizer, and the sequences to train and to validate on."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any

from maclaurin.data import DocumentRows, PackedRows, StreamedRows, open_corpus, open_tokenizer, tokenise
from maclaurin.data.corpus import SAMPLE, beginning, validation_split
from maclaurin.data.tokens import growing
from maclaurin.training.recipe import Recipe


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

    def sequences(
        self, cache: Path | None, count: int
    ) -> tuple[Any, PackedRows | DocumentRows | StreamedRows, PackedRows | DocumentRows]:
        """The tokenizer, the sequences to train on, `count` of them if they are streamed, and those for validation."""
        recipe = self.recipe
        split = "all" if self.validation else "train"
        documents = self.corpus.documents(split)
        tokenizer = open_tokenizer(recipe.tokenizer, beginning(documents, SAMPLE) if self.streams else documents)
        packed = recipe.rows == "packed"
        kind = PackedRows if packed else DocumentRows
        train: PackedRows | DocumentRows | StreamedRows
        if self.streams:
            entry = growing(self.corpus, split, tokenizer, cache)
            train = StreamedRows(entry, kind, recipe.length, count=count, seed=recipe.seed, tokens=recipe.tokens)
        else:
            train = kind(tokenise(self.corpus, split, tokenizer, cache), recipe.length)
        judge = self.validation or self.corpus
        held_out = tokenise(
            judge,
            validation_split(judge) if self.validation else "held-out",
            tokenizer,
            cache,
            tokens=recipe.eval_rows * recipe.length if packed else 0,
            documents=0 if packed else recipe.eval_rows,
        )
        return tokenizer, train, kind(held_out, recipe.length)
