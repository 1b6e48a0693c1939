"""Text for a conversion: sentences for encoders, rows for decoders, in batches that are as good as free of padding.

Sentences come from a corpus of `maclaurin.data`. Of Python sources (`stdlib`) they are those of docstrings and comments, of
other texts those of the text itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from maclaurin.data.corpus import Corpus, StandardLibrary

FEWEST_WORDS = 4
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`'\"(])|\n\s*\n")
COMMENT = re.compile(r"(?:^[ \t]*#[^\n]*\n)+", re.MULTILINE)
LANGUAGE_REFERENCE = "topics = "  # pydoc's file: the language reference as one dictionary of strings

Batch = dict[str, Tensor]


def sentences(corpus: Corpus, split: str) -> list[str]:
    """All different sentences of a split, in the order of the corpus."""
    is_code = isinstance(corpus, StandardLibrary)
    found: dict[str, None] = {}
    for document in corpus.documents(split):
        for text in _prose(document) if is_code else (document,):
            found.update(dict.fromkeys(_sentences(text)))
    if not found:
        raise ValueError(f"corpus {corpus.name!r} has no sentence of {FEWEST_WORDS} words in its {split} part")
    return list(found)


def _sentences(text: str) -> Iterator[str]:
    for piece in SENTENCE_END.split(text):
        words = piece.split()
        letters = sum(map(str.isalpha, piece))
        if len(words) >= FEWEST_WORDS and 2 * letters > len(piece):  # rulers, tables and code are no sentences
            yield " ".join(words)


def _prose(source: str) -> Iterator[str]:
    """Docstrings, comments, and the long strings of pydoc's language reference."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return  # not all files of a library are meant for this version
    whole = LANGUAGE_REFERENCE in source
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
        elif whole and isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
    for comment in COMMENT.findall(source):
        yield "\n".join(line.strip().lstrip("#").strip() for line in comment.splitlines())


def sentence_batches(
    tokenizer: Any, texts: Sequence[str], *, batch_size: int, max_length: int, seed: int | None = None
) -> list[Batch]:
    """Batches of sentences of about one length, so that few tokens are padding; shuffled if a seed is given."""
    ids = tokenizer(list(texts), truncation=True, max_length=max_length, return_attention_mask=False)["input_ids"]
    order = sorted(range(len(ids)), key=lambda index: len(ids[index]))
    batches = [
        tokenizer.pad({"input_ids": [ids[index] for index in order[start : start + batch_size]]}, return_tensors="pt")
        for start in range(0, len(order), batch_size)
    ]
    if seed is not None:
        chosen = torch.randperm(len(batches), generator=torch.Generator().manual_seed(seed), device="cpu")
        batches = [batches[index] for index in chosen.tolist()]
    return [dict(batch) for batch in batches]
