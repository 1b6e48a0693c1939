"""Greedy answers to questions, and pass keys in long prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from maclaurin.common.progress import counted
from maclaurin.data.tasks import Passkey
from maclaurin.judge.result import Recall
from maclaurin.models.generation import PREFILL_CHUNK

ANSWER_TOKENS = 48
KEY_TOKENS = 8
TRIAL = 4096  # characters of a prompt from which the length of others is estimated


def answers(model: Any, tokenizer: Any, questions: Sequence[str]) -> list[str]:
    """With the tokenizer's chat template, where it has one."""
    return [_continued(model, tokenizer, _asked(tokenizer, question), ANSWER_TOKENS)
            for question in counted(questions, "answering", "questions")]  # fmt: skip


def _asked(tokenizer: Any, question: str) -> str:
    if tokenizer.chat_template is None:
        return f"Question: {question}\nAnswer:"
    turn = [{"role": "user", "content": question}]
    return str(tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))


def recall(model: Any, tokenizer: Any, lengths: Sequence[int], prompts: int) -> list[Recall]:
    """The pass keys of prompts with so many tokens, at depths from one end to the other: the same for every model."""
    found = []
    for length in lengths:
        task = Passkey(length=_characters(tokenizer, length))
        rng = np.random.default_rng(length)
        asked = [task.prompt(rng) for _ in range(prompts)]
        right = sum(
            task.score(_continued(model, tokenizer, prompt.text, KEY_TOKENS), prompt)
            for prompt in counted(asked, f"pass keys of {length:,} tokens", "prompts")
        )
        found.append(Recall(length, int(right), prompts))
    return found


def _characters(tokenizer: Any, tokens: int) -> int:
    trial = Passkey(length=TRIAL).prompt(np.random.default_rng(0)).text
    return tokens * len(trial) // len(tokenizer(trial)["input_ids"])


@torch.no_grad()
def _continued(model: Any, tokenizer: Any, prompt: str, new: int) -> str:
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"].to(model.device)
    length = ids.shape[1]
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new,
        do_sample=False,
        prefill_chunk_size=PREFILL_CHUNK if length > PREFILL_CHUNK else None,
    )
    return str(tokenizer.decode(output[0, length:], skip_special_tokens=True)).strip()
