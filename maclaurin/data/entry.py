"""A complete cache entry: a folder with tokens.bin (uint16 or uint32), ends.bin (where each document ends) and meta.json
with their sizes and a checksum of all three.

All of it is checked each time that it is opened: SHA-256 takes a second per gigabyte, no more than the fingerprint of the
corpus.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from maclaurin.common.files import read_json, write_json

TOKENS, ENDS, META = "tokens.bin", "ends.bin", "meta.json"
PROGRESS, GROWING = "progress.bin", "growing.json"  # of an entry that is not complete yet
FILES = (TOKENS, ENDS, PROGRESS, META, GROWING)  # in the order in which they are removed: the last ones say what it is
FIELDS = {"key", "dtype", "tokens", "documents", "vocab_size"}
DTYPES = ("uint16", "uint32")


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

    def first(self, tokens: int) -> TokenFile:
        """Of the first tokens only: the last document may lack its end."""
        inside = self.ends[: np.searchsorted(self.ends, tokens)]
        return self if len(self) <= tokens else TokenFile(self.tokens[:tokens], np.append(inside, tokens), self.vocab_size)


def complete(folder: Path, key: str, file: TokenFile) -> None:
    """Write meta.json, after which the entry is complete."""
    meta = {
        "key": key,
        "dtype": file.tokens.dtype.name,
        "tokens": len(file),
        "documents": len(file.ends),
        "vocab_size": file.vocab_size,
    }
    with open(folder / TOKENS, "rb") as tokens, open(folder / ENDS, "rb") as ends:
        write_json(folder / META, meta | {"sha256": checksum(meta, tokens, ends)})


def open_complete(folder: Path, key: str) -> TokenFile | None:
    """The entry, or None where it is missing or not as it was written."""
    try:
        meta = read_json(folder / META)
        expected = meta.pop("sha256", None)
        with open(folder / TOKENS, "rb") as tokens, open(folder / ENDS, "rb") as ends:
            # sizes are compared with those of the files first: nothing larger is ever allocated
            if meta.get("key") != key or not _sizes_fit(meta, tokens, ends) or expected != checksum(meta, tokens, ends):
                return None
            document_ends = np.fromfile(ends, dtype=np.int64)
            if document_ends[-1] != meta["tokens"] or (np.diff(document_ends, prepend=0) < 1).any():
                return None
            return TokenFile(np.memmap(tokens, dtype=meta["dtype"], mode="r"), document_ends, meta["vocab_size"])
    except (OSError, ValueError):
        return None


def discard(folder: Path) -> None:
    """Away by one rename, then removed; it stays valid for processes that have mapped it. Files from elsewhere stay."""
    aside = folder.with_name(f".{folder.name.removeprefix('.')}.{secrets.token_hex(8)}")
    with suppress(FileNotFoundError):
        os.rename(folder, aside)
        for name in FILES:
            (aside / name).unlink(missing_ok=True)
    with suppress(OSError):
        aside.rmdir()


def _sizes_fit(meta: dict[str, Any], tokens: BufferedReader, ends: BufferedReader) -> bool:
    if meta.keys() != FIELDS or meta["dtype"] not in DTYPES:
        return False
    counts = [meta[name] for name in ("tokens", "documents", "vocab_size")]
    if not all(type(count) is int and count > 0 for count in counts):
        return False
    sizes = (counts[0] * np.dtype(meta["dtype"]).itemsize, counts[1] * 8)
    return sizes == (os.fstat(tokens.fileno()).st_size, os.fstat(ends.fileno()).st_size)


def checksum(meta: dict[str, Any], tokens: BufferedReader, ends: BufferedReader) -> str:
    """The checksum of a whole entry; afterwards the files are at their beginning again."""
    digest = hashlib.sha256(json.dumps(meta, sort_keys=True).encode())
    for stream in (tokens, ends):
        digest.update(hashlib.file_digest(stream, "sha256").digest())
        stream.seek(0)
    return digest.hexdigest()
