"""Names of a recipe's fields that people know from transformers, and the fields of TrainingArguments that are none of ours.

The shell, YAML files and Python use the same tables. The fields of TrainingArguments are read from its source, because
importing it takes seconds, and `maclaurin train --help` must not.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from maclaurin.common.choices import near_miss
from maclaurin.common.records import LARGEST, WORDS

# what people type -> the field of a recipe
ALIASES = {
    "lr": "learning_rate",
    "max_steps": "steps",
    "output_dir": "output",
    "per_device_train_batch_size": "batch_size",
    "gradient_accumulation_steps": "accumulation",
    "max_grad_norm": "clip",
    "lr_scheduler_type": "schedule",
    "eval_steps": "eval_every",
    "save_steps": "save_every",
    "save_total_limit": "keep",
    "activation_checkpointing": "gradient_checkpointing",
}

_ITS_OWN = "a run sets it itself"
_BY_TOKEN = "evaluation here is the loss per token, and nothing else"
_ORDER = "the seed decides the order of sequences"
_COMPLETE = "a checkpoint here is always complete, and --resume goes on from the last one"
# fields of TrainingArguments that a run decides itself -> what to use instead
DECIDED = {
    "report_to": "use track",
    "eval_strategy": "use eval_every",
    "save_strategy": "use save_every",
    "logging_strategy": "use logging_steps",
    "num_train_epochs": "use steps",
    "auto_find_batch_size": "use batch_size and accumulation",
    "bf16": "use precision bf16",
    "fp16": "use precision bf16",
    "resume_from_checkpoint": "use --resume",
    "hub_token": "recipes are stored as text: log in with `hf auth login`, or set HF_TOKEN",
    "load_best_model_at_end": "the last step is the result; use keep, and log.jsonl for the losses",
    "metric_for_best_model": "the last step is the result; use keep, and log.jsonl for the losses",
    "greater_is_better": "the last step is the result; use keep, and log.jsonl for the losses",
    "hub_strategy": "the model is pushed once, when the run has ended",
    "hub_always_push": "the model is pushed once, when the run has ended",
    **dict.fromkeys(("fsdp", "fsdp_config"), "use shard_parameters"),
    "ignore_data_skip": "a resumed run sees the data that it has not seen",
    **dict.fromkeys(("train_sampling_strategy", "group_by_length", "length_column_name"), _ORDER),
    **dict.fromkeys(("save_only_model", "save_on_each_node", "enable_jit_checkpoint"), _COMPLETE),
    **dict.fromkeys(
        (
            "prediction_loss_only",
            "eval_do_concat_batches",
            "eval_use_gather_object",
            "eval_accumulation_steps",
            "include_for_metrics",
            "batch_eval_metrics",
            "bf16_full_eval",
            "fp16_full_eval",
        ),
        _BY_TOKEN,
    ),
    **dict.fromkeys(
        (
            "do_train",
            "do_eval",
            "do_predict",
            "disable_tqdm",
            "remove_unused_columns",
            "label_names",
            "logging_nan_inf_filter",
            "local_rank",
            "restore_callback_states_from_checkpoint",
        ),
        _ITS_OWN,
    ),
}
# of the others: those that a resumed run can change, by how their names begin
MAY_CHANGE = (
    "dataloader_num_workers",
    "dataloader_persistent_workers",
    "dataloader_pin_memory",
    "dataloader_prefetch_factor",
    "ddp_",
    "eval_",
    "hub_",
    "log_",
    "logging_",
    "lr_scheduler_kwargs",
    "per_device_eval_batch_size",
    "project",
    "push_to_hub",
    "run_name",
    "skip_memory_metrics",
    "torch_compile",
    "torch_empty_cache_steps",
    "trackio_",
    "use_cpu",
)

KINDS: dict[str, type] = {kind.__name__: kind for kind in (bool, int, float, str, dict, list)}
NAMED = WORDS | {dict: "an object", list: "a list"}
Made = TypeVar("Made", bound=type)


@functools.cache
def trainer_fields() -> dict[str, frozenset[type]]:
    """The fields of the TrainingArguments that is installed, with the types that text can stand for; {} without it."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or not spec.submodule_search_locations:
        return {}
    source = Path(spec.submodule_search_locations[0], "training_args.py").read_text(encoding="utf-8")
    classes = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    (declared,) = (node for node in classes if node.name == "TrainingArguments")
    found = {}
    for node in declared.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            words = re.findall(r"\w+", ast.unparse(node.annotation))
            found[node.target.id] = frozenset(KINDS[word] for word in words if word in KINDS)
    return {name: kinds for name, kinds in found.items() if kinds}


def resolved(values: Mapping[str, Any], own: Collection[str], where: str = "the recipe") -> dict[str, Any]:
    """Names that people type as `own` names: aliases as ours, other fields of TrainingArguments as entries of `trainer`."""
    found: dict[str, Any] = {}
    trainer = dict(values.get("trainer") or {})
    for name, value in values.items():
        if name == "trainer":
            continue
        target = ALIASES.get(name, name)
        home = found if target in own else trainer
        if home is trainer and name not in trainer_fields():
            hint = near_miss(str(name), [*own, *ALIASES, *trainer_fields()])
            raise ValueError(f"{where} has {str(name)[:40]!r}{hint}; it may have {', '.join(sorted(own))}")
        if target in home:
            raise ValueError(f"{where} has {target} twice, under two names: give one of them")
        home[target] = value
    if trainer:
        check_trainer(trainer, where)
        found["trainer"] = trainer
    return found


def check_trainer(values: Mapping[str, Any], where: str = "the recipe") -> None:
    """Refuses fields that TrainingArguments does not have, that a run decides itself, and values of another type."""
    known = trainer_fields()
    for name, value in values.items():
        if name in DECIDED:
            raise ValueError(f"{where} must not have {name}: {DECIDED[name]}")
        if name in ALIASES:
            raise ValueError(f"{where} must not have {name} in trainer: it is {ALIASES[name]}")
        if name not in known:
            raise ValueError(f"{where} has {str(name)[:40]!r}{near_miss(str(name), known)}, no field of TrainingArguments")
        if value is not None and not _fits(value, known[name]):
            kinds = " or ".join(word for kind, word in NAMED.items() if kind in known[name])
            raise ValueError(f"{where} must have {kinds} as {name}, got {value!r:.40}")


def _fits(value: Any, kinds: Collection[type]) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return abs(value) < LARGEST and (type(value) in kinds or float in kinds)
    return type(value) in kinds


def read(name: str, text: str) -> Any:
    """The value of a field of TrainingArguments that is given as text."""
    kinds = trainer_fields()[name]
    readings: list[tuple[bool, Callable[[str], Any]]] = [
        (bool in kinds, {"true": True, "false": False}.__getitem__),
        (int in kinds, int),
        (float in kinds, float),
        (bool({dict, list} & kinds) and text[:1] in "[{", json.loads),
        (str in kinds, str),
    ]
    for possible, reading in readings:
        if possible:
            try:
                value = reading(text)
            except (ValueError, KeyError, RecursionError):
                continue
            if _fits(value, kinds):
                return value
    raise ValueError(f"must be {' or '.join(word for kind, word in NAMED.items() if kind in kinds)}")


def by_other_names(cls: Made) -> Made:
    """Decorates a dataclass: it can be made with the names that `resolved` knows too, as in `Recipe(lr=1e-3)`."""
    init = cls.__init__  # type: ignore[misc]
    own = tuple(cls.__dataclass_fields__)  # type: ignore[attr-defined]

    @functools.wraps(init)
    def made(self: Any, *positional: Any, **values: Any) -> None:
        init(self, *positional, **resolved(values, own))

    cls.__init__ = made  # type: ignore[misc]
    return cls
