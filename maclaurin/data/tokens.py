"""Tokenised text on disk: memory-mapped, keyed by everything that determines the tokens, never incomplete, never damaged.

A cache entry is a folder that appears by one rename once it is complete: tokens.bin (uint16 or uint32), ends.bin (where each
document ends) and meta.json with their sizes and a checksum of all three. All of it is checked each time that it is
opened: SHA-256 takes a second per gigabyte, no more than the fingerprint of the corpus. An entry that has changed since it
was written is built again. Processes may build the same entry at the same time: all use that of the first.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from maclaurin.common.files import read_json, write_json
from maclaurin.common.progress import counted
from maclaurin.data.corpus import Corpus
from maclaurin.processes.lock import locked

Item = TypeVar("Item")
TOKENS, ENDS, META, LOCK = "tokens.bin", "ends.bin", "meta.json", ".lock"
FIELDS = {"key", "dtype", "tokens", "documents", "vocab_size"}
DTYPES = ("uint16", "uint32")
BATCH = 256  # documents tokenised at a time


@dataclass(frozen=True)
class TokenFile:
    """The tokens of all documents one after the other, each ended by the end-of-text token."""

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
    title = f"tokenising {corpus.name} ({split})"
    return _open(folder, key) or _build(folder, key, corpus.documents(split), tokenizer, title)


def _key(corpus: Corpus, split: str, tokenizer: Any) -> str:
    if tokenizer.is_fast:
        rules = tokenizer.backend_tokenizer.to_str()
    else:
        options = {name: str(value) for name, value in tokenizer.init_kwargs.items()}
        rules = json.dumps([type(tokenizer).__name__, tokenizer.get_vocab(), options], sort_keys=True)
    ends = json.dumps([tokenizer.eos_token_id, len(tokenizer), bool(getattr(tokenizer, "split_special_tokens", False))])
    return hashlib.sha256("\0".join((corpus.fingerprint(), split, ends, rules)).encode()).hexdigest()


def _build(folder: Path, key: str, documents: Iterable[str], tokenizer: Any, title: str) -> TokenFile:
    if tokenizer.eos_token_id is None:
        raise ValueError("the tokenizer must have an end-of-text token (eos_token), which ends every document")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}")
    temporary.mkdir()
    try:
        _write(temporary, key, documents, tokenizer, title)
        with locked(folder.with_name(LOCK)):
            return _open(folder, key) or _replaced(folder, temporary, key)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write(folder: Path, key: str, documents: Iterable[str], tokenizer: Any, title: str) -> None:
    dtype = np.uint16 if len(tokenizer) <= 2**16 else np.uint32
    total, ends = 0, []
    with open(folder / TOKENS, "wb") as stream:
        for texts in in_batches(counted(documents, title, "documents"), BATCH):
            for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]:
                np.asarray([*ids, tokenizer.eos_token_id], dtype=dtype).tofile(stream)
                total += len(ids) + 1
                ends.append(total)
    if not ends:
        raise ValueError(f"{title}: the corpus has no document in this split")
    np.asarray(ends, dtype=np.int64).tofile(folder / ENDS)
    meta = {
        "key": key,
        "dtype": np.dtype(dtype).name,
        "tokens": total,
        "documents": len(ends),
        "vocab_size": len(tokenizer),
    }
    with open(folder / TOKENS, "rb") as tokens, open(folder / ENDS, "rb") as last:
        write_json(folder / META, meta | {"sha256": _checksum(meta, tokens, last)})


def _replaced(folder: Path, new: Path, key: str) -> TokenFile:
    """The new entry in place of a damaged one, which stays valid for processes that have mapped it."""
    damaged = new.with_name(f"{new.name}.damaged")
    with suppress(FileNotFoundError):
        os.rename(folder, damaged)
    shutil.rmtree(damaged, ignore_errors=True)
    failed: OSError | None = None
    try:
        os.rename(new, folder)
    except OSError as error:  # where files cannot be locked, another process may have been first
        failed = error
    made = _open(folder, key)
    if made is None:
        raise failed or OSError(f"{folder} is not as it was just written: is its disk broken?")
    return made


def in_batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of `size` items, and a last one of what is left."""
    items = iter(items)
    while batch := list(islice(items, size)):
        yield batch


def _open(folder: Path, key: str) -> TokenFile | None:
    """The entry, or None where it is missing or not as it was written."""
    try:
        meta = read_json(folder / META)
        checksum = meta.pop("sha256", None)
        with open(folder / TOKENS, "rb") as tokens, open(folder / ENDS, "rb") as ends:
            # sizes are compared with those of the files first: nothing larger is ever allocated
            if meta.get("key") != key or not _sizes_fit(meta, tokens, ends) or checksum != _checksum(meta, tokens, ends):
                return None
            document_ends = np.fromfile(ends, dtype=np.int64)
            if document_ends[-1] != meta["tokens"] or (np.diff(document_ends, prepend=0) < 1).any():
                return None
            return TokenFile(np.memmap(tokens, dtype=meta["dtype"], mode="r"), document_ends, meta["vocab_size"])
    except (OSError, ValueError):
        return None


def _sizes_fit(meta: dict[str, Any], tokens: BufferedReader, ends: BufferedReader) -> bool:
    if meta.keys() != FIELDS or meta["dtype"] not in DTYPES:
        return False
    counts = [meta[name] for name in ("tokens", "documents", "vocab_size")]
    if not all(type(count) is int and count > 0 for count in counts):
        return False
    sizes = (counts[0] * np.dtype(meta["dtype"]).itemsize, counts[1] * 8)
    return sizes == (os.fstat(tokens.fileno()).st_size, os.fstat(ends.fileno()).st_size)


def _checksum(meta: dict[str, Any], tokens: BufferedReader, ends: BufferedReader) -> str:
    """The checksum of a whole entry; afterwards the files are at their beginning again."""
    digest = hashlib.sha256(json.dumps(meta, sort_keys=True).encode())
    for stream in (tokens, ends):
        digest.update(hashlib.file_digest(stream, "sha256").digest())
        stream.seek(0)
    return digest.hexdigest()
