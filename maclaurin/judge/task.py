"""A task of the lm-evaluation-harness, perhaps one that lies in a folder here."""

from __future__ import annotations

import importlib.util
from typing import Any

from maclaurin.judge.result import Task

METRICS = ("acc_norm", "acc", "exact_match", "word_perplexity", "perplexity")  # the first that a task has


def task_score(model: Any, tokenizer: Any, name: str, folder: str) -> Task:
    if importlib.util.find_spec("lm_eval") is None:
        raise ValueError("task needs the lm-evaluation-harness: pip install 'maclaurin[eval]'")
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    known = TaskManager(include_path=folder or None)
    found = simple_evaluate(
        HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1), tasks=[name], task_manager=known, bootstrap_iters=0
    )["results"][name]
    figures = {key.partition(",")[0]: value for key, value in found.items() if isinstance(value, int | float)}
    metric = next((metric for metric in METRICS if metric in figures), None)
    if metric is None:
        raise ValueError(f"task {name!r} has none of the metrics {', '.join(METRICS)}, but {', '.join(figures)}")
    error = figures.get(f"{metric}_stderr")
    return Task(name, metric, float(figures[metric]), None if error is None else float(error))
