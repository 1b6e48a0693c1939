"""A trained model and its tokenizer from their folder, or one sentence that says why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils.logging import disable_progress_bar

from maclaurin.common.files import naming
from maclaurin.common.hub import DESCRIPTION, WEIGHTS, fetched
from maclaurin.models.checked import check_size, checked_description
from maclaurin.models.weights import load_whole

TRIAL = "a b"


def open_model(folder: str | Path) -> tuple[Any, Any]:
    """The model, ready to run on the best device here, and its tokenizer.

    The folder is that of a run, one of its checkpoints, anything `save_pretrained` wrote, or the owner/name of such a folder
    on the hub. Only safetensors are read.
    """
    path = Path(folder) if Path(folder).is_dir() else _from_hub(str(folder))
    if not (path / "config.json").is_file():
        steps = [int(step) for found in path.glob("checkpoint-*") if (step := found.name.split("-", 1)[1]).isdecimal()]
        hint = f"; its run is not finished, {path / f'checkpoint-{max(steps)}'} is its last checkpoint" if steps else ""
        raise ValueError(f"model {str(folder)!r} has no config.json{hint}")
    disable_progress_bar()
    described = checked_description(path)
    if described["model_type"].startswith("maclaurin-"):
        import maclaurin.models.linearised  # noqa: F401 - makes the Auto classes know them
    with naming(path / "config.json"):
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    if not described["model_type"].startswith("maclaurin"):  # this project's classes look for themselves
        check_size(path, described, lambda: AutoModelForCausalLM.from_config(config, trust_remote_code=False))
    with naming(path):
        model = load_whole(AutoModelForCausalLM, path, config=config).eval()
    # a checkpoint's tokenizer is that of its run
    home = next((place for place in (path, path.parent) if (place / "tokenizer_config.json").is_file()), None)
    if home is None:
        raise ValueError(f"model {str(folder)!r} has no tokenizer: save one there with save_pretrained")
    tokenizer = tokenizer_in(home)
    check_vocabulary(tokenizer, model.config.vocab_size)
    model.generation_config = _special_tokens(path, model)
    return model.to(best_device()), tokenizer


def _from_hub(name: str) -> Path:
    """The folder of a model that the hub has. Its weights are fetched once its description may be read."""
    if name.count("/") != 1:
        raise ValueError(f"model {name!r} is no folder here and no owner/name of the hub")
    path = fetched("model", name, DESCRIPTION)
    if (path / "config.json").is_file():
        checked_description(path)
        path = fetched("model", name, (*DESCRIPTION, WEIGHTS))
        if not any(path.glob(WEIGHTS)):
            raise ValueError(f"model {name!r} has no .safetensors file on the hub, and pickles are never loaded")
    return path


def tokenizer_in(folder: Path) -> Any:
    """The tokenizer of a folder, tried on a text: some files only fail there."""
    checked_description(folder)
    with naming(folder):
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        tokenizer.decode(tokenizer(TRIAL, return_tensors="pt")["input_ids"][0], skip_special_tokens=True)
    return tokenizer


def check_vocabulary(tokenizer: Any, vocab_size: int) -> None:
    if len(tokenizer) > vocab_size:
        raise ValueError(
            f"the tokenizer has {len(tokenizer)} tokens, more than the {vocab_size} of the model: they do not fit"
        )
    largest = max(tokenizer.get_vocab().values(), default=0)
    if largest >= vocab_size:
        raise ValueError(f"the tokenizer has a token {largest}, the model only those below {vocab_size}: they do not fit")


def _special_tokens(folder: Path, model: Any) -> GenerationConfig:
    """The special tokens that the files name and the model has. How text is sampled is up to the caller."""
    found = {}
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = getattr(model.generation_config, name)
        several = value if isinstance(value, list) else [] if value is None else [value]
        for one in several:
            if type(one) is not int:
                raise ValueError(
                    f"{folder / 'generation_config.json'} must have a token's number as {name}, got {one!r:.60}"
                )
        known = [one for one in several if 0 <= one < model.config.vocab_size]
        found[name] = known if isinstance(value, list) and known else next(iter(known), None)
    return GenerationConfig(**found)


def best_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
