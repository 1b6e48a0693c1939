"""What the cache of tokens holds, and how entries leave it: only folders that the cache has made, and none in use."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from maclaurin.common.files import read_json
from maclaurin.data.corpus import SPLITS
from maclaurin.data.entry import FILES, GROWING, META, discard
from maclaurin.data.halves import HALVES
from maclaurin.data.partial_entry import lock_file, used_file
from maclaurin.processes.lock import exclusive

# what a killed process was removing has a dot and a number of its own around its name
SPLIT = "|".join((*SPLITS, *HALVES))
NAME = re.compile(rf"\.?(?P<name>.*)-(?P<split>{SPLIT})-(?P<key>[0-9a-f]{{16}})(\.[0-9a-f]{{16}})*", re.DOTALL)


@dataclass(frozen=True)
class CacheEntry:
    """used: when it was last used, in seconds since 1970. complete: whether it has all of its corpus."""

    folder: Path
    corpus: str
    split: str
    nbytes: int
    used: float
    complete: bool


def entries(cache: Path) -> list[CacheEntry]:
    """By their last use, oldest first. Whatever else is in the folder is passed over."""
    found = (_entry(folder) for folder in cache.iterdir()) if cache.is_dir() else ()
    return sorted((entry for entry in found if entry is not None), key=lambda entry: entry.used)


def _entry(folder: Path) -> CacheEntry | None:
    match = NAME.fullmatch(folder.name)
    if match is None or folder.is_symlink() or not folder.is_dir():
        return None
    try:
        complete = (folder / META).exists()
        key = read_json(folder / (META if complete else GROWING)).get("key")
        files = [file for file in folder.iterdir() if file.name in FILES]
        nbytes = sum(file.stat().st_size for file in files)
        used = max(file.stat().st_mtime for file in (used_file(folder), *files) if file.exists())
    except (OSError, ValueError):
        return None  # it is not from here, or it is just being removed
    made_here = isinstance(key, str) and key[:16] == match["key"]
    return CacheEntry(folder, match["name"], match["split"], nbytes, used, complete) if made_here else None


def remove(entry: CacheEntry) -> bool:
    """False where a process uses it."""
    with exclusive(used_file(entry.folder)) as free:
        if not free:
            return False
        try:
            discard(entry.folder)
        except OSError:  # Windows: a file of it is open
            return False
        for file in (used_file(entry.folder), lock_file(entry.folder)):
            with suppress(OSError):
                file.unlink()
    return True


def shrink(cache: Path, most: int) -> list[CacheEntry]:
    """Remove entries, those first that have not been used for longest, until all have at most so many bytes together. Gives
    those that were removed.
    """
    left = entries(cache)
    total = sum(entry.nbytes for entry in left)
    removed = []
    for entry in left:
        if total > most and remove(entry):
            removed.append(entry)
            total -= entry.nbytes
    return removed
