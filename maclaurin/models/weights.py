"""A model whose weights all come from its folder: missing ones are never initialised at random."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers.utils import logging

from maclaurin.common.files import LONGEST_REASON

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
        raise ValueError(f"{folder} has other shapes than its config.json says for {_named(others)}")
    return model


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
