"""Whether all weights of a model came from its folder: missing ones are never initialised at random, but for a new head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn
from transformers.utils import logging

from maclaurin.common.files import LONGEST_REASON, read_json
from maclaurin.models.checked import CONFIG, stays_inside

NAMED = 5  # weights that an error names


def load_whole(loader: Any, folder: Path, *, unused: Callable[[str], bool] = lambda name: False, **options: Any) -> Any:
    """As `loader.from_pretrained`, from safetensors here. unused: whether a weight, by name, may be missing."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # one sentence below instead of its table
    try:
        model, info = loader.from_pretrained(
            folder,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are in the report, which is checked below
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            **options,
        )
    finally:
        logging.set_verbosity(verbosity)
    lost = sorted(name for name in info["missing_keys"] if not unused(name))
    if lost:
        raise ValueError(f"{folder} lacks {_named(lost)}: its weights are not all there")
    if others := sorted(name for name, *_ in info["mismatched_keys"]):
        raise ValueError(
            f"{folder} does not fit this configuration: it has other shapes than its config.json says for {_named(others)}"
        )
    return model


def saved_classes(source: str | Path, subfolder: str = "") -> list[str]:
    """The names of the classes whose weights a folder holds, as its config.json has them; [] where it is not here."""
    folder = Path(source) / subfolder
    if not (folder / CONFIG).is_file():
        return []
    stays_inside(folder, folder / CONFIG)
    names = read_json(folder / CONFIG).get("architectures")
    return names if isinstance(names, list) else []


def check_fit(model: Any, info: dict[str, Any], *, same_class: bool, may_differ: bool) -> None:
    """Refuses what transformers reports of a load, but for the head of another class.

    may_differ: heads and embeddings may have other shapes as well. Layers may not: they are initialised as they are built,
    and a model that is loaded is not.
    """
    base = model.base_model
    parts = {name for name, _ in base.named_children()}

    def of_a_head(name: str) -> bool:
        """Names in the base model begin with that of one of its parts, in a model around it with the base model's."""
        return not name.startswith(f"{model.base_model_prefix}.") and (base is not model or name.split(".")[0] not in parts)

    def is_new(name: str) -> bool:
        return of_a_head(name) or isinstance(model.get_submodule(name.rpartition(".")[0]), nn.Embedding)

    allowed = {
        "missing": lambda name: not same_class and of_a_head(name),
        "mismatched": lambda name: may_differ and is_new(name),
        "unexpected": lambda name: not same_class and of_a_head(name),
    }
    for kind, may in allowed.items():
        names = sorted(name if isinstance(name, str) else name[0] for name in info.get(f"{kind}_keys") or ())
        if found := [name for name in names if not may(name)]:
            raise ValueError(f"the checkpoint does not fit this configuration: {len(found)} {kind} keys, such as {found[0]}")


def check_generation_config(model: Any, folder: Path) -> None:
    """Refuses what transformers would refuse to save, before there is anything to save."""
    generation = getattr(model, "generation_config", None)
    if generation is None:
        return
    try:
        generation.validate(strict=True)
    except ValueError as error:
        reason = " ".join(str(error).split()).removeprefix("GenerationConfig is invalid: ")
        raise ValueError(f"{folder / 'generation_config.json'} contradicts itself: {reason[:LONGEST_REASON]}") from error


def _named(weights: list[str]) -> str:
    more = f" and {len(weights) - NAMED} more" if len(weights) > NAMED else ""
    return ", ".join(weights[:NAMED]) + more
