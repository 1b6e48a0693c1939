"""Trained models from inside: what each of their attention layers projects, and what they say when keys are hidden.

Small ones for handwritten digits, trained here in seconds, and language models from their folders: those of this project,
and those of `transformers` of the families that `maclaurin convert` knows.
"""

# B examples, T tokens (queries), S keys, H heads, G key-value heads, K key channels, V value channels

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maclaurin.data.tasks import Digits, Labelled
from maclaurin.data.tasks.base import join
from maclaurin.evals.cells import Cell, Problem, Row, Setting
from maclaurin.evals.learn import train
from maclaurin.evals.models import OfImages
from maclaurin.evals.text import documents_of
from maclaurin.mixers.base import Mixer
from maclaurin.mixers.mechanisms import Mechanism
from maclaurin.mixers.projected import ProjectedMixer
from maclaurin.models import MaclaurinForCausalLM, MaclaurinVisionConfig
from maclaurin.models.folder import open_model
from maclaurin.models.linearised.attention import watching
from maclaurin.models.linearised.classes import FAMILIES, Linearised, linearise
from maclaurin.models.linearised.students import SOFTMAX, Softmax
from maclaurin.ops.arithmetic import repeat_heads

MOST_TOKENS = 1024  # unless more are asked for
# PyTorch's defaults, and positions from N(0, 0.5): they learn in seconds what N(0, 0.02) does in minutes
DIGITS: dict[str, Any] = {"image_size": 8, "num_channels": 1, "patch_sizes": [1], "num_labels": 10, "pooling": "mean"}
DIGITS |= {"hidden_sizes": [32], "depths": [2], "num_attention_heads": [2], "mlp_ratios": [2]}
DIGITS |= {"init": "torch", "initializer_range": 0.5}
Hidden = Callable[[], Tensor]  # which keys (T, S) a layer hides from its queries, asked for anew by every layer


@dataclass(frozen=True)
class Layer:
    """An attention layer, and what it projects from the examples. index: among all layers. kind: the name of its mixer."""

    index: int
    kind: str
    mechanism: Mechanism | None
    q: Tensor  # (B, T, H, K)
    k: Tensor  # (B, T, G, K)
    v: Tensor  # (B, T, G, V)
    log_decay: Tensor | None = None

    @classmethod
    def of(cls, index: int, kind: str, mixer: ProjectedMixer, x: Tensor) -> Layer:
        p = mixer.project(x)
        return cls(index, kind, mixer.mechanism, p.q, p.k, p.v, p.log_decay)

    def weights(self, visible_TS: Tensor | None = None) -> Tensor:
        """(B, H, T, S), in float64. visible: of the keys that its queries could see."""
        if self.mechanism is None:
            raise ValueError(f"{self.kind} has no weights that are written out: take softmax, linear, inline …")
        return self.mechanism.weights(self.q, self.k, self.log_decay, visible_TS)

    def change(self, hidden_TS: Tensor) -> Tensor:
        """What hiding keys changes in the weighted values (B, T, H, V)."""
        change_BHTS = self.weights(~hidden_TS) - self.weights()
        return torch.einsum("bhts,bshv->bthv", change_BHTS, repeat_heads(self.v.double(), self.q.shape[2]))


@dataclass(frozen=True)
class Traced:
    """A trained model and validation examples for it. grid: of an image; None for a text. kinds: its layers' mixers."""

    name: str
    model: Any
    run: Callable[[], Tensor]  # whether each answer is right, (answers,)
    grid: tuple[int, int] | None
    tokens: int
    kinds: Sequence[str]
    attends: ClassVar[type[nn.Module]] = ProjectedMixer  # the modules that keys can be hidden from
    sought: ClassVar[str] = "queries and keys"

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
        if not (found := list(self.found())):
            kinds = ", ".join(dict.fromkeys(self.kinds))
            raise ValueError(f"{self.name!r} has no layer with {self.sought}: its mixers are {kinds}")
        return found

    def found(self) -> Iterator[Layer]:
        for index, (kind, (mixer, x)) in enumerate(zip(self.kinds, self.inputs().items(), strict=True)):
            if isinstance(mixer, ProjectedMixer):
                yield Layer.of(index, kind, mixer, x)

    @contextmanager
    def hiding(self, hidden: Hidden) -> Iterator[None]:
        """While it lasts, queries do not see the keys that are hidden from them; local filters stay as they are."""

        def corrected(module: nn.Module, args: tuple[Any, ...], output: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
            return output[0] + self.change(module, args, hidden()).to(output[0].dtype), output[1]

        with ExitStack() as hooks:
            for module in self.model.modules():
                if isinstance(module, self.attends):
                    hooks.enter_context(module.register_forward_hook(corrected))
            yield

    def change(self, mixer: Any, args: tuple[Any, ...], hidden_TS: Tensor) -> Tensor:
        """What hiding keys changes in the output, which is linear in the weights if only a gate and a projection follow."""
        for part in ("out_norm", "position_power"):
            if getattr(mixer, part, None) is not None:
                raise ValueError(
                    f"keys can be hidden from a mixer whose output is its weighted values alone, this has {part}"
                )
        x = args[0]
        y_BTHV = Layer.of(0, mixer.kind, mixer, x).change(hidden_TS)
        return F.linear(mixer.gated(y_BTHV.to(x.dtype), x), mixer.out_proj.weight)


class OfTransformers(Traced):
    """A model of `transformers`, whose layers are softmax attention. Layers that were converted have no part in it."""

    attends = Softmax
    sought = "softmax attention"

    def found(self) -> Iterator[Layer]:
        with watching() as views:
            self.run()
        for index, (kind, view) in enumerate(zip(self.kinds, views, strict=True)):
            if isinstance(view.student, Softmax):
                yield Layer(index, kind, view.student.mechanism, view.q, view.k, view.v)

    def change(self, student: Any, args: tuple[Any, ...], hidden_TS: Tensor) -> Tensor:
        return Layer(0, SOFTMAX, student.mechanism, *args[:3]).change(hidden_TS)


def digits(rows: dict[str, Row], *, steps: int, seed: int, images: int) -> list[Traced]:
    """Vision models of 2 layers, width 32 and 2 heads on digits of 8x8 pixels, one per row, and `images` test images."""
    setting = Setting("vision", 32, 2, 2, 64, steps=steps, batch=32, weight_decay=0.05)
    problem = Problem("digits")
    test = join(list(Digits(split="test").once(512)))
    some = Labelled(test.inputs[:images], test.labels[:images])
    found = []
    for label, row in rows.items():
        (mixer,) = row.mixers
        torch.manual_seed(seed)
        config = MaclaurinVisionConfig(**DIGITS, mixer=mixer, mixer_options=dict(row.options.get(mixer, {})))
        model = OfImages(config, largest=16)
        train(model, Cell("lab", label, row, setting, (problem,), (problem,), 3e-3, seed), [problem.task()])
        found.append(Traced(label, model.eval(), partial(_right, model, some), (8, 8), 64, [mixer] * setting.layers))
    return found


def _right(model: nn.Module, examples: Labelled) -> Tensor:
    logits, answers = model(examples)
    right: Tensor = logits.argmax(-1) == answers
    return right


def checkpoint(folder: str, text: str | None, *, tokens: int | None, texts: int) -> Traced:
    """A model and the first `tokens` tokens of `texts` documents that are so long; None for what it was made for.

    text: a file, a folder or a corpus; None for the validation part of what the model was trained on, or of the standard
    library if it does not say what that was.
    """
    model, tokenizer = open_model(folder)
    if text is None and not (Path(folder) / "recipe.json").is_file():
        text = "stdlib"
    if tokens is None:
        tokens = min(getattr(model.config, "max_position_embeddings", MOST_TOKENS), MOST_TOKENS)
    encoded = (tokenizer(document, add_special_tokens=False)["input_ids"] for document in documents_of(folder, text))
    sequences = list(islice((ids[: tokens + 1] for ids in encoded if len(ids) > tokens), texts))
    if not sequences:
        raise ValueError(f"no document of the text has more than {tokens} tokens: ask for fewer, or give a longer text")
    return of_tokens(folder, model, torch.tensor(sequences, device=model.device, dtype=torch.long))


def of_tokens(name: str, model: Any, ids_BT: Tensor) -> Traced:
    """A language model that reads these tokens, each but the first to be predicted."""
    own, tokens = isinstance(model, MaclaurinForCausalLM), ids_BT.shape[1] - 1
    if not own:
        model = _readable(name, model)
        if (window := getattr(model.config, "sliding_window", None)) is not None and window < tokens:
            raise ValueError(f"{name!r} sees the last {window} tokens only: ask for at most so many, got {tokens}")

    def run() -> Tensor:
        logits = model(ids_BT[:, :-1], use_cache=False).logits
        right: Tensor = (logits.argmax(-1) == ids_BT[:, 1:]).flatten()
        return right

    kinds = model.config.layer_mixers() if own else model.config.students
    return (Traced if own else OfTransformers)(name, model, run, None, tokens, kinds)


def _readable(name: str, model: Any) -> Any:
    """As it is if it was converted, and otherwise a copy that can be looked into."""
    if isinstance(model, Linearised):
        return model
    if model.config.model_type not in FAMILIES:
        known = ", ".join(kind for kind, family in FAMILIES.items() if family.causal)
        raise ValueError(
            f"{name!r} is a model of type {model.config.model_type!r}: the lab looks into models of this project and into "
            f"{known}"
        )
    return linearise(model, [SOFTMAX] * model.config.num_hidden_layers).eval().to(model.device)


def models(
    rows: dict[str, Row], folder: str | None, text: str | None, *, steps: int, seed: int, examples: int, tokens: int
) -> Sequence[Traced]:
    """The checkpoint where one is given, otherwise a digits model per row."""
    if folder is None:
        return digits(rows, steps=steps, seed=seed, images=examples)
    return [checkpoint(folder, text, tokens=tokens, texts=examples)]
