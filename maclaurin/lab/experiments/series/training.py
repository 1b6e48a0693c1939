"""Very small language models on the source of Python's standard library, byte by byte, all with the same budget."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maclaurin.data import open_corpus
from maclaurin.evals.learn import warmup_and_cosine
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM

VOCABULARY = 256
TRAIN_DOCUMENTS, HELD_OUT_DOCUMENTS = 200, 20
HELD_OUT_SEED = 1
HELD_OUT_WINDOWS = 64


@dataclass(frozen=True)
class Budget:
    """The same for all models, and with one seed the same text in the same order."""

    width: int = 32
    heads: int = 2
    layers: int = 2
    steps: int = 100
    batch: int = 16
    length: int = 64
    learning_rate: float = 1e-2


class Text:
    """Windows of bytes, drawn from documents that are read once."""

    def __init__(self) -> None:
        corpus = open_corpus("stdlib")
        self.train = _bytes(corpus.documents("train"), TRAIN_DOCUMENTS)
        self.held_out = _bytes(corpus.documents("held-out"), HELD_OUT_DOCUMENTS)

    def windows(self, part: np.ndarray[Any, Any], count: int, length: int, rng: np.random.Generator) -> Tensor:
        starts = rng.integers(len(part) - length, size=count)
        return torch.from_numpy(part[starts[:, None] + np.arange(length)].astype(np.int64))

    def test(self, length: int) -> Tensor:
        """The same windows every time."""
        return self.windows(self.held_out, HELD_OUT_WINDOWS, length, np.random.default_rng(HELD_OUT_SEED))


def _bytes(documents: Any, count: int) -> np.ndarray[Any, Any]:
    return np.frombuffer("\n".join(islice(documents, count)).encode(), dtype=np.uint8)


@dataclass(frozen=True)
class Trained:
    """loss: nats a byte of held-out text; infinite if training broke off at a loss that is no number."""

    model: Any
    loss: float


def train(mixer: str, options: dict[str, Any], text: Text, budget: Budget, seed: int) -> Trained:
    torch.manual_seed(seed)
    model = MaclaurinForCausalLM(
        MaclaurinConfig(
            vocab_size=VOCABULARY,
            hidden_size=budget.width,
            intermediate_size=2 * budget.width,
            num_hidden_layers=budget.layers,
            num_attention_heads=budget.heads,
            mixer=mixer,
            mixer_options=options,
            bos_token_id=None,
            eos_token_id=None,
            use_cache=False,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=budget.learning_rate, betas=(0.9, 0.95), weight_decay=0.1)
    rng = np.random.default_rng(seed)
    for step in range(budget.steps):
        for group in optimizer.param_groups:
            group["lr"] = budget.learning_rate * warmup_and_cosine(step, budget.steps)
        ids = text.windows(text.train, budget.batch, budget.length, rng)
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        size = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not (math.isfinite(loss.item()) and math.isfinite(size.item())):
            return Trained(model.eval(), math.inf)
        optimizer.step()
    model.eval()
    ids = text.test(budget.length)
    with torch.no_grad():
        return Trained(model, model(ids, labels=ids).loss.item())
