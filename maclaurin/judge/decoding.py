"""Time and memory of one more token after a context of any length, without computing that context.

Neither depends on what the tokens are. A prompt is processed, and where a layer keeps its tokens, they are repeated until
there are as many as the context has; a state that does not grow stays as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from maclaurin.common.timing import interleaved
from maclaurin.judge.result import Decoding
from maclaurin.models.cache import StateCache
from maclaurin.models.generation import state_nbytes
from maclaurin.ops.states import PowerState, TokenState

PROMPT = 1536  # tokens: second order has folded its tokens by then
SECONDS = 20.0  # per length of context
MOST = 12  # steps of each model


def decoding(models: dict[str, Any], lengths: Sequence[int]) -> dict[str, list[Decoding]]:
    """Of every model, at the same moments."""
    found: dict[str, list[Decoding]] = {name: [] for name in models}
    for length in lengths:
        caches = {name: filled(model, length) for name, model in models.items()}
        steps: dict[str, Callable[[], object]] = {
            name: partial(_step, model, caches[name]) for name, model in models.items()
        }
        times = interleaved(steps, seconds=SECONDS, most=MOST)
        for name, timing in times.items():
            cache = caches[name]
            found[name].append(Decoding(length, timing.median, (timing.low, timing.high), state_nbytes(cache)))
    return found


@torch.no_grad()
def filled(model: Any, length: int) -> Any:
    """A cache as after `length` tokens."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (1, min(PROMPT, length)), generator=generator, device="cpu")
    cache = model(ids.to(model.device), use_cache=True, logits_to_keep=1).past_key_values
    for layer in cache.layers:
        if isinstance(cache, StateCache):
            layer.seen = length
            tokens = layer.state.attention
            if isinstance(tokens, TokenState) and not isinstance(tokens, PowerState) and tokens.slots == ids.shape[1]:
                longer = dataclasses.replace(
                    tokens, keys=_repeated(tokens.keys, 1, length), values=_repeated(tokens.values, 1, length)
                )
                layer.state = dataclasses.replace(layer.state, attention=longer)
        else:
            layer.keys, layer.values = (_repeated(x, 2, length) for x in (layer.keys, layer.values))
    return cache


def _repeated(x: Tensor, dim: int, length: int) -> Tensor:
    times = [1] * x.dim()
    times[dim] = -(-length // x.shape[dim])
    return x.repeat(times).narrow(dim, 0, length).clone(memory_format=torch.contiguous_format)


@torch.no_grad()
def _step(model: Any, cache: Any) -> None:
    model(torch.zeros(1, 1, dtype=torch.long, device=model.device), past_key_values=cache, use_cache=True)
