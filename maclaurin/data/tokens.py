"""Tokenised text on disk: memory-mapped, keyed by content, and never half there.

A cache entry is a folder that appears by one rename once it is complete: tokens.bin (uint16 or uint32), ends.bin (where each
document ends) and meta.json with their sizes. An entry whose files do not have those sizes is built again.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from maclaurin.data.corpus import Corpus

Item = TypeVar("Item")
BATCH = 256  # documents tokenised at a time


@dataclass(frozen=True)
class TokenFile:
    """The tokens of all documents one after the other, each closed by the end of text."""

    tokens: np.ndarray[Any, Any]  # (total,)
    ends: np.ndarray[Any, Any]  # (documents,) int64: where each document ends
    vocab_size: int

    def __len__(self) -> int:
        return len(self.tokens)

    def document(self, index: int) -> np.ndarray[Any, Any]:
        return self.tokens[self.ends[index - 1] if index else 0 : self.ends[index]]


def default_cache() -> Path:
    return Path(os.environ.get("MACLAURIN_CACHE") or Path.home() / ".cache" / "maclaurin") / "tokens"


def tokenise(corpus: Corpus, split: str, tokenizer: Any, cache: Path | None = None) -> TokenFile:
    """The tokens of a split, from the cache if they are there."""
    key = _key(corpus, split, tokenizer)
    folder = (cache or default_cache()) / f"{corpus.name}-{split}-{key[:16]}"
    if not _complete(folder):
        _build(folder, corpus.documents(split), tokenizer, f"tokenising {corpus.name} ({split})")
    return _load(folder)


def _key(corpus: Corpus, split: str, tokenizer: Any) -> str:
    vocabulary = (
        tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    )
    return hashlib.sha256("\0".join((corpus.fingerprint(), split, vocabulary)).encode()).hexdigest()


def _build(folder: Path, documents: Iterable[str], tokenizer: Any, title: str) -> None:
    from rich.console import Console
    from rich.progress import track

    screen = Console(stderr=True)
    if tokenizer.eos_token_id is None:
        raise ValueError("the tokenizer must have an end-of-text token (eos_token): documents are closed by it")
    dtype = np.uint16 if len(tokenizer) <= 2**16 else np.uint32
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}")
    temporary.mkdir()
    try:
        total, ends = 0, []
        with open(temporary / "tokens.bin", "wb") as stream:
            for texts in track(
                in_batches(documents, BATCH), title, console=screen, transient=True, disable=not screen.is_terminal
            ):
                for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]:
                    np.asarray([*ids, tokenizer.eos_token_id], dtype=dtype).tofile(stream)
                    total += len(ids) + 1
                    ends.append(total)
        if not ends:
            raise ValueError(f"{title}: the corpus has no document in this split")
        np.asarray(ends, dtype=np.int64).tofile(temporary / "ends.bin")
        meta = {"dtype": np.dtype(dtype).name, "tokens": total, "documents": len(ends), "vocab_size": len(tokenizer)}
        (temporary / "meta.json").write_text(json.dumps(meta))
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def in_batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of `size` items, and a last one of what is left."""
    items = iter(items)
    while batch := list(islice(items, size)):
        yield batch


def _complete(folder: Path) -> bool:
    try:
        meta = json.loads((folder / "meta.json").read_text())
        expected = {"tokens.bin": meta["tokens"] * np.dtype(meta["dtype"]).itemsize, "ends.bin": meta["documents"] * 8}
        return all((folder / name).stat().st_size == size for name, size in expected.items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _load(folder: Path) -> TokenFile:
    meta = json.loads((folder / "meta.json").read_text())
    tokens = np.memmap(folder / "tokens.bin", dtype=meta["dtype"], mode="r")
    return TokenFile(tokens, np.fromfile(folder / "ends.bin", dtype=np.int64), meta["vocab_size"])
