"""A trained language model on the needles of a suite: its greedy continuation of 10 tokens, scored as the task says."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch

from maclaurin.data.tasks import Passkey, Ruler
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.learn import TEST_SEED
from maclaurin.evals.summary import interval

NEW_TOKENS = 10


@torch.no_grad()
def needle_table(model: Any, tokenizer: Any, name: str, experiment: Experiment, tests: Iterable[Any]) -> dict[str, Any]:
    """The experiment's table with one row, the model's. `tests` are the experiment's, or an iterator that watches them."""
    started = time.monotonic()
    points = []
    for problem in tests:
        task = problem.task()
        if not isinstance(task, Passkey | Ruler):
            raise ValueError(
                f"a trained model can answer needles, not {problem.name!r}: leave out the model to train small ones"
            )
        prompts = task.prompts(experiment.setting.examples, TEST_SEED)
        scores, longest = [], 0
        for prompt in prompts:
            ids = tokenizer(prompt.text, return_tensors="pt", add_special_tokens=False)["input_ids"].to(model.device)
            longest = max(longest, ids.shape[1])
            output = model.generate(ids, max_new_tokens=NEW_TOKENS, do_sample=False)
            scores.append(task.score(tokenizer.decode(output[0, ids.shape[1] :]), prompt))
        value = sum(scores) / len(scores)
        low, high = interval([value], len(scores))
        state = sum(layer.mixer.state_nbytes(longest) for layer in model.model.layers)
        points.append(
            {
                "task": problem.name,
                **problem.options,
                "value": value,
                "low": low,
                "high": high,
                "by_seed": [value],
                "examples": len(scores),
                "tokens": longest,
                "state_bytes": state,
                "by_distance": [],
            }
        )
    row = {
        "label": name,
        "mixers": model.config.layer_mixers(),
        "options": model.config.mixer_options or {},
        "validation": [],
        "learning_rate": None,
        "published": "",
        "errors": [],
        "unfinished": 0,
        "seeds": 1,
        "points": points,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seconds": time.monotonic() - started,
    }
    return {
        "experiment": experiment.name,
        "title": f"{experiment.title}; a trained model, {experiment.setting.examples} prompts a test",
        "axis": experiment.axis,
        "across": experiment.across,
        "metric": "exact",
        "setting": {},
        "learning_rates": [],
        "seeds": 1,
        "train": [],
        "source": "",
        "rows": [row],
    }
