"""A trained language model on the needles of a suite: its greedy continuation of 10 tokens, scored as the task says."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import torch

from maclaurin.data.tasks import Passkey, Ruler
from maclaurin.evals.cells import Problem
from maclaurin.evals.experiment import Experiment
from maclaurin.evals.learn import TEST_SEED, TOKENS_AT_ONCE
from maclaurin.evals.results import Point, ResultRow, ResultTable
from maclaurin.evals.summary import interval

NEW_TOKENS = 10


@torch.no_grad()
def needle_table(model: Any, tokenizer: Any, name: str, experiment: Experiment, tests: Iterable[Problem]) -> ResultTable:
    """The experiment's table with this model alone. `tests`: those of the experiment, perhaps behind a progress bar."""
    started = time.monotonic()
    points = []
    for problem in tests:
        task = problem.task()
        if not isinstance(task, Passkey | Ruler):
            raise ValueError(
                f"a trained model can answer needles, not {problem.name!r}: leave out the model to train small ones"
            )
        prompts = task.prompts(experiment.setting.examples, TEST_SEED)
        # with the BOS that some tokenizers put in front, which models such as the thesis's have always seen
        encoded = tokenizer([prompt.text for prompt in prompts])["input_ids"]
        outputs = continuations(model, encoded)
        scores = [task.score(tokenizer.decode(output), prompt) for output, prompt in zip(outputs, prompts, strict=True)]
        longest = max(map(len, encoded))
        value = sum(scores) / len(scores)
        low, high = interval([value], len(scores))
        state = sum(layer.mixer.state_nbytes(longest) for layer in model.model.layers)
        points.append(
            Point.of(
                problem,
                value=value,
                low=low,
                high=high,
                by_seed=[value],
                examples=len(scores),
                tokens=longest,
                state_bytes=state,
                by_distance=[],
            )
        )
    row = ResultRow(
        label=name,
        mixers=model.config.layer_mixers(),
        options=model.config.mixer_options or {},
        learning_rate=None,
        seeds=1,
        points=points,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        seconds=time.monotonic() - started,
        against=None,
    )
    return ResultTable(
        experiment=experiment.name,
        title=f"Needles by {experiment.axis} and {experiment.across}: a trained model with its own tokenizer, "
        f"{experiment.setting.examples} prompts per test",
        axis=experiment.axis,
        across=experiment.across,
        metric="exact",
        setting=None,
        learning_rates=[],
        seeds=1,
        train=[],
        source="",
        rows=[row],
    )


def continuations(model: Any, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """The continuation of each prompt. Prompts of the same length form a batch, so nothing is padded."""
    found: dict[int, list[int]] = {}
    by_length = sorted(range(len(prompts)), key=lambda place: len(prompts[place]))
    for length, same in groupby(by_length, key=lambda place: len(prompts[place])):
        places = list(same)
        size = max(TOKENS_AT_ONCE // length, 1)
        for start in range(0, len(places), size):
            some = places[start : start + size]
            ids = torch.tensor([prompts[place] for place in some], dtype=torch.long, device=model.device)
            everything = torch.ones_like(ids)
            output = model.generate(ids, attention_mask=everything, max_new_tokens=NEW_TOKENS, do_sample=False)
            found.update(zip(some, output[:, length:].tolist(), strict=True))
    return [found[place] for place in range(len(prompts))]
