"""Decoding as a CUDA graph: one launch per token where a step of a small batch would have hundreds.

    graph = DecodeGraph(model, model(prompt).past_key_values)
    for _ in range(100):
        ids = graph.step(ids).argmax(-1, keepdim=True)

A graph repeats what was launched once, on the same memory, so states are written back to where they were read. While the
shapes of a state still change, as those of a window that is not full, steps run as ever; those of a KV cache always do.
Power attention folds every token at once here, after which its state has one shape.

A model compiled with mode="reduce-overhead" makes its own graphs. Here it gets what they need: states that are not in the
memory of the graph which writes the next ones, and the mark of a new step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from maclaurin.models.cache import StateCache

WARM_UPS = 2  # steps before the capture, in which kernels are compiled and libraries find their workspaces


class DecodeGraph:
    """model: a language model in eval mode. cache: of the tokens so far, and from the first step on the graph's own."""

    def __init__(self, model: Any, cache: StateCache) -> None:
        if cache.get_seq_length() == 0:
            raise ValueError("cache must hold the state of at least one token: call the model on the prompt first")
        self.model, self.cache = model, cache
        self.compiled = hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None
        self.replay: Callable[[], object] | None = None
        self._ids: Tensor
        self._logits: Tensor

    @torch.no_grad()
    def step(self, ids: Tensor) -> Tensor:
        """The logits (batch, vocabulary) after one more token (batch, 1). The next step overwrites them."""
        if ids.shape[1:] != (1,):
            raise ValueError(f"ids must have shape (batch, 1), got {tuple(ids.shape)}")
        if self.replay is not None:
            self._ids.copy_(ids)
            self.replay()
            self._count(1)
            return self._logits
        before = self._shapes()
        self._ids = ids.clone()
        with _folding_at_once(self.model):
            logits = self._forward()
            if self._shapes() == before:
                self._prepare()
        return logits

    def _forward(self) -> Tensor:
        found: Tensor = self.model(self._ids, past_key_values=self.cache, use_cache=True, logits_to_keep=1).logits
        return found[:, -1]

    def _shapes(self) -> list[dict[str, torch.Size]]:
        states = (layer.state for layer in self.cache.layers)
        return [{} if state is None else {name: x.shape for name, x in state.tensors().items()} for state in states]

    def _prepare(self) -> None:
        """From here on states keep their memory. Compiled, or without CUDA, the same steps run one by one."""
        for layer in self.cache.layers:
            assert layer.state is not None
            layer.state = layer.state.clone()
        if self.compiled or not self._ids.is_cuda:
            self.replay = self._advance
            return
        kept = [layer.state.clone() for layer in self.cache.layers if layer.state is not None]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self._advance()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._advance()
        for layer, state in zip(self.cache.layers, kept, strict=True):  # the warm-up was no token
            _write(layer.state, state)
        self.replay = graph.replay

    def _advance(self) -> None:
        states = [layer.state for layer in self.cache.layers]
        if self.compiled:
            torch.compiler.cudagraph_mark_step_begin()
        with _folding_at_once(self.model):
            logits = self._forward()
        self._logits = logits.clone() if self.compiled else logits
        for layer, state in zip(self.cache.layers, states, strict=True):
            _write(state, layer.state)
            layer.state = state
        self._count(-1)  # the cache counts what was called, not what is replayed

    def _count(self, tokens: int) -> None:
        for layer in self.cache.layers:
            layer.seen += tokens


def _write(place: Any, state: Any) -> None:
    for old, new in zip(place.tensors().values(), state.tensors().values(), strict=True):
        old.copy_(new)


@contextmanager
def _folding_at_once(model: nn.Module) -> Iterator[None]:
    folding = [module for module in model.modules() if hasattr(module, "fold_every")]
    before = [(module.fold_at, module.fold_every) for module in folding]
    try:
        for module in folding:
            module.fold_at, module.fold_every = 1, 1  # type: ignore[assignment]
        yield
    finally:
        for module, (at, every) in zip(folding, before, strict=True):
            module.fold_at, module.fold_every = at, every
