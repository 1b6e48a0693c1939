"""The small models of the suites: answers at tokens, or one answer per sequence, per pair of sequences, or per image."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from maclaurin.data.tasks import NOT_ASKED, Batch, Labelled, Task
from maclaurin.evals.cells import Row, Setting
from maclaurin.mixers import build_mixer
from maclaurin.models import (
    MaclaurinConfig,
    MaclaurinForCausalLM,
    MaclaurinForImageClassification,
    MaclaurinModel,
    MaclaurinVisionConfig,
)

PATCH = 2  # side of a patch, one token of a vision model, in pixels


class SmallModel(nn.Module, ABC):
    """Examples -> logits (answers, classes) and targets (answers,), in the order of the examples."""

    @abstractmethod
    def state_nbytes(self, length: int) -> int | None:
        """The state for one sequence of that length; None if the model reads all tokens at once."""


class AtTokens(SmallModel):
    """A language model with answers at some of its tokens. A target is at the position of its answer: nothing is shifted."""

    def __init__(self, config: MaclaurinConfig) -> None:
        super().__init__()
        self.model = MaclaurinForCausalLM(config)

    def forward(self, examples: Batch) -> tuple[Tensor, Tensor]:
        hidden = self.model.model(examples.tokens, use_cache=False).last_hidden_state
        asked = examples.targets != NOT_ASKED
        return self.model.lm_head(hidden[asked]), examples.targets[asked]  # logits only where there is a target

    def state_nbytes(self, length: int) -> int | None:
        return _state_nbytes(self.model.model, length)


class Compressed(SmallModel):
    """A language model's layers, of which the vector of the last token alone is decoded.

    At every place that is asked for, by an MLP of this vector plus one for the place (MAD, arXiv 2403.17844).
    """

    def __init__(self, config: MaclaurinConfig, num_classes: int) -> None:
        super().__init__()
        width = config.hidden_size
        self.model = MaclaurinModel(config)
        self.places = nn.Embedding(config.max_position_embeddings, width)
        self.decoder = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, num_classes))

    def forward(self, examples: Batch) -> tuple[Tensor, Tensor]:
        last_NC = self.model(examples.tokens, use_cache=False).last_hidden_state[:, -1]
        asked_NT = examples.targets != NOT_ASKED
        example, place = asked_NT.nonzero(as_tuple=True)
        return self.decoder(last_NC[example] + self.places(place)), examples.targets[asked_NT]

    def state_nbytes(self, length: int) -> int | None:
        return _state_nbytes(self.model, length)


class OfSequences(SmallModel):
    """A language model's layers, the mean of the last hidden states over tokens, and a linear classifier.

    Images are read pixel by pixel.
    """

    def __init__(self, config: MaclaurinConfig, num_classes: int) -> None:
        super().__init__()
        self.model = MaclaurinModel(config)
        self.classifier = nn.Linear(config.hidden_size, num_classes)

    def forward(self, examples: Labelled) -> tuple[Tensor, Tensor]:
        tokens = examples.inputs.flatten(1).long()
        return self.classifier(_mean_hidden(self.model, tokens, examples.lengths)), examples.labels

    def state_nbytes(self, length: int) -> int | None:
        return _state_nbytes(self.model, length)


class OfPairs(SmallModel):
    """The Long Range Arena's two towers: one encoder for both documents, and an MLP on their vectors.

    x, y are the means over the tokens of each; the MLP gets (x, y, x·y, x - y) and narrows to 2, then 1 widths.
    """

    def __init__(self, config: MaclaurinConfig, num_classes: int) -> None:
        super().__init__()
        width = config.hidden_size
        self.model = MaclaurinModel(config)
        self.classifier = nn.Sequential(
            nn.Linear(4 * width, 2 * width),
            nn.ReLU(),
            nn.Linear(2 * width, width),
            nn.ReLU(),
            nn.Linear(width, num_classes),
        )

    def forward(self, examples: Labelled) -> tuple[Tensor, Tensor]:
        lengths = None if examples.lengths is None else examples.lengths.flatten()
        x, y = _mean_hidden(self.model, examples.inputs.flatten(0, 1), lengths).unflatten(0, (-1, 2)).unbind(1)
        return self.classifier(torch.cat([x, y, x * y, x - y], -1)), examples.labels

    def state_nbytes(self, length: int) -> int | None:
        """The state for one document, since the two are read one after the other."""
        return _state_nbytes(self.model, length)


class OfImages(SmallModel):
    """A vision model, whose mixers see the whole image at once and have no state; pixels are scaled to -1 … 1."""

    def __init__(self, config: MaclaurinVisionConfig, largest: int) -> None:
        super().__init__()
        self.model = MaclaurinForImageClassification(config)
        self.largest = largest

    def forward(self, examples: Labelled) -> tuple[Tensor, Tensor]:
        pixels = 2 * examples.inputs[:, None].float() / self.largest - 1
        return self.model(pixels).logits, examples.labels

    def state_nbytes(self, length: int) -> None:
        return None


def _mean_hidden(model: MaclaurinModel, tokens_NT: Tensor, lengths_N: Tensor | None) -> Tensor:
    """The mean of the last hidden states over tokens, (N, width); an empty text gives zeros."""
    if lengths_N is None:
        return model(tokens_NT, use_cache=False).last_hidden_state.mean(1)
    tokens_NT = tokens_NT[:, : max(int(lengths_N.max()), 1)]
    mask_NT = torch.arange(tokens_NT.shape[1], dtype=torch.long, device=tokens_NT.device) < lengths_N[:, None]
    hidden = model(tokens_NT, attention_mask=mask_NT.long(), use_cache=False).last_hidden_state
    return hidden.masked_fill(~mask_NT[..., None], 0).sum(1) / lengths_N.clamp(min=1)[:, None]


def _see_everything(model: MaclaurinModel) -> None:
    """Layers of an encoder in place of those of a decoder."""
    config = model.config
    sizes = (config.hidden_size, config.num_attention_heads)
    for layer, name in zip(model.layers, config.layer_mixers(), strict=True):
        layer.mixer = build_mixer(name, *sizes, causal=False, **config.options_of(name))


def _state_nbytes(model: Any, length: int) -> int | None:
    """None of an encoder, which reads all tokens at once."""
    if not all(layer.mixer.causal for layer in model.layers):
        return None
    return sum(layer.mixer.state_nbytes(length) for layer in model.layers)


def _vision_config(
    row: Row, setting: Setting, task: Task[Any], heads: int, options: dict[str, dict[str, Any]]
) -> MaclaurinVisionConfig:
    fields: dict[str, Any] = {"patch_sizes": [PATCH], "pooling": "mean", **row.vision}
    stages = len(fields["patch_sizes"])
    return MaclaurinVisionConfig(
        image_size=task.sample(1, 0).inputs.shape[-1],
        num_channels=1,
        hidden_sizes=[setting.width * 2**stage for stage in range(stages)],
        depths=[max(setting.layers // stages, 1)] * stages,
        num_attention_heads=[heads * 2**stage for stage in range(stages)],
        mlp_ratios=[setting.inner / setting.width] * stages,
        mixer=row.mixers[0] if len(row.mixers) == 1 else list(row.mixers),
        mixer_options=options,
        num_labels=task.num_classes,
        **fields,
    )


def build(row: Row, setting: Setting, task: Task[Any]) -> SmallModel:
    """A new model for a task; ValueError if task and setting do not fit together."""
    options = {name: dict(own) for name, own in row.options.items()}
    heads = row.heads or setting.heads
    if setting.model == "vision":
        return OfImages(_vision_config(row, setting, task, heads, options), task.vocab_size - 1)
    text = MaclaurinConfig(
        vocab_size=task.vocab_size,
        hidden_size=setting.width,
        intermediate_size=setting.inner,
        num_hidden_layers=setting.layers,
        num_attention_heads=heads,
        mixer=list(row.mixers),
        mixer_options=options,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
    )
    model: AtTokens | Compressed | OfPairs | OfSequences
    if setting.model in ("language", "compressed"):
        if row.bidirectional:
            raise ValueError("a language model sees only what came before: its rows must not be bidirectional")
        model = AtTokens(text) if setting.model == "language" else Compressed(text, task.num_classes)
    else:
        model = (OfPairs if setting.model == "pairs" else OfSequences)(text, task.num_classes)
        if row.bidirectional:
            _see_everything(model.model)
    if setting.embedding_std != text.initializer_range:  # the output head keeps initializer_range
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                with torch.no_grad():
                    module.weight *= setting.embedding_std / text.initializer_range
    return model
