"""Every kind of file that the project reads: where a whole one is, and who reads it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """home: the folder of specimens that a case gets a copy of. files: patterns in it. readers: functions of readers.py.

    closed: whether a file may lead to nothing outside of its folder, as those of a model, which come from anybody.
    """

    home: str
    files: tuple[str, ...]
    readers: tuple[str, ...]
    closed: bool = False


CHECKPOINT = "model/checkpoint-2"

KINDS = {
    "state": Kind("state", ("state.safetensors",), ("state",)),
    "config": Kind("run", ("model/config.json",), ("generate", "generate", "evaluate"), closed=True),
    "weights": Kind("run", ("model/model.safetensors",), ("generate",), closed=True),
    "index": Kind(
        "sharded", ("model.safetensors.index.json", "model-00001-of-*.safetensors"), ("generate_sharded",), closed=True
    ),
    "tokenizer": Kind("run", ("model/tokenizer.json", "model/tokenizer_config.json"), ("generate",), closed=True),
    "generation": Kind("run", ("model/generation_config.json",), ("generate",), closed=True),
    "trainer-state": Kind("run", (f"{CHECKPOINT}/trainer_state.json",), ("resume",)),
    "optimizer": Kind("run", (f"{CHECKPOINT}/*.pt", f"{CHECKPOINT}/*.pth", f"{CHECKPOINT}/*.bin"), ("resume",)),
    "checkpoint": Kind("run", (f"{CHECKPOINT}/config.json", f"{CHECKPOINT}/model.safetensors"), ("resume",)),
    "recipe": Kind("run", ("model/recipe.json",), ("evaluate", "resume", "report_run")),
    "log": Kind("run", ("model/log.jsonl", "model/versions.json"), ("resume", "report_run")),
    "result": Kind("results", ("compare/*/*.json", "compare/*/*.jsonl", "compare/compare.json"), ("report",)),
    "suite": Kind("results", ("suite/results.json",), ("report",)),
    "cell": Kind("results", ("suite/cells/*.json",), ("cells",)),
    "lab": Kind("results", ("lab/*.lab.json",), ("report",)),
    "cache": Kind("run", ("cache/tokens/*-train-*/*",), ("tokens",)),
    "yaml": Kind("yaml", ("config.yaml",), ("recipe_of_yaml",)),
    "tuning": Kind("tuning", ("cache/crossover.json",), ("tuned",)),
    "converted": Kind("conversion", ("model/config.json", "model/model.safetensors"), ("generate",), closed=True),
    "conversion": Kind(
        "conversion", ("model/*.json", "model/recover/*.json*", "model/transfer/*.json*"), ("convert", "report_run")
    ),
    "source": Kind("conversion", ("source/*.json", "source/model.safetensors"), ("convert_anew",), closed=True),
}
