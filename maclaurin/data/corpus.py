"""Where text comes from: documents, split by their content alone into "train" and "held-out", which is for validation;
"all" has both, where the validation text is another one.

`stdlib`, the default, needs no download: the source of the running Python's own standard library. Files and folders are
streamed by `datasets`, never loaded whole; so is any dataset of the hub.
"""

from __future__ import annotations

import hashlib
import json
import sys
import sysconfig
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from maclaurin.common.arguments import one_of
from maclaurin.common.hub import from_hub

SPLITS = ("train", "held-out", "all")
HELD_OUT = 0.05  # share of the files or documents
READERS = {".jsonl": "json", ".parquet": "parquet"}  # by which `datasets` reads them
SUFFIXES = (".txt", *READERS)
# characters: all of a longer .txt file is read, as documents of about this length that end where lines do. So text is split
# into parts and tokenised document by document, however large its file is
LONGEST_TEXT = 2**20
LONGEST_WAIT = 2**30  # bytes: files that are larger together are tokenised beside training, not before it

SAMPLE = 2**24  # characters of a corpus that streams, where something is made of all of a text

# name -> (dataset, configuration, field of the text)
HUB_PRESETS = {
    "fineweb": ("HuggingFaceFW/fineweb", "CC-MAIN-2024-51", "text"),
    "pile": ("EleutherAI/the_pile_deduplicated", None, "text"),
    "slimpajama": ("cerebras/SlimPajama-627B", None, "text"),
}


class Corpus(ABC):
    """Documents by split, and a fingerprint of everything that determines them: content, and how it is read and split."""

    name: str
    streams: bool = False  # too large, perhaps without an end, to be read before training

    @abstractmethod
    def documents(self, split: str) -> Iterator[str]:
        """The documents of "train", "held-out" or "all", in an order that never changes."""

    @abstractmethod
    def fingerprint(self) -> str: ...


def open_corpus(spec: str, *, text_field: str = "text") -> Corpus:
    """`stdlib`, a file, a folder of .txt, .jsonl or .parquet, a preset (fineweb, pile, slimpajama) or any hub dataset."""
    if spec == "stdlib":
        return StandardLibrary()
    if spec in HUB_PRESETS:
        return HubDataset(*HUB_PRESETS[spec])
    path = Path(spec)
    if path.exists():
        return LocalFiles(path, text_field)
    looks_like_a_file = path.suffix in SUFFIXES or spec.startswith((".", "/", "~"))
    if looks_like_a_file or spec.count("/") != 1:
        presets = ", ".join(HUB_PRESETS)
        raise ValueError(
            f"corpus {spec!r} is no file or folder here, not 'stdlib', no preset ({presets}) and no owner/name of the hub"
        )
    return HubDataset(spec, None, text_field)


def held_out(key: str) -> bool:
    """Whether the document of this key belongs to the validation part: a fixed share, by hash."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) < HELD_OUT * 2**64


def belongs(key: str, split: str) -> bool:
    return split == "all" or held_out(key) == (split == "held-out")


def beginning(documents: Iterable[str], characters: float) -> Iterator[str]:
    """The first documents, up to the one with which they have so many characters."""
    for text in documents:
        yield text
        characters -= len(text)
        if characters <= 0:
            return


def sample(corpus: Corpus, split: str) -> Iterator[str]:
    """The documents of a split; of a corpus that streams, those of about its first 2^24 characters."""
    documents = corpus.documents(split)
    return beginning(documents, SAMPLE * (HELD_OUT if split == "held-out" else 1)) if corpus.streams else documents


def validation_split(corpus: Corpus) -> str:
    """The split of a corpus that is for validation alone: all of a file or folder, the held-out part of others."""
    return "all" if isinstance(corpus, LocalFiles) else "held-out"


class StandardLibrary(Corpus):
    """The .py files of the standard library, without its tests. Split by file."""

    name = "stdlib"

    def __init__(self) -> None:
        self.root = Path(sysconfig.get_paths()["stdlib"])
        left_out = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
        paths = (path.relative_to(self.root) for path in self.root.rglob("*.py"))
        self.paths = sorted((path for path in paths if not left_out & set(path.parts)), key=str)
        if not self.paths:
            raise ValueError(f"this Python has no source files of its standard library in {self.root}: give another corpus")

    def documents(self, split: str) -> Iterator[str]:
        one_of("split", split, SPLITS)
        for path in self.paths:
            if belongs(path.as_posix(), split):
                yield (self.root / path).read_text(encoding="utf-8", errors="replace")

    def fingerprint(self) -> str:
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        # the split depends on a file's path in the library
        return _digest([HELD_OUT], {path.as_posix(): self.root / path for path in self.paths})


class LocalFiles(Corpus):
    """A file, or the .txt, .jsonl and .parquet files of a folder; the last two hold one document per row. Split by content,
    or, where that would leave one part empty, by cutting off the end of every document.
    """

    def __init__(self, path: Path, text_field: str) -> None:
        self.path = path
        self.text_field = text_field
        self.name = path.name
        # a file that is given by name is read whatever its suffix
        self.files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES)
        if not self.files:
            raise ValueError(f"corpus {str(path)!r} holds no {', '.join(SUFFIXES)} file")
        self.streams = sum(file.stat().st_size for file in self.files) > LONGEST_WAIT
        self._told = False

    def documents(self, split: str) -> Iterator[str]:
        one_of("split", split, SPLITS)
        few = split != "all" and self._few()
        for text in self._everything():
            if few:
                cut = int(len(text) * (1 - HELD_OUT))
                yield text[cut:] if split == "held-out" else text[:cut]
            elif belongs(text, split):
                yield text

    def _everything(self) -> Iterator[str]:
        for file in self.files:
            texts = self._rows(file) if file.suffix in READERS else self._cut(file)
            yield from (text for text in texts if text.strip())

    def _cut(self, file: Path) -> Iterator[str]:
        for place, text in enumerate(_text_documents(file)):
            if place == 1 and text and not self._told:
                self._told = True
                print(
                    f"maclaurin: {file} has more than {LONGEST_TEXT:,} characters: all of it is read, and of any other that "
                    "long, as several documents of about this length that end where lines do",
                    file=sys.stderr,
                )
            yield text

    def _few(self) -> bool:
        """Whether all documents fall into one part: then the end of each document is the validation part."""
        parts: set[bool] = set()
        for text in self._everything():
            parts.add(held_out(text))
            if len(parts) == 2:
                return False
        if not parts:
            raise ValueError(f"corpus {str(self.path)!r} holds no text")
        return True

    def _rows(self, file: Path) -> Iterator[str]:
        from datasets import load_dataset

        for row in load_dataset(READERS[file.suffix], data_files=str(file), split="train", streaming=True):
            yield _text(row, self.text_field, str(file))

    def fingerprint(self) -> str:
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        # of a file's name only the suffix counts, by which it is read: a corpus may be moved
        files = {f"{place}{file.suffix}": file for place, file in enumerate(self.files)}
        return _digest([HELD_OUT, LONGEST_TEXT, self.text_field], files)


class HubDataset(Corpus):
    """A dataset of the Hugging Face hub, streamed. Its own test split is the validation part where it has one, which never
    is in "all".
    """

    streams = True

    def __init__(self, dataset: str, configuration: str | None, text_field: str) -> None:
        self.dataset, self.configuration, self.text_field = dataset, configuration, text_field
        self.name = dataset.split("/")[-1]
        self._title = f"corpus {dataset!r}"

    def documents(self, split: str) -> Iterator[str]:
        one_of("split", split, SPLITS)
        own_test = self._has_test()
        for row in self._rows("test" if own_test and split == "held-out" else "train"):
            text = _text(row, self.text_field, self._title)
            if own_test or belongs(text, split):
                yield text

    def fingerprint(self) -> str:
        return _digest([HELD_OUT, self.dataset, self.configuration, self._revision, self.text_field], {})

    @cached_property
    def _revision(self) -> str:
        """The newest commit, from which the documents come. If the hub cannot be reached this fails at once, where
        `datasets` would retry for half a minute.
        """
        from huggingface_hub import HfApi

        with from_hub(self._title):
            return str(HfApi().dataset_info(self.dataset).sha)

    def _has_test(self) -> bool:
        from datasets import get_dataset_split_names

        revision = self._revision
        with from_hub(self._title):
            return "test" in get_dataset_split_names(self.dataset, self.configuration, revision=revision)

    def _rows(self, part: str) -> Iterator[dict[str, Any]]:
        from datasets import load_dataset

        revision = self._revision
        with from_hub(self._title):
            yield from load_dataset(self.dataset, self.configuration, split=part, streaming=True, revision=revision)


def _text(row: dict[str, Any], field: str, where: str) -> str:
    text = row.get(field)
    if not isinstance(text, str):
        raise ValueError(f"{where} has a row without text in the field {field!r}; its fields are {', '.join(row)}")
    return text


def _text_documents(file: Path) -> Iterator[str]:
    lines: list[str] = []
    size = 0
    with open(file, encoding="utf-8", errors="replace") as stream:
        for line in stream:
            if "\0" in line:
                raise ValueError(f"{file} is no text: it has bytes of value 0")
            lines.append(line)
            size += len(line)
            if size >= LONGEST_TEXT:
                yield "".join(lines)
                lines, size = [], 0
    yield "".join(lines)


def _digest(settings: list[Any], files: Mapping[str, Path]) -> str:
    """A hash of how documents are read, and of the files that they are read from, in order."""
    digest = hashlib.sha256(json.dumps(settings).encode())
    for name, file in files.items():
        with open(file, "rb") as stream:
            digest.update(f"{name}\0".encode())
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()
