"""Whole models against transformers' Llama of equal size with PyTorch's attention: a training step, and one more token.

Width, depth and heads are those of a size of this package; MLPs of the mixers are as wide as gives them Llama's number of
parameters. A training step is forward, loss, backward and fused AdamW of one sequence. Decoding starts from states and KV
caches that are filled with random numbers, because reading the context would take longer than what is measured; Llama's
cache grows as `generate` lets it. Both models take their steps in turn, in one process; the peak of memory is that of a
training step in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from maclaurin.common.arguments import one_of
from maclaurin.common.peak_memory import peak_bytes, resident_bytes
from maclaurin.common.records import Record
from maclaurin.common.timing import interleaved
from maclaurin.mixers.base import Zeros
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM, StateCache
from maclaurin.models.config import SIZES
from maclaurin.processes.children import end_with_parent, lifeline

LLAMA = "llama"
STEPS = 8  # tokens decoded at a time
MOST_CACHED = 2**32  # bytes of a KV cache


@dataclass(frozen=True)
class Models(Record):
    """What is measured. layers: None for as many as the size has. mixers: joined by "+" where they alternate."""

    size: str = "small"
    layers: int | None = None
    vocabulary: int = 32000
    mixers: Sequence[str] = ("2mamba", "2mamba-gated", "mamba2", "2mamba+sliding-window")
    lengths: Sequence[int] = (512, 2048)
    contexts: Sequence[int] = (1024, 16384)
    batches: Sequence[int] = (1,)

    @property
    def fields(self) -> dict[str, int]:
        one_of("size", self.size, tuple(SIZES))
        return {**SIZES[self.size], **({} if self.layers is None else {"num_hidden_layers": self.layers})}


LONG = Models(lengths=(512, 2048, 8192, 32768), contexts=(1024, 4096, 16384, 65536), batches=(1, 16))


@dataclass(frozen=True)
class ModelRow(Record):
    """tokens_per_s: of the model; ratio: to Llama's in the same run. peak: bytes of a training step beyond the model."""

    mixer: str
    what: str
    tokens: int
    batch: int
    tokens_per_s: float
    llama_tokens_per_s: float
    ratio: float
    peak: int | None = None
    llama_peak: int | None = None


def run(console: Console, *, long: bool, models: Models | None = None) -> list[ModelRow]:
    models = models or (LONG if long else Models())
    table = Table(title=f"{models.size}, {models.fields['num_hidden_layers']} layers: tokens per second")
    for column in ("model", "what", "tokens", "batch", "tokens/s", "llama", "ratio", "peak", "llama's"):
        table.add_column(column, justify="right")
    rows = []
    for mixer in models.mixers:
        for row in _measure(mixer, models):
            rows.append(row)
            speeds = (f"{row.tokens_per_s:.4g}", f"{row.llama_tokens_per_s:.4g}", f"{row.ratio:.2f}")
            peaks = ("" if x is None else f"{x / 2**20:,.0f} MiB" for x in (row.peak, row.llama_peak))
            table.add_row(row.mixer, row.what, f"{row.tokens:,}", str(row.batch), *speeds, *peaks)
    console.print(table)
    return rows


def _measure(mixer: str, models: Models) -> list[ModelRow]:
    built = {mixer: build(mixer, models), LLAMA: build(LLAMA, models)}
    rows = []
    for T in models.lengths:
        peaks = {name: _peak_apart(name, T, models) for name in built}
        steps: dict[str, Callable[[], object]] = {name: TrainingStep(model, T) for name, model in built.items()}
        rows.append(_row(mixer, "training", T, 1, T, steps, peaks))
        for model in built.values():
            model.zero_grad()
    for context in models.contexts:
        for batch in models.batches:
            if _cache_bytes(models, context, batch) > MOST_CACHED:
                continue
            decoding: dict[str, Callable[[], object]] = {
                name: Decoding(model, context, batch) for name, model in built.items()
            }
            rows.append(_row(mixer, "decoding", context, batch, STEPS * batch, decoding, {}))
    return rows


def _row(
    mixer: str,
    what: str,
    tokens: int,
    batch: int,
    done: int,
    steps: dict[str, Callable[[], object]],
    peaks: Mapping[str, int],
) -> ModelRow:
    times = interleaved(steps, seconds=5, fewest=0, most=20)
    ours, theirs = (1000 * done / times[name].median for name in (mixer, LLAMA))
    return ModelRow(mixer, what, tokens, batch, ours, theirs, ours / theirs, peaks.get(mixer), peaks.get(LLAMA))


def build(name: str, models: Models) -> Any:
    """Llama, or a model of this package with as many parameters, as near as the width of its MLPs allows."""
    fields = {**models.fields, "vocab_size": models.vocabulary}
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


def _cache_bytes(models: Models, context: int, batch: int) -> int:
    return 2 * 4 * models.fields["hidden_size"] * models.fields["num_hidden_layers"] * context * batch


def _peak_apart(name: str, T: int, models: Models) -> int:
    command = [sys.executable, "-m", "maclaurin.bench.model", name, str(T), json.dumps(asdict(models))]
    with lifeline() as stdin:
        return int(subprocess.run(command, stdin=stdin, check=True, capture_output=True, text=True).stdout)


def _peak(name: str, T: int, models: Models) -> int:
    """Of the second step: the first one makes the optimizer's state."""
    model = build(name, models)
    TrainingStep(model, 16)()
    step = TrainingStep(model, T)
    before = resident_bytes()
    step()
    return peak_bytes() - before


if __name__ == "__main__":
    end_with_parent()
    torch.set_num_threads(1)
    print(_peak(sys.argv[1], int(sys.argv[2]), Models(**json.loads(sys.argv[3]))))
