"""A cache entry while it grows, piece by piece, as far as somebody has needed its tokens.

tokens.bin and ends.bin are as in a complete entry. progress.bin has a record for each piece: how many tokens and documents
there are with it, and a SHA-256 of the piece and of the record before it, so that a piece that is cut off or damaged, and
all behind it, count as never written. growing.json says what the entry is. At the end of the corpus both go and meta.json
comes: the entry is then the same as if it had been written at once.

One process writes at a time, and any other goes on where it stopped. Where files have no locks, two that write at once
write the same bytes to the same places.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from maclaurin.common.files import write_json
from maclaurin.common.progress import Status
from maclaurin.data.entry import ENDS, GROWING, META, PROGRESS, TOKENS, TokenFile, complete, discard, open_complete
from maclaurin.processes.lock import locked, shared

RECORD = struct.Struct("<qq32s")  # tokens, documents, SHA-256
FIRST_PIECE, LARGEST_PIECE = 2**14, 2**20  # characters: small ones first, for those who need little


class Growing:
    """`file` has the tokens so far, and `ended` says whether that is all of them. `grow` adds more.

    documents: gives the documents from the first one on, the same ones at each call.
    """

    def __init__(self, folder: Path, key: str, documents: Callable[[], Iterator[str]], tokenizer: Any, title: str) -> None:
        if tokenizer.eos_token_id is None:
            raise ValueError("the tokenizer must have an end-of-text token (eos_token), which ends every document")
        self.folder, self.key, self.title = folder, key, title
        self._documents, self._tokenizer = documents, tokenizer
        self._dtype = np.dtype(np.uint16 if len(tokenizer) <= 2**16 else np.uint32)
        self.use = shared(used_file(folder))  # as long as this is open, nobody removes the entry
        with suppress(OSError):
            os.utime(used_file(folder))
        self._forget()
        self._look()

    def __reduce__(self) -> Any:
        return Growing, (self.folder, self.key, self._documents, self._tokenizer, self.title)

    def grow(
        self, enough: Callable[[TokenFile], bool], *, stopped: Callable[[], bool] = lambda: False, say: bool = True
    ) -> None:
        """Until there is enough, or the corpus has ended, or somebody has stopped it. say: how far it is."""
        if self.ended or enough(self.file):
            return
        with locked(lock_file(self.folder)), Status() if say else nullcontext(_silent) as show:
            self._look()
            if not self.ended and (self.folder / META).exists():
                discard(self.folder)  # it is damaged
            size = FIRST_PIECE
            while not (self.ended or enough(self.file) or stopped()):
                texts = self._next(size)
                if texts:
                    self._write(self._tokenizer(texts, add_special_tokens=False)["input_ids"])
                else:
                    self._end()
                size = min(2 * size, LARGEST_PIECE)
                self._look()
                show(f"{self.title}: {len(self.file):,} tokens")

    def _forget(self) -> None:
        self.file = TokenFile(np.empty(0, self._dtype), np.empty(0, np.int64), len(self._tokenizer))
        self.ended = False
        self._progress = b""
        self._reader: tuple[int, int, Iterator[str]] | None = None  # process, documents read, the rest

    def _look(self) -> None:
        """Take in what is on the disk, and is as it was written."""
        whole = open_complete(self.folder, self.key)
        if whole is not None:
            self.file, self.ended = whole, True
            return
        try:
            progress = (self.folder / PROGRESS).read_bytes()
            with open(self.folder / TOKENS, "rb") as tokens, open(self.folder / ENDS, "rb") as ends:
                known = len(self._progress) if progress.startswith(self._progress) else 0
                progress = progress[: self._right(progress, known, tokens, ends)]
                if progress != self._progress:
                    count, documents, _ = self._last(progress)
                    self._progress = progress
                    mapped = _mapped(tokens, self._dtype, count), _mapped(ends, np.dtype(np.int64), documents)
                    self.file = TokenFile(*mapped, len(self._tokenizer))
        except OSError:
            self._forget()  # there is nothing, or no longer

    def _right(self, progress: bytes, known: int, tokens: BufferedReader, ends: BufferedReader) -> int:
        """How many bytes of the records are right, where so many are known to be."""
        start, first, digest = self._last(progress[:known])
        for record in RECORD.iter_unpack(progress[known : len(progress) - len(progress) % RECORD.size]):
            pieces = _read(tokens, self._dtype, start, record[0]), _read(ends, np.dtype(np.int64), first, record[1])
            if record[2] != _digest(digest, *pieces) or not _in_order(start, pieces[1], record[0]):
                break
            start, first, digest = record
            known += RECORD.size
        return known

    def _last(self, progress: bytes) -> tuple[int, int, bytes]:
        if not progress:
            return 0, 0, hashlib.sha256(self.key.encode()).digest()
        tokens, documents, digest = RECORD.unpack(progress[-RECORD.size :])
        return tokens, documents, digest

    def _next(self, characters: int) -> list[str]:
        """The documents behind those of the entry, of about so many characters."""
        there = len(self.file.ends)
        process, read, rest = self._reader or (os.getpid(), 0, self._documents())
        self._reader = None  # one that fails below is never read again: it would seem to have ended
        if read > there or process != os.getpid():  # a generator of the process that forked this one may be running there
            read, rest = 0, self._documents()
        texts: list[str] = []
        for text in islice(rest, there - read, None):
            texts.append(text)
            characters -= len(text) + 1
            if characters <= 0:
                break
        self._reader = os.getpid(), there + len(texts), rest
        return texts

    def _write(self, documents: list[list[int]]) -> None:
        start, first, before = self._last(self._progress)
        lengths = [len(ids) + 1 for ids in documents]
        ends = start + np.cumsum(lengths, dtype=np.int64)
        tokens = np.full(ends[-1] - start, self._tokenizer.eos_token_id, self._dtype)
        for ids, end in zip(documents, ends, strict=True):
            tokens[end - start - len(ids) - 1 : end - start - 1] = ids
        record = RECORD.pack(ends[-1], first + len(documents), _digest(before, tokens, ends))
        if not (self.folder / GROWING).exists():
            write_json(self.folder / GROWING, {"key": self.key})
        # the record comes last: until then the piece does not count
        _put(self.folder / TOKENS, start * tokens.itemsize, tokens.data)
        _put(self.folder / ENDS, first * ends.itemsize, ends.data)
        _put(self.folder / PROGRESS, len(self._progress), record)

    def _end(self) -> None:
        if not len(self.file.ends):
            raise ValueError(f"{self.title}: the corpus has no document in this split")
        for name, size in ((TOKENS, self.file.tokens.nbytes), (ENDS, self.file.ends.nbytes)):
            if (self.folder / name).stat().st_size != size:  # pieces that were damaged or did not get their record
                os.truncate(self.folder / name, size)
        complete(self.folder, self.key, self.file)
        for name in (PROGRESS, GROWING):
            with suppress(FileNotFoundError):
                (self.folder / name).unlink()
        self._look()
        if not self.ended:
            raise OSError(f"{self.folder} is not as it was just written: is its disk broken?")


def _put(path: Path, place: int, content: bytes | memoryview) -> None:
    try:
        path.touch()
        with open(path, "r+b") as stream:
            stream.seek(place)
            stream.write(content)
    except OSError as error:
        raise OSError(f"{path} could not be written: {error.strerror or error}") from error


def used_file(folder: Path) -> Path:
    """Beside the entry: shared by the processes that use it; its time is that of the last use."""
    return folder.with_name(f".{folder.name}.used")


def lock_file(folder: Path) -> Path:
    """Beside the entry: held by the process that writes it."""
    return folder.with_name(f".{folder.name}.lock")


def _digest(before: bytes, tokens: np.ndarray[Any, Any], ends: np.ndarray[Any, Any]) -> bytes:
    digest = hashlib.sha256(before)
    digest.update(tokens.data)
    digest.update(ends.data)
    return digest.digest()


def _read(stream: BufferedReader, dtype: np.dtype[Any], start: int, stop: int) -> np.ndarray[Any, Any]:
    """Nothing where the file is shorter: no more is ever allocated than it has."""
    if not 0 <= start < stop <= os.fstat(stream.fileno()).st_size // dtype.itemsize:
        return np.empty(0, dtype)
    stream.seek(start * dtype.itemsize)
    return np.fromfile(stream, dtype, stop - start)


def _in_order(start: int, ends: np.ndarray[Any, Any], stop: int) -> bool:
    """Whether documents end one after the other, and the last of them where the piece does."""
    return bool(len(ends) and ends[-1] == stop and (np.diff(ends, prepend=start) > 0).all())


def _mapped(stream: BufferedReader, dtype: np.dtype[Any], count: int) -> np.ndarray[Any, Any]:
    return np.memmap(stream, dtype, "r", shape=(count,)) if count else np.empty(0, dtype)


def _silent(line: str) -> None:
    """For those who grow an entry beside other work."""
