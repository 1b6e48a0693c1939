"""Batches for a conversion, by the kind of its source: sentences, packed sequences or images; for training and validation.

Sentences come from a corpus of `maclaurin.data`. Of Python sources (`stdlib`) they are those of docstrings and comments, of
other texts those of the text itself. Their batches have hardly any padding.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from maclaurin.convert.sources import Source
from maclaurin.data import PackedRows, TokenFile, open_corpus, tokenise
from maclaurin.data.corpus import Corpus, StandardLibrary, held_out, sample
from maclaurin.training.conversion import Plan

FEWEST_WORDS = 4
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`'\"(])|\n\s*\n")
COMMENT = re.compile(r"(?:^[ \t]*#[^\n]*\n)+", re.MULTILINE)
LANGUAGE_REFERENCE = "topics = "  # pydoc's file: the language reference as one dictionary of strings
FEWEST = 3  # validation images
IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Data:
    """tokens_per_step: in a training batch, without padding; the mean where batches differ."""

    train: Dataset[Batch] | Sequence[Batch]
    validation: Sequence[Batch]
    tokens_per_step: int


def load_data(source: Source, plan: Plan) -> Data:
    if plan.accumulate > 1 and not source.causal:
        raise ValueError(f"accumulate needs a decoder, whose sequences are all of one length, got {plan.accumulate}")
    if source.kind == "vision":
        return _images(source, plan)
    tokenizer = source.processor()
    corpus = open_corpus(plan.corpus, text_field=plan.text_field)
    if source.kind == "encoder":
        train, validation = (sentences(corpus, split) for split in ("train", "held-out"))
        longest = min(plan.max_length, source.config.max_position_embeddings)
        batches, validation_batches = (
            sentence_batches(tokenizer, texts, batch_size=plan.batch_size, max_length=longest)
            for texts in (train, _sample(validation, plan.eval_rows))
        )
        tokens = sum(int(batch["attention_mask"].sum()) for batch in batches)
        return Data(batches, validation_batches, tokens // len(batches))
    own = source.kind == "maclaurin"
    at_once = plan.batch_size // plan.accumulate
    steps = {"train": plan.transfer_steps + plan.recover_steps, "held-out": -(-plan.eval_rows // plan.batch_size)}
    packed_train, packed_validation = (
        PackedBatches(PackedRows(_tokens(corpus, split, tokenizer, rows * plan.max_length), plan.max_length), at_once, own)
        for split, rows in ((split, max(1, number) * plan.batch_size) for split, number in steps.items())
    )
    count = max(1, min(plan.eval_rows // at_once, len(packed_validation)))
    return Data(packed_train, [packed_validation[index] for index in range(count)], plan.batch_size * plan.max_length)


def _tokens(corpus: Corpus, split: str, tokenizer: Any, most: int) -> TokenFile:
    """All of a split, or as many tokens as are needed of a corpus that streams."""
    return (
        tokenise(corpus, split, tokenizer, tokens=most).first(most) if corpus.streams else tokenise(corpus, split, tokenizer)
    )


def _sample(items: Sequence[str], count: int) -> list[str]:
    """A fixed random sample, in the original order."""
    chosen = torch.randperm(len(items), generator=torch.Generator().manual_seed(0), device="cpu")[:count]
    return [items[index] for index in sorted(chosen.tolist())]


class PackedBatches(Dataset[Batch]):
    """Batches of packed sequences of a fixed length, with document boundaries for this project's own models."""

    def __init__(self, sequences: PackedRows, batch_size: int, own: bool) -> None:
        if len(sequences) < batch_size:
            length = sequences.length
            raise ValueError(
                f"the corpus has {len(sequences)} sequences of {length} tokens, fewer than batch_size {batch_size}"
            )
        self.sequences, self.batch_size, self.own = sequences, batch_size, own

    def __len__(self) -> int:
        return len(self.sequences) // self.batch_size

    def __getitem__(self, index: int) -> Batch:
        # the sequences of a batch come from all over the corpus
        items = [self.sequences[index + number * len(self)] for number in range(self.batch_size)]
        if self.own:
            return PackedRows.collate(items)
        ids = torch.stack([item["input_ids"] for item in items])
        return {"input_ids": ids, "labels": ids}


def _images(source: Source, plan: Plan) -> Data:
    from PIL import Image

    folder = Path(plan.corpus)
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in IMAGES) if folder.is_dir() else []
    if not files:
        raise ValueError(f"a vision model is converted with images: corpus must be a folder of them, got {plan.corpus!r}")
    processor: Any = source.processor()
    parts: dict[bool, list[Path]] = {False: [], True: []}
    for file in files:
        parts[held_out(file.name)].append(file)
    if len(parts[True]) < FEWEST or not parts[False]:
        cut = max(FEWEST, len(files) // 20)
        parts = {True: files[:cut], False: files[cut:]}

    def batches(chosen: list[Path]) -> list[Batch]:
        groups = [chosen[start : start + plan.batch_size] for start in range(0, len(chosen), plan.batch_size)]
        return [
            {"pixel_values": _pixels(processor, [Image.open(file).convert("RGB") for file in group])} for group in groups
        ]

    patches = (source.config.image_size // source.config.patch_size) ** 2
    return Data(batches(parts[False]), batches(parts[True][: plan.eval_rows]), plan.batch_size * (patches + 1))


def _pixels(processor: Any, images: list[Any]) -> Tensor:
    pixels: Tensor = processor(images=images, return_tensors="pt")["pixel_values"]
    return pixels


def sentences(corpus: Corpus, split: str) -> list[str]:
    """The distinct sentences of a split, in the order of the corpus."""
    is_code = isinstance(corpus, StandardLibrary)
    found: dict[str, None] = {}
    for document in sample(corpus, split):
        for text in _prose(document) if is_code else (document,):
            found.update(dict.fromkeys(_sentences(text)))
    if not found:
        raise ValueError(f"corpus {corpus.name!r} has no sentence of {FEWEST_WORDS} words in its {split} part")
    return list(found)


def _sentences(text: str) -> Iterator[str]:
    for piece in SENTENCE_END.split(text):
        words = piece.split()
        letters = sum(map(str.isalpha, piece))
        if len(words) >= FEWEST_WORDS and 2 * letters > len(piece):  # rulers, tables and code are not sentences
            yield " ".join(words)


def _prose(source: str) -> Iterator[str]:
    """Docstrings, comments, and the long strings of pydoc's language reference."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return  # not all files of the library parse in this version of Python
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
    """Batches of sentences of similar length, so that few tokens are padding; shuffled if a seed is given."""
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
