"""The vision model: patches, learned positions and pre-norm layers with any mixer that sees whole sequences.

One stage is DeiT's layout, four stages with patches of 4, 2, 2, 2 are PVT's without its spatial reduction of keys and
values, which a linear mixer does not need. A class token joins in the last stage. Unlike the InLine paper's PVT, all have a
last norm. Swin and CSwin have windows (`windows.py`) in place of positions; Swin's patches are normalised before they are
merged, CSwin's overlap. Unlike the InLine paper's CSwin, the filter of InLine is made from the mean of normalised tokens.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPooling, ImageClassifierOutput
from transformers.utils import can_return_tuple

from maclaurin.mixers import build_mixer
from maclaurin.mixers.base import Mixer, initialise
from maclaurin.models.arguments import refuse_unknown
from maclaurin.models.decoder import MaclaurinPreTrainedModel
from maclaurin.models.vision_config import MaclaurinVisionConfig
from maclaurin.models.windows import CrossShaped, Windows, WindowSoftmax
from maclaurin.ops.checks import shape


def layer_mixer(
    config: MaclaurinVisionConfig, stage: int, index: int, grid: tuple[int, int], class_tokens: int
) -> Mixer | Windows | CrossShaped:
    """What mixes the tokens of a layer: over the whole grid, or in its windows."""
    width, heads = config.hidden_sizes[stage], config.num_attention_heads[stage]
    name = config.layer_mixers()[stage][index]
    if config.layout == "plain":
        return build_mixer(name, width, heads, causal=False, **config.options_of(name, grid, class_tokens))
    rows, columns = grid
    side = config.layer_windows()[stage][index]

    def mixer_in(window: tuple[int, int], heads: int, **options: Any) -> Mixer:
        return build_mixer(name, width, heads, causal=False, **options, **config.options_of(name, window, 0))

    if config.layout == "cswin" and side < min(grid):
        half = {"heads": heads // 2, "head_dim": width // heads}
        return CrossShaped(mixer_in((rows, side), **half), mixer_in((side, columns), **half), grid, side)
    window = min(side, rows), min(side, columns)
    shift = side // 2 if config.layout == "swin" and index % 2 and side < min(grid) else 0
    if config.layout == "swin" and name == "softmax":
        options = config.options_of(name, window, 0)
        return Windows(WindowSoftmax(width, heads, grid=grid, window=window, shift=shift, **options), grid, window, shift)
    return Windows(mixer_in(window, heads), grid, window, shift)


class PatchMerging(nn.Module):
    """Swin's patches of a later stage: normalised together, then projected."""

    def __init__(self, channels: int, width: int, patch: int, eps: float) -> None:
        super().__init__()
        self.patch = patch
        self.norm = nn.LayerNorm(patch**2 * channels, eps)
        self.reduction = nn.Linear(patch**2 * channels, width, bias=False)

    def forward(self, image: Tensor) -> Tensor:
        patches = F.pixel_unshuffle(image, self.patch).permute(0, 2, 3, 1)
        merged: Tensor = self.reduction(self.norm(patches)).permute(0, 3, 1, 2)
        return merged


class VisionLayer(GradientCheckpointingLayer):
    def __init__(
        self, config: MaclaurinVisionConfig, stage: int, index: int, grid: tuple[int, int], class_tokens: int
    ) -> None:
        super().__init__()
        width = config.hidden_sizes[stage]
        inner = round(config.mlp_ratios[stage] * width)
        self.norm_before_mixer = nn.LayerNorm(width, config.layer_norm_eps)
        self.mixer = layer_mixer(config, stage, index, grid, class_tokens)
        self.norm_before_mlp = nn.LayerNorm(width, config.layer_norm_eps)
        self.mlp = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))
        initialise(self.mlp, config.init)

    def forward(self, hidden: Tensor) -> Tensor:
        mixed, _ = self.mixer(self.norm_before_mixer(hidden), return_state=False)
        hidden = hidden + mixed
        return hidden + self.mlp(self.norm_before_mlp(hidden))


class VisionStage(nn.Module):
    """An image (B, channels, rows, columns) -> tokens (B, class tokens + rows·columns of the stage, width)."""

    def __init__(self, config: MaclaurinVisionConfig, stage: int) -> None:
        super().__init__()
        channels = config.hidden_sizes[stage - 1] if stage else config.num_channels
        width, patch, grid = config.hidden_sizes[stage], config.patch_sizes[stage], config.grids()[stage]
        is_last = stage == len(config.depths) - 1
        class_tokens = int(is_last and config.pooling == "class")
        merges = config.layout == "swin" and stage > 0
        self.patch_proj: nn.Module
        if merges:
            self.patch_proj = PatchMerging(channels, width, patch, config.layer_norm_eps)
            initialise(self.patch_proj, config.init)
        elif config.layout == "cswin":
            self.patch_proj = nn.Conv2d(channels, width, 2 * patch - 1, stride=patch, padding=patch // 2)
        else:
            self.patch_proj = nn.Conv2d(channels, width, patch, stride=patch)
        has_norm = config.patch_norm and not merges
        self.patch_norm = nn.LayerNorm(width, config.layer_norm_eps) if has_norm else nn.Identity()
        self.class_token = nn.Parameter(torch.zeros(1, 1, width)) if class_tokens else None
        places = class_tokens + math.prod(grid)
        self.position = nn.Parameter(torch.zeros(1, places, width)) if config.layout == "plain" else None
        self.layers = nn.ModuleList(
            VisionLayer(config, stage, index, grid, class_tokens) for index in range(config.depths[stage])
        )
        for parameter in (self.position, self.class_token):
            if parameter is not None:
                nn.init.normal_(parameter, std=config.initializer_range)

    def forward(self, image: Tensor) -> Tensor:
        tokens = self.patch_norm(self.patch_proj(image).flatten(2).transpose(1, 2))
        if self.class_token is not None:
            tokens = torch.cat([self.class_token.to(tokens.dtype).expand(len(tokens), -1, -1), tokens], dim=1)
        if self.position is not None:
            tokens = tokens + self.position
        for layer in self.layers:
            tokens = layer(tokens)
        return tokens


class MaclaurinVisionPreTrainedModel(MaclaurinPreTrainedModel):
    config: MaclaurinVisionConfig
    config_class = MaclaurinVisionConfig
    base_model_prefix = "model"
    main_input_name = "pixel_values"
    input_modalities = ("image",)
    _no_split_modules = ("VisionLayer",)
    _is_stateful = False

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Everything but the head initialises itself when it is built."""
        if module is getattr(self, "classifier", None):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
            nn.init.zeros_(module.bias)


class MaclaurinVisionModel(MaclaurinVisionPreTrainedModel):
    """Images (batch, channels, rows, columns) -> tokens of the last stage, and one vector per image."""

    def __init__(self, config: MaclaurinVisionConfig) -> None:
        super().__init__(config)
        self.stages = nn.ModuleList(VisionStage(config, stage) for stage in range(len(config.depths)))
        self.norm = nn.LayerNorm(config.hidden_sizes[-1], config.layer_norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    @can_return_tuple
    def forward(self, pixel_values: Tensor, **others: Any) -> BaseModelOutputWithPooling:
        refuse_unknown(others, self.forward)
        size = self.config.image_size
        expected = (self.config.num_channels, *((size, size) if isinstance(size, int) else size))
        if pixel_values.dim() != 4 or tuple(pixel_values.shape[1:]) != expected:
            raise ValueError(
                f"pixel_values must have shape (batch, {', '.join(map(str, expected))}), got {shape(pixel_values)}: the "
                "model has learned one position per patch of images of that size; resize the images, or train a "
                "model with another image_size"
            )
        image = pixel_values.to(self.norm.weight.dtype)
        for stage, (rows, columns) in zip(self.stages, self.config.grids(), strict=True):
            tokens = stage(image)
            if stage is not self.stages[-1]:
                image = tokens.transpose(1, 2).unflatten(2, (rows, columns))
        tokens = self.norm(tokens)
        pooled = tokens[:, 0] if self.config.pooling == "class" else tokens.mean(1)
        return BaseModelOutputWithPooling(last_hidden_state=tokens, pooler_output=pooled)


class MaclaurinForImageClassification(MaclaurinVisionPreTrainedModel):
    """The classifier: logits (batch, labels), and with labels (batch,) the mean cross entropy in float32."""

    def __init__(self, config: MaclaurinVisionConfig) -> None:
        super().__init__(config)
        self.model = MaclaurinVisionModel(config)
        self.classifier = nn.Linear(config.hidden_sizes[-1], config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(self, pixel_values: Tensor, labels: Tensor | None = None, **others: Any) -> ImageClassifierOutput:
        refuse_unknown(others, self.forward)
        logits = self.classifier(self.model(pixel_values, return_dict=True).pooler_output)
        loss = None if labels is None else F.cross_entropy(logits.float(), labels)
        return ImageClassifierOutput(loss=loss, logits=logits)
