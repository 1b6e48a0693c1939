"""The files of a published checkpoint, which may come from anybody: nothing is read before its size is known to be sound."""

from __future__ import annotations

import shutil
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from maclaurin.common.files import naming, read_json
from maclaurin.convert.layouts.layout import Described
from maclaurin.convert.thesis import BESIDE
from maclaurin.models.checked import stays_inside, weight_files

FLOATING = ("F16", "BF16", "F32", "F64")


def described_by(folder: Path) -> Described:
    file = folder / "config.json"
    if not file.is_file():
        raise ValueError(f"{str(folder)!r} has no config.json")
    stays_inside(folder, file)
    described: Described = read_json(file)
    return described


def shapes_of(folder: Path) -> dict[str, tuple[int, ...]]:
    """Of every tensor, from the headers of the files. No tensor is in two of them, and all are floating-point numbers."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in weight_files(folder):
        with naming(file), safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - no mapping
                if name in shapes:
                    raise ValueError(f"{file} has {name!r:.80}, which another file of the checkpoint has too")
                part = opened.get_slice(name)
                if part.get_dtype() not in FLOATING:
                    raise ValueError(f"{file} has {name!r:.80} of type {part.get_dtype()}, it must be one of {FLOATING}")
                shapes[name] = tuple(part.get_shape())
    return shapes


def tensors_of(folder: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for file in weight_files(folder):
        with naming(file), safe_open(file, framework="pt") as opened:
            tensors |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    return tensors


def apart(folder: Path, output: Path) -> None:
    if output.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"output {str(output)!r} lies in the folder of the model, which is never written to")


def copy_tokenizer(folder: Path, output: Path) -> None:
    for name in BESIDE:
        if (folder / name).is_file():
            stays_inside(folder, folder / name)
            shutil.copyfile(folder / name, output / name)
