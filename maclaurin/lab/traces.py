"""Trained models from inside: what each of their attention layers projects, and what they say when keys are hidden.

Those here are small ones for handwritten digits, trained in seconds; `checkpoints.py` opens language models.
"""

# N examples, T tokens, S keys, H heads, V value channels

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maclaurin.data.tasks import Digits, Labelled
from maclaurin.data.tasks.base import join
from maclaurin.evals.cells import Cell, Problem, Row, Setting
from maclaurin.evals.learn import train
from maclaurin.evals.models import OfImages
from maclaurin.mixers import weights
from maclaurin.mixers.base import Mixer
from maclaurin.mixers.projected import ProjectedMixer, Projections
from maclaurin.models import MaclaurinVisionConfig
from maclaurin.ops.arithmetic import repeat_heads

# Hides keys (T, S) of a layer's queries; None: hides nothing there.
Hidden = Callable[[ProjectedMixer], Tensor | None]
# (module, arguments, output and state) -> output and state
Corrected = Callable[[nn.Module, tuple[Any, ...], tuple[Tensor, Any]], tuple[Tensor, Any]]


@dataclass(frozen=True)
class Layer:
    """An attention layer, and what it projects from the examples. index: among all layers. kind: the name of its mixer."""

    index: int
    kind: str
    mixer: ProjectedMixer
    p: Projections


@dataclass(frozen=True)
class Watched:
    """A trained model and held-out examples for it. grid: of an image; None for a text. kinds: its layers' mixers."""

    name: str
    model: nn.Module
    run: Callable[[], Tensor]  # whether each answer is right, (answers,)
    grid: tuple[int, int] | None
    tokens: int
    kinds: Sequence[str]

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

        with ExitStack() as hooks:
            for module in self.model.modules():
                if isinstance(module, Mixer):
                    hooks.enter_context(module.register_forward_pre_hook(keep))
            self.run()
        return seen

    @torch.no_grad()
    def layers(self) -> list[Layer]:
        """Every layer with queries and keys."""
        found = [
            Layer(index, kind, mixer, mixer.project(x))
            for index, (kind, (mixer, x)) in enumerate(zip(self.kinds, self.inputs().items(), strict=True))
            if isinstance(mixer, ProjectedMixer)
        ]
        if not found:
            kinds = ", ".join(dict.fromkeys(self.kinds))
            raise ValueError(f"{self.name!r} has no layer with queries and keys: its mixers are {kinds}")
        return found

    @contextmanager
    def hiding(self, hidden: Hidden) -> Iterator[None]:
        """While it lasts, queries do not see the keys that are hidden from them; local filters stay as they are."""

        def corrected(mixer: nn.Module, args: tuple[Any, ...], output: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
            assert isinstance(mixer, ProjectedMixer)
            hidden_TS = hidden(mixer)
            return output if hidden_TS is None else (output[0] + _change(mixer, args[0], hidden_TS), output[1])

        with self.hooked(ProjectedMixer, corrected):
            yield

    @contextmanager
    def hooked(self, kind: type[nn.Module], corrected: Corrected) -> Iterator[None]:
        """While it lasts, what every module of that kind returns is corrected."""
        with ExitStack() as hooks:
            for module in self.model.modules():
                if isinstance(module, kind):
                    hooks.enter_context(module.register_forward_hook(corrected))
            yield


def _change(mixer: ProjectedMixer, x: Tensor, hidden_TS: Tensor) -> Tensor:
    """What hiding keys changes in the output: the output is linear in the weights if nothing but a projection follows."""
    for part in ("out_norm", "gate_proj", "position_power"):
        if getattr(mixer, part, None) is not None:
            raise ValueError(f"keys can be hidden only from a mixer whose output is its weighted values, this has {part}")
    y_BTHV = change_of_values(mixer, mixer.project(x), hidden_TS)
    return F.linear(y_BTHV.flatten(2).to(x.dtype), mixer.out_proj.weight)


def change_of_values(mixer: ProjectedMixer, p: Projections, hidden_TS: Tensor) -> Tensor:
    """What hiding keys changes in the weighted values (B, T, H, V)."""
    change_BHTS = weights.of_mixer(mixer, p, ~hidden_TS) - weights.of_mixer(mixer, p)
    return torch.einsum("bhts,bshv->bthv", change_BHTS, repeat_heads(p.v.double(), mixer.num_heads))


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
            init="torch",
            initializer_range=0.5,
        )
        torch.manual_seed(seed)
        model = OfImages(config, largest=16)
        cell = Cell("lab", label, row, setting, (problem,), (problem,), 3e-3, seed)
        train(model, cell, [problem.task()])
        found.append(Watched(label, model.eval(), partial(_right, model, some), (8, 8), 64, [mixer] * setting.layers))
    return found


def _right(model: nn.Module, examples: Labelled) -> Tensor:
    logits, answers = model(examples)
    right: Tensor = logits.argmax(-1) == answers
    return right
