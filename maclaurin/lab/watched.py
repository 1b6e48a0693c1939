"""Trained models from inside: what each of their attention layers projects, and what they say when keys are hidden.

Models are the small ones for handwritten digits, trained here in seconds, or a language model from its folder.
"""

# N examples, T tokens, S keys, H heads, V value channels

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maclaurin.data.tasks import Digits, Labelled
from maclaurin.data.tasks.base import join
from maclaurin.evals.cells import Cell, Problem, Row, Setting
from maclaurin.evals.learn import train
from maclaurin.evals.models import OfImages
from maclaurin.lab import weights
from maclaurin.mixers.base import Mixer
from maclaurin.mixers.projected import ProjectedMixer, Projections
from maclaurin.models import MaclaurinVisionConfig
from maclaurin.ops.arithmetic import repeat_heads

# Hides keys (T, S) of a layer's queries; None: hides nothing there.
Hidden = Callable[[ProjectedMixer], Tensor | None]


@dataclass(frozen=True)
class Watched:
    """A trained model and held-out examples for it. grid: of an image; None for a text."""

    name: str
    model: nn.Module
    run: Callable[[], Tensor]  # whether each answer is right, (answers,)
    grid: tuple[int, int] | None
    tokens: int
    kinds: Sequence[str] = ()  # the names of a language model's mixers, layer by layer

    def mixers(self) -> list[ProjectedMixer]:
        return [module for module in self.model.modules() if isinstance(module, ProjectedMixer)]

    @torch.no_grad()
    def accuracy(self) -> float:
        return self.run().double().mean().item()

    @torch.no_grad()
    def inputs(self) -> dict[Mixer, Tensor]:
        """What every mixer reads of the examples, layer by layer."""
        seen: dict[Mixer, Tensor] = {}

        def keep(mixer: nn.Module, args: tuple[Any, ...]) -> None:
            assert isinstance(mixer, Mixer)
            seen[mixer] = args[0]

        found = (module for module in self.model.modules() if isinstance(module, Mixer))
        hooks = [mixer.register_forward_pre_hook(keep) for mixer in found]
        try:
            self.run()
        finally:
            for hook in hooks:
                hook.remove()
        return seen

    @torch.no_grad()
    def layers(self) -> list[tuple[ProjectedMixer, Projections]]:
        """Every attention layer and what it projects from the examples."""
        found = [
            (mixer, mixer.project(x, None, "auto", None))
            for mixer, x in self.inputs().items()
            if isinstance(mixer, ProjectedMixer)
        ]
        if not found:
            raise ValueError(f"{self.name!r} has no layer with queries and keys")
        return found

    @contextmanager
    def hiding(self, hidden: Hidden) -> Iterator[None]:
        """While it lasts, queries do not see the keys that are hidden from them; local filters stay as they are."""

        def corrected(mixer: nn.Module, args: tuple[Any, ...], output: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
            assert isinstance(mixer, ProjectedMixer)
            hidden_TS = hidden(mixer)
            return output if hidden_TS is None else (output[0] + _change(mixer, args[0], hidden_TS), output[1])

        hooks = [mixer.register_forward_hook(corrected) for mixer in self.mixers()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _change(mixer: ProjectedMixer, x: Tensor, hidden_TS: Tensor) -> Tensor:
    """What hiding keys changes in the output: the output is linear in the weights if nothing but a projection follows."""
    for part in ("out_norm", "gate_proj", "position_power"):
        if getattr(mixer, part, None) is not None:
            raise ValueError(f"keys can be hidden only from a mixer whose output is its weighted values, this has {part}")
    p = mixer.project(x, None, "auto", None)
    change_BHTS = weights.of_mixer(mixer, p, ~hidden_TS) - weights.of_mixer(mixer, p)
    y_BTHV = torch.einsum("bhts,bshv->bthv", change_BHTS, repeat_heads(p.v.double(), mixer.num_heads))
    return F.linear(y_BTHV.flatten(2).to(x.dtype), mixer.out_proj.weight)


def digits(rows: dict[str, Row], *, steps: int, seed: int, images: int) -> list[Watched]:
    """Vision models of 2 layers, width 32 and 2 heads on digits of 8x8 pixels, one a row, and `images` test images.

    Layers and positions start large (PyTorch's defaults, N(0, 0.5)): that learns in seconds what N(0, 0.02) does in minutes.
    """
    setting = Setting("vision", 32, 2, 2, 64, steps=steps, batch=32, weight_decay=0.05)
    problem = Problem("digits")
    test = join(list(Digits(split="test").once(512)))
    some = Labelled(test.inputs[:images], test.labels[:images])
    found = []
    for label, row in rows.items():
        (mixer,) = row.mixers
        config = MaclaurinVisionConfig(
            image_size=8,
            num_channels=1,
            hidden_sizes=[setting.width],
            depths=[setting.layers],
            num_attention_heads=[setting.heads],
            mlp_ratios=[2],
            patch_sizes=[1],
            pooling="mean",
            mixer=mixer,
            mixer_options=dict(row.options.get(mixer, {})),
            num_labels=10,
            init="thesis",
            initializer_range=0.5,
        )
        torch.manual_seed(seed)
        model = OfImages(config, largest=16)
        cell = Cell("lab", label, row, setting, (problem,), (problem,), 3e-3, seed)
        train(model, cell, [problem.task()])
        found.append(Watched(label, model.eval(), _right(model, some), (8, 8), 64))
    return found


def _right(model: nn.Module, examples: Labelled) -> Callable[[], Tensor]:
    def run() -> Tensor:
        logits, answers = model(examples)
        right: Tensor = logits.argmax(-1) == answers
        return right

    return run


def checkpoint(folder: str, text: str | None, *, tokens: int, texts: int) -> Watched:
    """A language model from its folder, and the first `tokens` tokens of `texts` held-out documents that are so long.

    text: a file, a folder or a corpus; None for the held-out part of what the model was trained on.
    """
    from maclaurin.evals.text import documents_of
    from maclaurin.models.folder import open_model

    model, tokenizer = open_model(folder)
    encoded = (tokenizer(document, add_special_tokens=False)["input_ids"] for document in documents_of(folder, text))
    rows = list(islice((ids[: tokens + 1] for ids in encoded if len(ids) > tokens), texts))
    if not rows:
        raise ValueError(f"tokens must be below the length of a document of the text, got {tokens}")
    ids = torch.tensor(rows, device=model.device)

    def run() -> Tensor:
        logits = model(ids[:, :-1], use_cache=False).logits
        right: Tensor = (logits.argmax(-1) == ids[:, 1:]).flatten()
        return right

    return Watched(folder, model, run, None, tokens, model.config.layer_mixers())


def models(
    rows: dict[str, Row], folder: str | None, text: str | None, *, steps: int, seed: int, examples: int, tokens: int
) -> Sequence[Watched]:
    """The checkpoint where one is given, otherwise a digits model a row."""
    if folder is None:
        return digits(rows, steps=steps, seed=seed, images=examples)
    return [checkpoint(folder, text, tokens=tokens, texts=examples)]
