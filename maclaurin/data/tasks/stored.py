"""Datasets as tasks: digits without a download, and CIFAR-10, IMDB and AAN from a folder or the hub.

Nothing is unpickled: CIFAR-10 is read from its binary version, from images or from parquet.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from maclaurin.common.arguments import at_least_one
from maclaurin.common.hub import from_hub
from maclaurin.data.tasks.base import Labelled, StoredTask
from maclaurin.data.tasks.registry import register

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Integers = np.ndarray[Any, np.dtype[np.int64]]

CIFAR_ROW = 1 + 3 * 32 * 32  # bytes: a label and three planes
GREY = np.array([0.2989, 0.5870, 0.1140])  # of red, green and blue


@dataclass(frozen=True)
class Pictures:
    pixels: Bytes  # (N, height, width)
    labels: Integers  # (N,)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, chosen: Integers) -> Labelled:
        return Labelled(torch.from_numpy(self.pixels[chosen]), torch.from_numpy(self.labels[chosen]))


class Texts:
    """Documents as bytes one after the other, cut to `length`; padded only when they are taken."""

    def __init__(self, documents: Iterable[tuple[Sequence[str], int]], length: int) -> None:
        parts: list[bytes] = []
        labels: list[int] = []
        self.each = 1  # documents per example
        for texts, label in documents:
            self.each = len(texts)
            parts += [text.encode()[:length] for text in texts]
            labels.append(label)
        self.length = length
        self.labels = np.array(labels)
        self.data = np.frombuffer(b"".join(parts) + bytes(length), np.uint8)  # padded, so that no window ends outside
        self.lengths = np.array([len(part) for part in parts])
        self.begins = self.lengths.cumsum() - self.lengths

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, chosen: Integers) -> Labelled:
        documents = chosen[:, None] * self.each + np.arange(self.each)
        position = np.arange(self.length)
        tokens = 1 + self.data[self.begins[documents][..., None] + position].astype(np.int64)
        tokens[position >= self.lengths[documents][..., None]] = 0
        lengths = self.lengths[documents]
        if self.each == 1:
            tokens, lengths = tokens[:, 0], lengths[:, 0]
        return Labelled(torch.from_numpy(tokens), torch.from_numpy(self.labels[chosen]), torch.from_numpy(lengths))


@dataclass(frozen=True)
class Digits(StoredTask):
    """Handwritten digits, 1,797 images of 8x8 pixels with values 0 … 16 (UCI; comes with scikit-learn, no download).

    Every fifth image is for testing. Training and test images come from the same writers.
    """

    split: str = "train"
    splits: ClassVar[Sequence[str]] = ("train", "test")

    @property
    def vocab_size(self) -> int:
        return 17

    @property
    def num_classes(self) -> int:
        return 10

    def load(self) -> Pictures:
        try:
            from sklearn.datasets import load_digits
        except ImportError:
            raise ImportError("the digits come with scikit-learn: pip install 'maclaurin[eval]'") from None
        pixels, labels = load_digits(return_X_y=True)
        chosen = (np.arange(len(labels)) % 5 == 4) == (self.split == "test")
        return Pictures(pixels[chosen].reshape(-1, 8, 8).astype(np.uint8), labels[chosen].astype(np.int64))


@dataclass(frozen=True)
class CIFAR10(StoredTask):
    """CIFAR-10 in grey, 32x32 pixels with values 0 … 255: flattened, the Long Range Arena's sequences of 1024 tokens.

    `source` is a folder with the binary version (data_batch_1.bin …, test_batch.bin), with parquet files or with images
    (train/CLASS/*.png, test/CLASS/*.png), or a dataset of the hub. Grey is 0.2989 red + 0.587 green + 0.114 blue,
    rounded. As in the Arena, the last tenth of the 50,000 training images is for validation.
    """

    source: str = "uoft-cs/cifar10"
    split: str = "train"

    @property
    def vocab_size(self) -> int:
        return 256

    @property
    def num_classes(self) -> int:
        return 10

    def load(self) -> Pictures:
        part = "test" if self.split == "test" else "train"
        pattern = "test_batch.bin" if part == "test" else "data_batch_*.bin"
        binaries = sorted(Path(self.source).rglob(pattern))
        pixels, labels = _cifar_binaries(binaries) if binaries else _cifar_rows(self.source, part)
        cut = len(labels) - len(labels) // 10
        kept = {"train": slice(cut), "validation": slice(cut, None), "test": slice(None)}[self.split]
        return Pictures((pixels[kept] @ GREY).round().astype(np.uint8), labels[kept])


class _BytesOfTexts(StoredTask):
    """Yes or no about texts of at most `length` bytes. Tokens are 1 + byte, 0 pads."""

    length: int

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one("length", self.length)

    @property
    def vocab_size(self) -> int:
        return 257

    @property
    def num_classes(self) -> int:
        return 2


@dataclass(frozen=True)
class IMDB(_BytesOfTexts):
    """Film reviews, byte by byte: is the opinion good (1) or bad (0)? The Long Range Arena's Text.

    `source` is a folder with train/pos/*.txt, train/neg/*.txt and the same for test, a folder of parquet files, or a
    dataset of the hub, with fields text and label. Reviews are cut to `length` bytes. There is no validation part: the
    Arena validates on the test part.
    """

    source: str = "stanfordnlp/imdb"
    split: str = "train"
    length: int = 4000
    splits: ClassVar[Sequence[str]] = ("train", "test")

    def load(self) -> Texts:
        folder = Path(self.source) / self.split
        if (folder / "pos").is_dir() and (folder / "neg").is_dir():
            labelled = [
                (file, label) for label, name in enumerate(("neg", "pos")) for file in sorted((folder / name).glob("*.txt"))
            ]
            documents = (((file.read_text(encoding="utf-8"),), label) for file, label in labelled)
        else:
            documents = (((row["text"],), int(row["label"])) for row in _rows(self.source, self.split, ("text", "label")))
        return _not_empty(Texts(documents, self.length), self.source, self.split)


@dataclass(frozen=True)
class AAN(_BytesOfTexts):
    """Two papers, byte by byte: does one cite the other? The Long Range Arena's Retrieval (Radev et al. 2013).

    `source` is the folder of the Arena's release with …train.tsv, …eval.tsv and …test.tsv, whose lines are label, two
    ids and two texts. Inputs are (N, 2, length), each text cut to `length` bytes on its own.
    """

    source: str
    split: str = "train"
    length: int = 4000

    def load(self) -> Texts:
        name = {"train": "train", "validation": "eval", "test": "test"}[self.split]
        files = sorted(Path(self.source).rglob(f"*{name}.tsv"))
        if not files:
            raise ValueError(
                f"source {self.source!r} holds no file that ends in {name}.tsv: give the folder of the Arena's release"
            )
        return _not_empty(Texts(_pairs(files), self.length), self.source, self.split)


def _pairs(files: Sequence[Path]) -> Iterator[tuple[tuple[str, str], int]]:
    for file in files:
        with open(file, encoding="utf-8", errors="replace", newline="\n") as lines:
            for number, line in enumerate(lines, 1):
                fields = line.rstrip("\n").split("\t")
                if len(fields) != 5:
                    raise ValueError(
                        f"{file} must have five fields per line (label, two ids, two texts), line {number} has {len(fields)}"
                    )
                yield (fields[3], fields[4]), int(float(fields[0]))


def _not_empty(texts: Texts, source: str, split: str) -> Texts:
    if not len(texts):
        raise ValueError(f"source {source!r} has no example in its {split} part")
    return texts


def _cifar_binaries(files: Sequence[Path]) -> tuple[Bytes, Integers]:
    """Pixels (N, 32, 32, 3) and labels."""
    for file in files:
        if file.stat().st_size % CIFAR_ROW:
            raise ValueError(
                f"{file} must be whole images of {CIFAR_ROW} bytes, its size is {file.stat().st_size}: fetch it again"
            )
    data = np.concatenate([np.fromfile(file, np.uint8) for file in files]).reshape(-1, CIFAR_ROW)
    return data[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), data[:, 0].astype(np.int64)


def _cifar_rows(source: str, split: str) -> tuple[Bytes, Integers]:
    from PIL import Image

    pixels, labels = [], []
    for row in _rows(source, split, ("label",)):
        picture: Any = row["img"] if "img" in row else row["image"]
        if isinstance(picture, dict):  # parquet that does not say that these bytes are an image
            picture = Image.open(io.BytesIO(picture["bytes"]))
        pixels.append(np.asarray(picture.convert("RGB")))
        labels.append(int(row["label"]))
    return np.stack(pixels), np.array(labels)


def _rows(source: str, split: str, fields: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of a folder, read as a stream, or of a dataset of the hub, from its cache."""
    try:
        from datasets import load_dataset
    except ImportError:
        raise ImportError("parquet files and the hub need datasets: pip install 'maclaurin[eval]'") from None
    is_folder = Path(source).is_dir()
    if not is_folder and (source.count("/") != 1 or source.startswith((".", "/", "~"))):
        raise ValueError(f"source {source!r} is no folder here and no owner/name of the hub")
    with nullcontext() if is_folder else from_hub(f"source {source!r}"):
        rows = load_dataset(source, split=split, streaming=is_folder)
    for row in rows:
        missing = [field for field in fields if field not in row]
        if missing:
            raise ValueError(f"source {source!r} has rows without {', '.join(missing)}; their fields are {', '.join(row)}")
        yield row


register("digits", Digits, "handwritten digits, 8x8 pixels")
register("cifar10", CIFAR10, "objects in grey, 32x32 pixels")
register("imdb", IMDB, "is a film review good or bad, byte by byte")
register("aan", AAN, "does one paper cite the other, byte by byte")
