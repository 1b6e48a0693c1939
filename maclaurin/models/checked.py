"""A model's folder, checked before `transformers` reads it: it may come from anybody.

Every file that is named lies in the folder, no code that comes with a model is run, weights are safetensors, and a
configuration must match the size of the weights, so that no memory is allocated for made-up sizes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from maclaurin.common.files import naming, read_json

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
DESCRIPTIONS = (
    CONFIG,
    INDEX,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "preprocessor_config.json",
    "processor_config.json",
)
# what transformers would follow out of the folder, into code or to the hub; anywhere in a description
REFUSED = {
    "auto_map": "needs code of its own, which is never run",
    "quantization_config": "has quantised weights, which are not supported",
    "compression_config": "has compressed weights, which are not supported",
    "fusion_config": "asks for fused layers, which are not supported",
    "transformers_weights": "names another file of weights, which is not supported",
}
IMPLEMENTATIONS = ("attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation")
ADAPTER = "adapter_config.json"
LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers", "depths")
DEEPEST = 32
SPARE = 2**24  # parameters that a model may have beyond those of the weights: tables of positions, a new head


def checked_description(folder: Path) -> dict[str, Any]:
    """What config.json says, {} where there is none, once it and all that stands beside it may be read."""
    if (folder / ADAPTER).exists():
        raise ValueError(f"{folder / ADAPTER} makes this an adapter of a model that lies elsewhere: merge and save them")
    found = {}
    for name in DESCRIPTIONS:
        file = folder / name
        if file.is_symlink() or file.exists():
            stays_inside(folder, file)
            found[name] = read_json(file)
            for key, value in _fields(file, found[name]):
                _check_field(file, key, value)
    config: dict[str, Any] = found.get(CONFIG, {})
    if CONFIG in found and not isinstance(config.get("model_type"), str):
        raise ValueError(f"{folder / CONFIG} must name its model_type, got {config.get('model_type')!r:.60}")
    return config


def _fields(file: Path, value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Every key with its value, at any depth."""
    if depth > DEEPEST:
        raise ValueError(f"{file} is nested too deeply to be read")
    if isinstance(value, dict):
        yield from value.items()
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _fields(file, one, depth + 1)


def _check_field(file: Path, key: str, value: Any) -> None:
    if file.name == "tokenizer.json":
        return  # its keys are tokens
    if key in REFUSED and value is not None:
        raise ValueError(f"{file} has the field {key}: the model {REFUSED[key]}")
    if key in IMPLEMENTATIONS and isinstance(value, str) and "/" in value:
        raise ValueError(f"{file} has {key} {value!r:.60}: the model needs code from the hub, which is never run")
    if key == "fast_tokenizer_files":
        for name in value if isinstance(value, list) else (value,):
            _plain_name(file, key, name)


def _plain_name(file: Path, field: str, name: object) -> str:
    if not isinstance(name, str) or not name or name != Path(name).name or "\\" in name or "\0" in name:
        raise ValueError(f"{file} names {name!r:.80} in {field}, which must be a file in the same folder")
    return name


def stays_inside(folder: Path, file: Path) -> None:
    """A link may lead to elsewhere in the folder or, in a cache of the hub, from a snapshot to the blobs of its model."""
    home = folder.resolve()
    places = [home, home.parent.parent / "blobs"] if home.parent.name == "snapshots" else [home]
    if not any(file.resolve().is_relative_to(place) for place in places):
        raise ValueError(f"{file} is a link that leads out of its folder, which is not followed")


def weight_files(folder: Path) -> list[Path]:
    """The safetensors of a model: one file, or those that an index names."""
    if (folder / WEIGHTS).is_file():
        files = [folder / WEIGHTS]
    elif (folder / INDEX).is_file():
        index = folder / INDEX
        places = read_json(index).get("weight_map")
        if not isinstance(places, dict) or not places:
            raise ValueError(f"{index} must have a weight_map of names and files")
        if not isinstance(read_json(index).get("metadata", {}), dict):
            raise ValueError(f"{index} must have an object as metadata")
        files = [folder / name for name in sorted({_plain_name(index, "weight_map", name) for name in places.values()})]
    else:
        raise ValueError(f"model {str(folder)!r} has no {WEIGHTS}: pickled weights are never loaded")
    for file in files:
        if file.suffix != ".safetensors" or not file.is_file():
            raise ValueError(f"{folder / INDEX} names {file.name!r:.80}, which is no .safetensors file in its folder")
        stays_inside(folder, file)
    return files


def held_by(folder: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of the weights, from the headers of their files."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in weight_files(folder):
        with naming(file), safe_open(file, framework="pt") as opened:
            if (opened.metadata() or {}).get("format", "pt") != "pt":
                raise ValueError(f"{file} must be in the format 'pt', got {opened.metadata()['format']!r:.60}")
            shapes |= {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    return shapes


def check_size(folder: Path, described: dict[str, Any], build: Callable[[], nn.Module]) -> None:
    """Refuses a configuration that asks for far more than the weights hold; the model is built on the meta device."""
    held = held_by(folder)
    config = folder / CONFIG
    for name in LAYERS:
        asked = described.get(name)
        for count in asked if isinstance(asked, list) else (asked,):
            if isinstance(count, int) and count > len(held):  # a layer has a tensor at least
                raise ValueError(f"{config} has {name} {count}, the weights hold {len(held)} tensors")
    with naming(config), torch.random.fork_rng(devices=()), torch.device("meta"):
        model = build()
    needed = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    stored = sum(map(math.prod, held.values()))
    if needed > 2 * stored + SPARE:
        raise ValueError(f"{config} asks for a model of {needed:,} numbers, the weights hold {stored:,}")


def load_checked(cls: Any, load: Callable[..., Any], source: str | Path, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """`cls.from_pretrained` as `load`, of a checked folder; the model and the report of what was loaded."""
    kwargs |= {"use_safetensors": True, "trust_remote_code": False, "output_loading_info": True}
    folder = Path(source) / kwargs.get("subfolder", "")
    if not folder.is_dir():  # a name of the hub
        with naming(source):
            return load(source, *args, **kwargs)
    described = checked_description(folder)
    with naming(folder / CONFIG):
        config = kwargs.pop("config", None) or cls.config_class.from_pretrained(folder)
    check_size(folder, described, lambda: cls(copy.deepcopy(config)))
    with naming(folder):
        return load(source, *args, config=config, **kwargs)
