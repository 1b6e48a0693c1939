"""A trained model and its tokenizer from their folder, or one sentence that says why not."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from maclaurin.models.weights import load_whole


def open_model(folder: str | Path) -> tuple[Any, Any]:
    """The model, ready to run on the best device here, and its tokenizer.

    The folder is that of a run, one of its checkpoints, or anything `save_pretrained` wrote. Only safetensors are read.
    """
    path = Path(folder)
    if not path.is_dir():
        raise ValueError(f"model {str(folder)!r} is no folder here")
    if not (path / "config.json").is_file():
        steps = [int(step) for found in path.glob("checkpoint-*") if (step := found.name.split("-", 1)[1]).isdecimal()]
        hint = f"; its run is not finished, {path / f'checkpoint-{max(steps)}'} is its last checkpoint" if steps else ""
        raise ValueError(f"model {str(folder)!r} has no config.json{hint}")
    disable_progress_bar()
    if json.loads((path / "config.json").read_text()).get("model_type", "").startswith("maclaurin-"):
        import_module("maclaurin.convert")  # makes the Auto classes know converted models
    try:
        model = load_whole(AutoModelForCausalLM, path, trust_remote_code=False).eval()
    except SafetensorError as error:
        raise ValueError(f"model {str(folder)!r} has a broken model.safetensors: {error}") from error
    # a checkpoint's tokenizer is that of its run
    home = next((place for place in (path, path.parent) if (place / "tokenizer_config.json").is_file()), None)
    if home is None:
        raise ValueError(f"model {str(folder)!r} has no tokenizer: save one there with save_pretrained")
    tokenizer = AutoTokenizer.from_pretrained(home, local_files_only=True)
    check_vocabulary(tokenizer, model.config.vocab_size)
    return model.to(best_device()), tokenizer


def check_vocabulary(tokenizer: Any, vocab_size: int) -> None:
    if len(tokenizer) > vocab_size:
        raise ValueError(
            f"the tokenizer has {len(tokenizer)} tokens, more than the {vocab_size} of the model: they do not fit"
        )


def best_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
