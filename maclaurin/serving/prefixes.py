"""States after prefixes of prompts, found by what the prefixes say: a prompt that begins as an earlier one did goes on from
its state. Exact: a state after tokens is the same whoever reads on from there.

Tokens are hashed block by block, each hash with the one before it, so that one look per block finds the longest prefix. A
prefix may end inside a block; then its last tokens are compared themselves.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from maclaurin.common.arguments import at_least, at_least_one
from maclaurin.models import StateCache

DISK_BYTES = 8 * 2**30
SEEN = 2**16  # hashes of blocks that are remembered, to know which prefixes come again


@dataclass
class Entry:
    """Of a prefix: its last tokens, behind whole blocks, and its state. In memory, on disk, or both."""

    tail: tuple[int, ...]
    nbytes: int
    state: StateCache | None = None
    path: Path | None = None


def fingerprint(model: Any) -> bytes:
    """Of the weights and the configuration: states of one model mean nothing to another. And of the dtypes in which steps
    read states: those behind an output carry their rounding."""
    digest = hashlib.blake2b(model.config.to_json_string(use_diff=False).encode(), digest_size=16)
    digest.update("".join(getattr(module, "state_dtype", "") for module in model.modules()).encode())
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.digest()


class PrefixCache:
    """max_bytes: of states in memory. Beyond that, those unused for longest go to `folder`, if there is one, which holds at
    most max_disk_bytes and is found again by the next process. block: tokens between two looks."""

    def __init__(
        self,
        max_bytes: int,
        block: int = 64,
        folder: str | os.PathLike[str] | None = None,
        max_disk_bytes: int = DISK_BYTES,
    ) -> None:
        at_least(0, "max_bytes", max_bytes)
        at_least_one("block", block)
        at_least(0, "max_disk_bytes", max_disk_bytes)
        self.max_bytes, self.block, self.max_disk_bytes = max_bytes, block, max_disk_bytes
        self.folder = None if folder is None else Path(folder)
        self.nbytes = self.disk_bytes = self.hits = self.misses = self.tokens_reused = 0
        self._entries: OrderedDict[tuple[bytes, tuple[int, ...]], Entry] = OrderedDict()  # unused for longest first
        self._tails: dict[bytes, set[tuple[int, ...]]] = {}  # those of the entries behind each block
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.RLock()
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._find_files()

    def hashes(self, tokens: Sequence[int], salt: bytes) -> list[bytes]:
        """One for every whole block, and that of no block before them. salt: what the states belong to."""
        found, numbers, size = [salt], array("q", tokens).tobytes(), 8 * self.block
        for begin in range(0, len(numbers) - size + 1, size):
            found.append(hashlib.blake2b(found[-1] + numbers[begin : begin + size], digest_size=16).digest())
        return found

    def find(self, tokens: Sequence[int], salt: bytes) -> tuple[int, StateCache | None]:
        """The state after the longest known prefix that leaves a token to read, and how many tokens it has."""
        with self._lock:
            for length, key in self._matching(tokens, self.hashes(tokens, salt)):
                state = self._loaded(key)
                if state is not None:
                    self.hits += 1
                    self.tokens_reused += length
                    return length, state
            self.misses += 1
            return 0, None

    def longest(self, tokens: Sequence[int], salt: bytes) -> int:
        """How many tokens `find` would save."""
        with self._lock:
            return next((length for length, _ in self._matching(tokens, self.hashes(tokens, salt))), 0)

    def _matching(self, tokens: Sequence[int], hashes: list[bytes]) -> Iterator[tuple[int, tuple[bytes, tuple[int, ...]]]]:
        """Entries that are prefixes of the tokens, the longest first."""
        for blocks in reversed(range(len(hashes))):
            begin = blocks * self.block
            fitting = [
                tail
                for tail in self._tails.get(hashes[blocks], ())
                if begin + len(tail) < len(tokens) and tuple(tokens[begin : begin + len(tail)]) == tail
            ]
            for tail in sorted(fitting, key=len, reverse=True):
                yield begin + len(tail), (hashes[blocks], tail)

    def store(self, tokens: Sequence[int], state: StateCache, salt: bytes) -> None:
        """The state after these tokens, which must not change any more. One that alone is over the bounds is not kept."""
        hashed = self.hashes(tokens, salt)[-1]
        tail = tuple(map(int, tokens[len(tokens) // self.block * self.block :]))
        with self._lock:
            key = (hashed, tail)
            if key in self._entries:
                self._entries.move_to_end(key)
                return
            nbytes = state.nbytes
            if nbytes > self.max_bytes:
                return
            self._entries[key] = Entry(tail, nbytes, state)
            self._tails.setdefault(hashed, set()).add(tail)
            self.nbytes += nbytes
            self._make_room()

    def shared(self, tokens: Sequence[int], salt: bytes) -> int:
        """How many tokens, in whole blocks, begin a prompt that was seen before; and from now on this one was."""
        hashes = self.hashes(tokens, salt)[1:]
        with self._lock:
            common = next((place for place, one in enumerate(hashes) if one not in self._seen), len(hashes))
            for one in hashes:
                self._seen[one] = None
                self._seen.move_to_end(one)
            while len(self._seen) > SEEN:
                self._seen.popitem(last=False)
        return common * self.block

    def stats(self) -> dict[str, int]:
        with self._lock:
            return {
                "prefix_hits": self.hits,
                "prefix_misses": self.misses,
                "prefix_tokens_reused": self.tokens_reused,
                "prefix_entries": len(self._entries),
                "prefix_bytes": self.nbytes,
                "prefix_disk_bytes": self.disk_bytes,
            }

    def _loaded(self, key: tuple[bytes, tuple[int, ...]]) -> StateCache | None:
        entry = self._entries[key]
        self._entries.move_to_end(key)
        if entry.state is None and entry.path is not None:
            try:
                entry.state = StateCache.load(entry.path)
            except (OSError, ValueError):  # somebody took it away, or it is damaged: it is computed again
                self._forget(key)
                return None
            self.nbytes += entry.nbytes
            self._make_room()
        return entry.state

    def _make_room(self) -> None:
        """The states unused for longest leave memory, but never the one used last."""
        for key in list(self._entries)[:-1]:
            if self.nbytes <= self.max_bytes:
                return
            entry = self._entries[key]
            if entry.state is None:
                continue
            if self.folder is not None and entry.path is None:
                self._write(key, entry)
            entry.state = None
            self.nbytes -= entry.nbytes
            if entry.path is None:
                self._forget(key)

    def _write(self, key: tuple[bytes, tuple[int, ...]], entry: Entry) -> None:
        assert self.folder is not None and entry.state is not None
        name = key[0].hex() + "".join(f"-{token}" for token in entry.tail)
        if len(name) > 200 or entry.nbytes > self.max_disk_bytes:
            return
        path = self.folder / f"{name}.safetensors"
        try:
            entry.state.save(path)
        except OSError:  # a full disk costs the entry and nothing else
            return
        entry.path = path
        self.disk_bytes += entry.nbytes
        for other_key in list(self._entries):
            if self.disk_bytes <= self.max_disk_bytes:
                return
            other = self._entries[other_key]
            if other.path is not None and other is not entry:
                other.path.unlink(missing_ok=True)
                other.path = None
                self.disk_bytes -= other.nbytes
                if other.state is None:
                    self._forget(other_key)

    def _forget(self, key: tuple[bytes, tuple[int, ...]]) -> None:
        entry = self._entries.pop(key)
        if entry.path is not None:
            self.disk_bytes -= entry.nbytes
        tails = self._tails[key[0]]
        tails.discard(key[1])
        if not tails:
            del self._tails[key[0]]

    def save(self) -> None:
        """All states that are only in memory, for the next process."""
        with self._lock:
            for key, entry in list(self._entries.items()):
                if self.folder is not None and entry.path is None and entry.state is not None:
                    self._write(key, entry)

    def _find_files(self) -> None:
        """What an earlier process left, the oldest first."""
        assert self.folder is not None
        files = [(path.stat().st_mtime, path) for path in self.folder.glob("*.safetensors")]
        for _, path in sorted(files):
            hashed, *tail = path.name.removesuffix(".safetensors").split("-")
            try:
                key = (bytes.fromhex(hashed), tuple(map(int, tail)))
            except ValueError:
                continue
            self._entries[key] = Entry(key[1], path.stat().st_size, None, path)
            self._tails.setdefault(key[0], set()).add(key[1])
            self.disk_bytes += path.stat().st_size


def unshared_salt() -> bytes:
    """For states that stay in this process, with this model."""
    return secrets.token_bytes(16)
