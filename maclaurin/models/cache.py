"""The cache that carries every mixer's state through `generate`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, Self

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from maclaurin.mixers import MixerState
from maclaurin.ops import state_files
from maclaurin.ops.states import PowerState, TokenState, checked_device


class StateLayer(CacheLayerMixin):
    """One layer's state, and how many slots (tokens and padding) it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.state: MixerState | None = None
        self.seen = 0

    def advance(self, state: MixerState | None, tokens: int) -> None:
        self.state = state
        self.seen += tokens
        self.is_initialized = True

    def get_seq_length(self) -> int:
        return self.seen

    def get_max_length(self) -> int:
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.seen + query_length, 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """A state is made by its mixer, from the first token on."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("a StateLayer holds a mixer's state, not keys and values: its mixer replaces it")

    def reset(self) -> None:
        self.state, self.seen = None, 0

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        if self.state is not None:
            self.state = self.state.select(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.state is not None:
            sequences = torch.arange(self.state.batch_size, dtype=torch.long, device="cpu")
            self.batch_select_indices(sequences.repeat_interleave(repeats))

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens, if the state is a KV cache of all tokens. As in transformers, crop(−3) removes three."""
        if tokens_to_remove > 0:
            raise ValueError(f"crop takes minus the number of tokens to remove, got {tokens_to_remove}")
        removed = min(-tokens_to_remove, self.seen)
        state = self.state
        if state is None or not removed:
            return
        tokens = state.attention
        kept_whole = isinstance(tokens, TokenState) and tokens.lengths is None and tokens.slots == self.seen
        folded = isinstance(tokens, PowerState) and tokens.recurrent is not None
        if (
            not isinstance(tokens, TokenState)
            or not kept_whole
            or folded
            or state.conv is not None
            or state.gate_sum is not None
            or state.rotation is not None
        ):
            raise ValueError(
                "this mixer's state cannot be cropped: past tokens are folded into it and cannot be taken out again"
            )
        kept = slice(None, tokens.slots - removed)
        attention = dataclasses.replace(
            tokens,
            keys=tokens.keys[:, kept].clone(),
            values=tokens.values[:, kept].clone(),
            log_decay=None if tokens.log_decay is None else tokens.log_decay[:, kept].clone(),
        )
        position = None if state.position is None else state.position - removed
        self.state = dataclasses.replace(state, attention=attention, position=position)
        self.seen -= removed

    def offload(self) -> None:
        if self.state is not None:
            self.device = next(iter(self.state.tensors().values())).device
            self.state = self.state.to("cpu")

    def prefetch(self) -> None:
        if self.state is not None and hasattr(self, "device"):
            self.state = self.state.to(self.device)


class StateCache(Cache):
    """`past_key_values` of a Maclaurin model: one StateLayer per layer. padded: whether generate() found padding."""

    layers: list[StateLayer]
    padded = False

    def __init__(self, num_layers: int) -> None:
        super().__init__(layers=[StateLayer() for _ in range(num_layers)])

    @property
    def nbytes(self) -> int:
        return sum(layer.state.nbytes for layer in self.layers if layer.state is not None)

    @property
    def batch_size(self) -> int:
        """How many sequences it holds; 0 before the first token."""
        held = [layer.state for layer in self.layers if layer.state is not None]
        return held[0].batch_size if held else 0

    @classmethod
    def of(cls, states: Sequence[MixerState | None], seen: int) -> Self:
        """The cache of a model whose layers have these states, after so many tokens."""
        cache = cls(len(states))
        for layer, state in zip(cache.layers, states, strict=True):
            layer.advance(state, seen)
        return cache

    def select(self, batch_indices: torch.Tensor | Sequence[int]) -> Self:
        """Sequences by index, in any order and with repeats, as a cache of its own."""
        states = [None if layer.state is None else layer.state.select(batch_indices) for layer in self.layers]
        return type(self).of(states, self.get_seq_length())

    def fork(self) -> Self:
        """The same sequences once more: what is done with one cache leaves the other as it is."""
        states = [None if layer.state is None else layer.state.clone() for layer in self.layers]
        return type(self).of(states, self.get_seq_length())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file; the old file stays whole until the new one is complete."""
        state_files.save_all([layer.state for layer in self.layers], path, seen=self.get_seq_length())

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: torch.device | str = "cpu") -> Self:
        """Read what `save` wrote. Nothing is unpickled, and a model checks that the states are its own."""
        states, notes = state_files.load_all(path, checked_device(device))
        seen = notes.get("seen")
        if type(seen) is not int or seen < 0:
            raise ValueError(f"{os.fspath(path)} must say how many tokens its states have seen, got {seen!r:.80}")
        for state in states:
            if state is not None and not isinstance(state, MixerState):
                raise ValueError(f"{os.fspath(path)} must hold states of mixers, got a {type(state).__name__}")
        return cls.of(states, seen)  # type: ignore[arg-type]
