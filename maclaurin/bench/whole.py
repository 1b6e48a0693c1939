"""A whole model of this package or transformers' Llama, as `bench model` measures it: its training step, its next tokens.

MLPs of the mixers are as wide as gives them Llama's number of parameters. Decoding starts from states and KV caches that
are filled with random numbers, because reading the context would take longer than what is measured; Llama's cache grows
as `generate` lets it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from maclaurin.common.arguments import one_of
from maclaurin.common.peak_memory import peak_bytes, resident_bytes
from maclaurin.common.records import Record
from maclaurin.common.timing import clock, interleaved
from maclaurin.machine.allocator import keep_freed_memory
from maclaurin.mixers.base import Zeros
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM, StateCache
from maclaurin.models.config import SIZES
from maclaurin.processes.children import end_with_parent, lifeline

LLAMA = "llama"
TRAINING, DECODING = "training", "decoding"
STEPS = 8  # tokens decoded at a time
SECONDS = 60  # of runs in turn; a round that takes longer is the only one
CHILD = "from maclaurin.bench import whole; whole.answer()"
WARM = 16  # tokens of a first step, which makes the optimizer's state


@dataclass(frozen=True)
class Shape(Record):
    """Of all models. layers: None for as many as the size has."""

    size: str = "small"
    layers: int | None = None
    vocabulary: int = 32000

    @property
    def fields(self) -> dict[str, int]:
        one_of("size", self.size, tuple(SIZES))
        layers = {} if self.layers is None else {"num_hidden_layers": self.layers}
        return {**SIZES[self.size], **layers, "vocab_size": self.vocabulary}


@dataclass(frozen=True)
class Job(Record):
    """Training on one sequence of so many tokens, or decoding after so many, of a batch."""

    what: str
    tokens: int
    batch: int

    @property
    def done(self) -> int:
        """Tokens that one run of it processes."""
        return self.tokens if self.what == TRAINING else STEPS * self.batch

    def of(self, model: Any) -> Callable[[], None]:
        if self.what == DECODING:
            return Decoding(model, self.tokens, self.batch)
        TrainingStep(model, WARM)()
        return TrainingStep(model, self.tokens)

    def cache_bytes(self, shape: Shape) -> int:
        """Of Llama, which keeps keys and values."""
        fields = shape.fields
        return 2 * 4 * fields["hidden_size"] * fields["num_hidden_layers"] * self.tokens * self.batch


@dataclass(frozen=True)
class Spent(Record):
    """Milliseconds, and bytes at most beyond the model and its optimizer."""

    ms: float
    peak: int


def build(name: str, shape: Shape) -> Any:
    """Llama, or a model of this package with as many parameters, as near as the width of its MLPs allows."""
    fields = shape.fields
    torch.manual_seed(0)
    if name == LLAMA:
        return _llama(fields)
    with torch.device("meta"):
        wanted, narrow, wide = (
            _parameter_count(_llama(fields) if width is None else _ours(name, {**fields, "intermediate_size": width}))
            for width in (None, 1, 2)
        )
    return _ours(name, {**fields, "intermediate_size": max(1, 1 + round((wanted - narrow) / (wide - narrow)))})


def _llama(fields: dict[str, int]) -> Any:
    return LlamaForCausalLM(LlamaConfig(**fields, attn_implementation="sdpa"))


def _ours(name: str, fields: dict[str, int]) -> Any:
    return MaclaurinForCausalLM(MaclaurinConfig(**fields, mixer=name.split("+")))


def _parameter_count(model: Any) -> int:
    return sum(x.numel() for x in model.parameters())


class TrainingStep:
    """Forward, loss, backward and update on the same T random tokens."""

    def __init__(self, model: Any, T: int) -> None:
        self.model = model.train()
        self.ids = torch.randint(model.config.vocab_size, (1, T), dtype=torch.long, device="cpu")
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def __call__(self) -> None:
        self.model.train()
        self.model(input_ids=self.ids, labels=self.ids, use_cache=False).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Decoding:
    """STEPS more tokens after `context` others, of which the cache is filled with random numbers."""

    def __init__(self, model: Any, context: int, batch: int) -> None:
        self.model = model
        self.ids = torch.zeros(batch, 1, dtype=torch.long, device="cpu")
        self.cache = _cache(model, context - 1, batch)

    @torch.no_grad()
    def __call__(self) -> None:
        self.model.eval()
        for _ in range(STEPS):
            self.model(input_ids=self.ids, past_key_values=self.cache, use_cache=True, logits_to_keep=1)


def _cache(model: Any, tokens: int, batch: int) -> Any:
    config = model.config
    if isinstance(model, LlamaForCausalLM):
        heads = config.num_attention_heads
        shape = (batch, heads, tokens, config.hidden_size // heads)
        cache = DynamicCache(config=config)
        for index in range(config.num_hidden_layers):
            cache.update(*(torch.randn(shape, dtype=torch.float32, device="cpu") for _ in range(2)), index)
        return cache
    states = StateCache(config.num_hidden_layers)
    for layer, cached in zip(model.model.layers, states.layers, strict=True):
        state = layer.mixer.state_of(tokens, Zeros(batch, "cpu", torch.float32))
        cached.advance(state.with_tensors(map(_filled, state.tensors().values())), tokens)
    return states


def _filled(zeros: Tensor) -> Tensor:
    """Not positive, as decays are, and weak: no key decays to zero. Counts stay as they are."""
    return -1e-3 * torch.rand(zeros.shape, dtype=zeros.dtype, device="cpu") if zeros.is_floating_point() else zeros


def apart(names: Sequence[str], shape: Shape, job: Job) -> list[Spent]:
    """In a process of its own, so that what it frees is free: one run, or some of each in turn, whose peaks are not told."""
    asked = json.dumps([names, shape.to_json(), job.to_json(), torch.get_num_threads()])
    with lifeline() as stdin:
        command = [sys.executable, "-c", CHILD, asked]
        answer = subprocess.run(command, stdin=stdin, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [Spent.from_json(spent) for spent in json.loads(answer)]


def by_layers(name: str, shape: Shape, job: Job) -> Spent:
    """Of all layers, from models of one period of layers and of two: each further period takes as long as the second."""
    period = len(name.split("+"))
    one = apart([name], replace(shape, layers=period), job)[0]
    more = shape.fields["num_hidden_layers"] / period - 1
    if more == 0:
        return one
    two = apart([name], replace(shape, layers=2 * period), job)[0]
    return Spent(one.ms + more * (two.ms - one.ms), round(one.peak + more * (two.peak - one.peak)))


def in_turn(names: Sequence[str], shape: Shape, job: Job) -> list[Spent]:
    """Of whole models, with the peaks of training."""
    peaks = [apart([name], shape, job)[0].peak if job.what == TRAINING else 0 for name in names]
    return [replace(spent, peak=peak) for spent, peak in zip(apart(names, shape, job), peaks, strict=True)]


def _measured(runs: Mapping[str, Callable[[], None]]) -> list[Spent]:
    if len(runs) > 1:
        times = interleaved(dict(runs), seconds=SECONDS, fewest=0, most=20)
        return [Spent(times[name].median, 0) for name in runs]
    (run,) = runs.values()
    before, now = resident_bytes(), clock()
    start = now()
    run()
    return [Spent(1000 * (now() - start), peak_bytes() - before)]


def _child(names: Sequence[str], shape: Shape, job: Job) -> list[Spent]:
    runs = {name: job.of(build(name, shape)) for name in names}
    if job.what == DECODING:
        for run in runs.values():
            run()  # grows the cache for the first time
    return _measured(runs)


def answer() -> None:
    """Of the child: prints what it has measured."""
    end_with_parent()
    names, shape, job, threads = json.loads(sys.argv[1])
    torch.set_num_threads(threads)
    keep_freed_memory()
    found = _child(names, Shape.from_json(shape), Job.from_json(job))
    print(json.dumps([one.to_json() for one in found]))
