"""Language models from their folders, to be looked into: those of this project, and those of `transformers`.

The attention of the latter is read off their interface, in a copy in which every layer keeps its softmax, for the families
that `maclaurin convert` knows.
"""

# B texts, T tokens

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from maclaurin.evals.cells import Row
from maclaurin.evals.text import documents_of
from maclaurin.lab.traces import Hidden, Layer, Watched, change_of_values, digits
from maclaurin.mixers import build_mixer
from maclaurin.mixers.projected import ProjectedMixer, Projections
from maclaurin.models import MaclaurinForCausalLM
from maclaurin.models.folder import open_model
from maclaurin.models.linearised.attention import watching
from maclaurin.models.linearised.classes import FAMILIES, Linearised, linearise
from maclaurin.models.linearised.students import SOFTMAX, Softmax

MOST_TOKENS = 1024  # unless more are asked for


def checkpoint(folder: str, text: str | None, *, tokens: int | None, texts: int) -> Watched:
    """A model and the first `tokens` tokens of `texts` documents that are so long; None for what it was made for.

    text: a file, a folder or a corpus; None for the held-out part of what the model was trained on, or of the standard
    library if it does not say what that was.
    """
    model, tokenizer = open_model(folder)
    if text is None and not (Path(folder) / "recipe.json").is_file():
        text = "stdlib"
    if tokens is None:
        tokens = min(getattr(model.config, "max_position_embeddings", MOST_TOKENS), MOST_TOKENS)
    encoded = (tokenizer(document, add_special_tokens=False)["input_ids"] for document in documents_of(folder, text))
    rows = list(islice((ids[: tokens + 1] for ids in encoded if len(ids) > tokens), texts))
    if not rows:
        raise ValueError(f"no document of the text has more than {tokens} tokens: ask for fewer, or give a longer text")
    return of_tokens(folder, model, torch.tensor(rows, device=model.device, dtype=torch.long))


def of_tokens(name: str, model: Any, ids_BT: Tensor) -> Watched:
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
    return (Watched if own else OfTransformers)(name, model, run, None, tokens, kinds)


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


class OfTransformers(Watched):
    """A model of `transformers`, whose layers are softmax attention. Layers that were converted have no part in it."""

    @torch.no_grad()
    def layers(self) -> list[Layer]:
        with watching() as views:
            self.run()
        found = [
            Layer(index, kind, stand_in(view.q, view.k, view.v, view.student), projected(view.q, view.k, view.v))
            for index, (kind, view) in enumerate(zip(self.kinds, views, strict=True))
            if isinstance(view.student, Softmax)
        ]
        if not found:
            raise ValueError(f"{self.name!r} has no layer of softmax attention: its layers are {', '.join(set(self.kinds))}")
        return found

    @contextmanager
    def hiding(self, hidden: Hidden) -> Iterator[None]:
        def corrected(student: nn.Module, args: tuple[Any, ...], output: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
            q, k, v = args[:3]
            mixer = stand_in(q, k, v, student)
            hidden_TS = hidden(mixer)
            if hidden_TS is None:
                return output
            return output[0] + change_of_values(mixer, projected(q, k, v), hidden_TS).to(v.dtype), output[1]

        with self.hooked(Softmax, corrected):
            yield


def stand_in(q: Tensor, k: Tensor, v: Tensor, student: Any) -> ProjectedMixer:
    """The mixer of this project that has the weights of such a layer; what it would project is known."""
    options: dict[str, Any] = {"num_kv_heads": k.shape[2], "key_dim": q.shape[3], "head_dim": v.shape[3], "rotary": "none"}
    name, window = ("softmax", {}) if student.window is None else ("sliding-window", {"window": student.window})
    mixer = build_mixer(name, student.shape.d_model, q.shape[2], **options | window)
    assert isinstance(mixer, ProjectedMixer)
    return mixer.to(q.dtype)


def projected(q: Tensor, k: Tensor, v: Tensor) -> Projections:
    """Queries and keys that are already rotated."""
    positions = torch.arange(q.shape[1], device=q.device, dtype=torch.long).expand(q.shape[0], -1)
    return Projections(q, k, v, v, None, None, None, positions, positions[:, -1] + 1, None)


def models(
    rows: dict[str, Row], folder: str | None, text: str | None, *, steps: int, seed: int, examples: int, tokens: int
) -> Sequence[Watched]:
    """The checkpoint where one is given, otherwise a digits model a row."""
    if folder is None:
        return digits(rows, steps=steps, seed=seed, images=examples)
    return [checkpoint(folder, text, tokens=tokens, texts=examples)]
