"""How a student gets into a model of `transformers`: its attention interface, and a hook for what that leaves out.

Every attention module there projects, rotates, updates its cache and then calls the function that the configuration names.
Under the name "maclaurin" that function is `attend`, which calls the module's own `student`. A student has a state instead
of a KV cache, so a hook removes the cache from the call before the module sees it, and passes this layer's part of it on,
with the layer's input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

from maclaurin.models.cache import StateCache, StateLayer
from maclaurin.models.linearised.students import Student

NAME = "maclaurin"
HANDED_OVER = ("layer_input", "layer_cache")  # the arguments that `hand_over` adds


@dataclass(frozen=True)
class View:
    """One call of a student: q (B,T,H,K), k (B,T,G,K), v (B,T,G,V), the layer's input and the mask of its padding."""

    student: Student
    q: Tensor
    k: Tensor
    v: Tensor
    x: Tensor
    attention_mask: Tensor | None


_watchers: list[list[View]] = []


@contextmanager
def watching() -> Iterator[list[View]]:
    """Records all calls of students until the end of the block."""
    seen: list[View] = []
    _watchers.append(seen)
    try:
        yield seen
    finally:
        _watchers.remove(seen)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layer_input: Tensor,
    layer_cache: StateLayer | None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """query, key, value (B, heads, T, channels) -> (B, T, heads, channels), and no matrix of weights."""
    student = module.student
    assert isinstance(student, Student)
    T = query.shape[2]
    if attention_mask is not None:
        if attention_mask.dim() != 2:
            raise ValueError(
                f"attention_mask must have shape (batch, time): linear attention cannot apply one per pair of tokens, "
                f"got {tuple(attention_mask.shape)}"
            )
        attention_mask = attention_mask[:, -T:]
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    for seen in _watchers:
        seen.append(View(student, q, k, v, layer_input, attention_mask))
    y, state = student(
        q,
        k,
        v,
        layer_input,
        None if layer_cache is None else layer_cache.state,
        return_state=layer_cache is not None,
        attention_mask=attention_mask,
        window=sliding_window,
    )
    if layer_cache is not None:
        layer_cache.advance(state, T)
    return y, None


def padding_mask(
    *args: Any,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    **_: Any,
) -> Tensor | None:
    """The (batch, time) mask as it came, or None where nothing is padded. A student needs no mask to be causal."""
    plain = mask_function in (causal_mask_function, bidirectional_mask_function)
    if not plain and local_size is None:
        raise ValueError("position_ids or a custom mask pack several documents in one sequence: give each its own")
    return None if attention_mask is None or bool(attention_mask.all()) else attention_mask


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, padding_mask)


def hand_over(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Before an attention module runs: the cache leaves its arguments; its layer's part and the input join them."""
    cache = kwargs.pop("past_key_values", None)
    hidden = args[0] if args else kwargs["hidden_states"]
    layer = None if cache is None else cache.layers[module.layer_idx]
    return args, {**kwargs, **dict(zip(HANDED_OVER, (hidden, layer), strict=True))}


def own_cache(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Before a decoder runs: where it would make a KV cache, it gets a cache of states."""
    cache: Any = kwargs.get("past_key_values")
    config: Any = model.config
    if kwargs.get("use_cache") is None:
        kwargs["use_cache"] = config.use_cache and not model.training
    if cache is None and kwargs["use_cache"]:
        kwargs["past_key_values"] = StateCache(config.num_hidden_layers)
    elif cache is not None and not isinstance(cache, StateCache):
        raise TypeError(f"past_key_values must be a StateCache, got {type(cache).__name__}")
    return args, kwargs
