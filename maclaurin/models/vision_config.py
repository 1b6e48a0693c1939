"""The configuration of a vision model: stages of layers, each on a coarser grid than the one before, and a mixer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from itertools import islice
from typing import Any, TypeVar

from transformers import PretrainedConfig

from maclaurin.common.arguments import one_of
from maclaurin.mixers.base import checked_init
from maclaurin.mixers.registry import mixer_entry
from maclaurin.models import fields
from maclaurin.models.config import named_options

T = TypeVar("T")

POOLINGS = ("class", "mean")
LAYOUTS = ("plain", "swin", "cswin")
PER_STAGE = ("hidden_sizes", "depths", "num_attention_heads", "mlp_ratios", "patch_sizes")  # lists


def _deit(width: int, heads: int, image_size: int) -> dict[str, Any]:
    return {
        "hidden_sizes": [width],
        "depths": [12],
        "num_attention_heads": [heads],
        "mlp_ratios": [4],
        "patch_sizes": [16],
        "patch_norm": False,
        "image_size": image_size,
        "num_labels": 1000,
    }


def _pvt(*depths: int) -> dict[str, Any]:
    return {
        "hidden_sizes": [64, 128, 320, 512],
        "depths": list(depths),
        "num_attention_heads": [2, 4, 10, 16],
        "mlp_ratios": [8, 8, 4, 4],
        "patch_sizes": [4, 2, 2, 2],
        "patch_norm": True,
        "pooling": "mean",
        "image_size": 224,
        "num_labels": 1000,
    }


def _swin(width: int, heads: int, depths: list[int], inline: list[int]) -> dict[str, Any]:
    """inline: how many of the first layers of each stage have InLine attention over the whole grid."""
    of_layers = [index < first for depth, first in zip(depths, inline, strict=True) for index in range(depth)]
    return {
        "layout": "swin",
        "hidden_sizes": [width * 2**stage for stage in range(4)],
        "depths": depths,
        "num_attention_heads": [heads * 2**stage for stage in range(4)],
        "mlp_ratios": [4, 4, 4, 4],
        "patch_sizes": [4, 2, 2, 2],
        "patch_norm": True,
        "pooling": "mean",
        "mixer": ["inline" if own else "softmax" for own in of_layers],
        "windows": [56 if own else 7 for own in of_layers],
        "layer_norm_eps": 1e-5,
        "image_size": 224,
        "num_labels": 1000,
    }


def _cswin(width: int, heads: int, depths: list[int]) -> dict[str, Any]:
    mixers = {"mixer": ["inline", "inline", "softmax", "softmax"], "windows": [56, 28, 7, 7]}
    return _swin(width, heads, depths, [0, 0, 0, 0]) | {"layout": "cswin"} | mixers


SIZES: dict[str, dict[str, Any]] = {
    "tiny": {},
    "deit-t": _deit(192, 6, 224),
    "deit-s": _deit(320, 10, 288),
    "deit-b": _deit(384, 12, 448),
    "pvt-t": _pvt(2, 2, 2, 2),
    "pvt-s": _pvt(3, 4, 6, 3),
    "pvt-m": _pvt(3, 4, 18, 3),
    "pvt-l": _pvt(3, 8, 27, 3),
    "swin-t": _swin(96, 3, [2, 2, 6, 2], [2, 2, 6, 0]),
    "swin-s": _swin(96, 3, [2, 2, 18, 2], [2, 2, 0, 0]),
    "swin-b": _swin(128, 4, [2, 2, 18, 2], [2, 2, 2, 0]),
    "cswin-t": _cswin(64, 2, [2, 4, 18, 1]),
    "cswin-s": _cswin(64, 2, [3, 6, 29, 2]),
    "cswin-b": _cswin(96, 4, [3, 6, 29, 2]),
}


class MaclaurinVisionConfig(PretrainedConfig):
    """Lists have one entry per stage; a model of one stage is a plain vision transformer.

    image_size: a number for squares, or [rows, columns]. patch_sizes: how many positions of the previous grid, per side,
    become one.
    mlp_ratios: times the width of the stage, rounded.
    patch_norm: a LayerNorm behind each patch embedding. pooling: "class" (a token of the last stage) or "mean".
    mixer: one name for all stages, or a list with one per stage or per layer; any mixer that can see whole sequences.
    layout: "plain" (positions are learned, every layer sees the whole grid), "swin" or "cswin" (`windows.py`), which need
    the pooling "mean".
    windows: the side of Swin's windows, or the width of CSwin's stripes, one per stage or per layer; a side of the grid or
    more is the whole grid.
    mixer_options: options for every mixer, or a dict of options by mixer name.
    init: of the layers, "llama" (N(0, 0.02), biases zero) or "torch" (PyTorch's defaults). Positions, class token and head
    are drawn from N(0, initializer_range).
    """

    model_type = "maclaurin_vision"

    image_size: int | list[int] = 32
    num_channels: int = 3
    hidden_sizes: list[int] = field(default_factory=lambda: [96])
    depths: list[int] = field(default_factory=lambda: [4])
    num_attention_heads: list[int] = field(default_factory=lambda: [4])
    mlp_ratios: list[int | float] = field(default_factory=lambda: [4])
    patch_sizes: list[int] = field(default_factory=lambda: [4])
    patch_norm: bool = False
    pooling: str = "class"
    layout: str = "plain"
    windows: list[int] | None = None
    mixer: str | list[str] = "inline"
    mixer_options: dict[str, Any] | None = None
    layer_norm_eps: float = 1e-6
    initializer_range: float = 0.02
    init: str = "llama"

    @classmethod
    def of_size(cls, size: str, **fields: Any) -> MaclaurinVisionConfig:
        """`tiny` for small images on a laptop; the others as in the InLine paper, whose s and b are narrower than DeiT's.

        Swin and CSwin have InLine in their first stages. With `mixer="softmax", windows=[7, 7, 7, 7]`, or for CSwin
        `windows=[1, 2, 7, 7]`, they are those of their own papers, but for the depths of CSwin.
        """
        one_of("size", size, tuple(SIZES))
        return cls(**{**SIZES[size], **fields})

    def __post_init__(self, **kwargs: Any) -> None:
        self._check_fields()
        fields.inherited(self, kwargs)
        super().__post_init__(**kwargs)
        stages = len(self.depths)
        lengths = {name: len(getattr(self, name)) for name in PER_STAGE}
        if len(set(lengths.values())) > 1 or not stages:
            shown = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise ValueError(f"every list must have one entry per stage, got {shown}")
        self._check_mixers()
        self._check_windows()

    def _check_fields(self) -> None:
        """Types and ranges, before anything is built from them."""
        sides = self.image_size if isinstance(self.image_size, list | tuple) else [self.image_size]
        for side in sides:
            fields.whole("image_size", side)
        fields.whole("num_channels", self.num_channels)
        for name in PER_STAGE:
            values = getattr(self, name)
            if not isinstance(values, list | tuple):
                raise ValueError(f"{name} must be a list with one entry per stage, got {fields.shown(values)}")
            for value in values:
                if name == "mlp_ratios":
                    fields.real(name, value)
                else:
                    fields.whole(name, value, largest=fields.MOST_LAYERS if name == "depths" else fields.LARGEST_SIZE)
        for name in ("layer_norm_eps", "initializer_range"):
            fields.real(name, getattr(self, name))
        fields.flag("patch_norm", self.patch_norm)
        self.init = checked_init(self.init)
        one_of("pooling", self.pooling, POOLINGS)
        one_of("layout", self.layout, LAYOUTS)
        if self.windows is not None:
            if not isinstance(self.windows, list | tuple):
                raise ValueError(
                    f"windows must be a list with one side per stage or layer, got {fields.shown(self.windows)}"
                )
            for side in self.windows:
                fields.whole("windows", side)
        fields.names("mixer", self.mixer)
        fields.options("mixer_options", self.mixer_options)
        fields.parameters(sum(depth * width**2 for depth, width in zip(self.depths, self.hidden_sizes, strict=False)))

    def _check_mixers(self) -> None:
        for name in {name for stage in self.layer_mixers() for name in stage}:
            if not mixer_entry(name).mixer.bidirectional:
                raise ValueError(f"mixer {name!r} is causal only: a vision model needs one that sees whole images")

    def _check_windows(self) -> None:
        if (self.layout == "plain") != (self.windows is None):
            raise ValueError(f"windows go with layout 'swin' or 'cswin', got {self.windows} and {self.layout!r}")
        if self.layout != "plain" and self.pooling != "mean":
            raise ValueError(f"pooling must be 'mean' with layout {self.layout!r}, got {self.pooling!r}")
        for (rows, columns), windows, heads in zip(
            self.grids(), self.layer_windows(), self.num_attention_heads, strict=True
        ):
            for side in windows:
                if rows % min(side, rows) or columns % min(side, columns):
                    raise ValueError(f"windows must divide the grid of {rows} x {columns}, got {side}")
                if self.layout == "cswin" and side < min(rows, columns) and heads % 2:
                    raise ValueError(f"num_attention_heads must be even where stripes cross, got {heads}")

    def layer_mixers(self) -> list[list[str]]:
        """The name of every layer's mixer, stage by stage."""
        return self._per_layer("mixer", [self.mixer] * len(self.depths) if isinstance(self.mixer, str) else self.mixer)

    def layer_windows(self) -> list[list[int]]:
        """The side of every layer's windows, stage by stage; of a plain layout none."""
        return [[] for _ in self.depths] if self.windows is None else self._per_layer("windows", self.windows)

    def _per_layer(self, name: str, values: Sequence[T]) -> list[list[T]]:
        stages, layers = len(self.depths), sum(self.depths)
        if len(values) == stages:
            return [[value] * depth for value, depth in zip(values, self.depths, strict=True)]
        if len(values) != layers:
            raise ValueError(
                f"{name} must have one entry for each of the {stages} stages or {layers} layers, got {len(values)}"
            )
        rest = iter(values)
        return [list(islice(rest, depth)) for depth in self.depths]

    def grids(self) -> list[tuple[int, int]]:
        """The (rows, columns) of every stage."""
        sides = [self.image_size] * 2 if isinstance(self.image_size, int) else list(self.image_size)
        if len(sides) != 2:
            raise ValueError(f"image_size must be a number or [rows, columns], got {self.image_size}")
        rows, columns = sides
        found = []
        for stage, patch in enumerate(self.patch_sizes):
            if patch < 1 or rows % patch or columns % patch or not rows or not columns:
                raise ValueError(f"patch_sizes must divide the grid of {rows} x {columns} before stage {stage}, got {patch}")
            rows, columns = rows // patch, columns // patch
            found.append((rows, columns))
        return found

    def options_of(self, name: str, grid: tuple[int, int], class_tokens: int) -> dict[str, Any]:
        """The options of a mixer of that name. A mixer with the option grid gets the grid of its stage, or of its windows.

        Projections have biases. Positions are learned, or known from windows; rotary ones, which would count along rows, are
        off unless asked for.
        """
        known = mixer_entry(name).options()
        chosen: dict[str, Any] = {"init": self.init}
        chosen |= {option: value for option, value in (("rotary", "none"), ("projection_bias", True)) if option in known}
        if "grid" in known:
            chosen |= {"grid": grid, "class_tokens": class_tokens}
        if self.layout == "cswin" and "lepe" in known:
            chosen["lepe"] = grid
        return chosen | named_options(self.mixer_options, name)
