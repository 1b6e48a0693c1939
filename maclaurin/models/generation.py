"""A text continued by a trained model, token by token, with what it cost."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import TextStreamer

from maclaurin.common.arguments import positive

PREFILL_CHUNK = 4096  # tokens of a long prompt that are processed at once


@dataclass(frozen=True)
class Continuation:
    """prefill_seconds: until the first new token. tokens_per_second: of those after it. state_bytes: at the end."""

    text: str
    prompt_tokens: int
    new_tokens: int
    prefill_seconds: float
    tokens_per_second: float | None
    state_bytes: int


def continue_text(
    model: Any,
    tokenizer: Any,
    prompt: str,
    *,
    max_new_tokens: int = 200,
    temperature: float = 0.8,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    seed: int = 0,
    write: Callable[[str], None] | None = None,
) -> Continuation:
    """Sampled from the `top_k` likeliest tokens, 0 for all, of which the likeliest with the total probability `top_p` stay,
    and of these the ones at least `min_p` times as likely as the first. temperature 0 takes the likeliest token each time.
    repetition_penalty: logits of tokens that were there are divided by it. `write` gets the text piece by piece as it comes.
    """
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    sampling = _sampling(temperature, top_k, top_p, min_p)
    positive("repetition_penalty", repetition_penalty)
    inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False).to(model.device)
    length = inputs["input_ids"].shape[1]
    if not length:
        raise ValueError("the prompt is empty: give it at least one character")
    stream, finite = _Stream(tokenizer, write), _Finite()
    torch.manual_seed(seed)
    started = time.perf_counter()
    output = model.generate(
        **inputs,
        **sampling,
        repetition_penalty=repetition_penalty,
        max_new_tokens=max_new_tokens,
        prefill_chunk_size=PREFILL_CHUNK if length > PREFILL_CHUNK else None,
        streamer=stream,
        logits_processor=[finite],
        return_dict_in_generate=True,
    )
    finite.check()
    ended = time.perf_counter()
    new = output.sequences[0, length:]
    later = len(new) - 1
    return Continuation(
        text=tokenizer.decode(new, skip_special_tokens=True),
        prompt_tokens=length,
        new_tokens=len(new),
        prefill_seconds=stream.first - started,
        tokens_per_second=later / (ended - stream.first) if later and ended > stream.first else None,
        state_bytes=state_nbytes(output.past_key_values),
    )


def _sampling(temperature: float, top_k: int, top_p: float, min_p: float) -> dict[str, Any]:
    """The options of `generate`, checked."""
    if temperature < 0:
        raise ValueError(f"temperature must not be negative, got {temperature}")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p must lie in (0, 1], got {top_p}")
    if top_k < 0:
        raise ValueError(f"top_k must not be negative, got {top_k}")
    if not 0 <= min_p <= 1:
        raise ValueError(f"min_p must lie between 0 and 1, got {min_p}")
    if not temperature:
        return {"do_sample": False}
    # a top_k of 0 is no limit; left out, transformers would have one of 50
    return {"do_sample": True, "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p or None}


def state_nbytes(cache: Any) -> int:
    """Of a cache of this package, which knows its size, or of transformers, whose layers hold tensors."""
    if hasattr(cache, "nbytes"):
        return int(cache.nbytes)
    held = (value for layer in cache.layers for value in vars(layer).values())
    return sum(value.nbytes for value in held if isinstance(value, Tensor))


class _Finite:
    """A sentence instead of what sampling from NaN would raise: at once on a CPU, elsewhere after the last token, because a
    look at every step would wait for the device once more."""

    def __init__(self) -> None:
        self.all: Tensor | None = None

    def __call__(self, ids: Tensor, logits: Tensor) -> Tensor:
        finite = logits.amax(-1).isfinite().all()
        self.all = finite if self.all is None else self.all & finite
        if logits.is_cpu:
            self.check()
        return logits if logits.is_cpu else logits.nan_to_num(nan=0.0, neginf=-math.inf)

    def check(self) -> None:
        if self.all is not None and not bool(self.all):
            raise ValueError(
                "the model gives logits that are not finite: its weights are damaged, or too large for their precision"
            )


class _Stream(TextStreamer):
    """Decodes as tokens come, whole characters only, and notes when the first one came."""

    def __init__(self, tokenizer: Any, write: Callable[[str], None] | None) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.write = write
        self.first = 0.0

    def put(self, value: Any) -> None:
        if not self.next_tokens_are_prompt and not self.first:
            self.first = time.perf_counter()
        super().put(value)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        if self.write is not None:
            self.write(text)
