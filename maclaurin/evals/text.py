"""How well a model predicts a text: loss per token, perplexity, bits per byte."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maclaurin.data import DocumentRows, open_corpus
from maclaurin.data.corpus import validation_split
from maclaurin.training.recipe import Recipe

TOKENS_AT_ONCE = 8192  # per forward


@dataclass(frozen=True)
class TextScore:
    """loss: nats per predicted token. bits_per_byte: the length of the text coded by the model, comparable across
    tokenizers; the first token of a document, which nothing predicts, costs the log of the vocabulary size.
    """

    loss: float
    perplexity: float
    bits_per_byte: float
    tokens: int
    bytes: int
    documents: int


def documents_of(model: str, text: str | None, text_field: str | None = None) -> Iterator[str]:
    """All documents of a file or folder; the validation part of any other corpus, by default the model's own, of which a
    corpus that streams gives the first `eval_rows` documents of the model's recipe.
    """
    if text is None:
        if not (Path(model) / "recipe.json").is_file():
            raise ValueError(f"model {model!r} does not say what it was trained on: give a text")
        recipe = Recipe.load(Path(model))
        if recipe.validation:
            return documents_of(model, recipe.validation, recipe.text_field)
        corpus = open_corpus(recipe.corpus, text_field=recipe.text_field)
        documents = corpus.documents("held-out")
        return islice(documents, recipe.eval_rows) if corpus.streams else documents
    corpus = open_corpus(text, text_field=text_field or "text")
    return corpus.documents(validation_split(corpus))


@torch.no_grad()
def score_text(model: Any, tokenizer: Any, documents: Iterable[str], *, context: int) -> TextScore:
    """Every token but a document's first is predicted once, from at most `context` tokens of its document before it."""
    if context < 1:
        raise ValueError(f"context must be at least 1, got {context}")
    nats, tokens, size, count = 0.0, 0, 0, 0

    def windows() -> Iterator[Tensor]:
        nonlocal size, count
        for text in documents:
            ids = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"], dtype=torch.long, device="cpu")
            if not len(ids):
                continue
            size += len(text.encode())
            count += 1
            # neighbours share a token: the last one predicted by a window is the first one of the next
            for start in range(0, max(len(ids) - 1, 1), context):
                yield ids[start : start + context + 1]

    rest = windows()
    while batch := list(islice(rest, max(TOKENS_AT_ONCE // (context + 1), 1))):
        inputs = {name: tensor.to(model.device) for name, tensor in DocumentRows.collate(batch).items()}
        nats += model(**inputs, use_cache=False, num_items_in_batch=1).loss.item()
        tokens += sum(len(window) - 1 for window in batch)
    if not tokens:
        raise ValueError("the text is too short: there is no token to predict")
    loss = nats / tokens
    code = nats + count * math.log(model.config.vocab_size)
    return TextScore(loss, math.exp(min(loss, 700)), code / math.log(2) / size, tokens, size, count)
