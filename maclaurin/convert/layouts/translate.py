"""Published checkpoints of linear models as `maclaurin` models and back: names of tensors, and fields of config.json.

Where a layout has three tensors for what is one here (q, k and v), they are joined, and cut again on the way back. Tensors
keep their type, so that the way there and back changes no bit. Only safetensors and config.json are read: state-spaces
publishes pickles, which their owner has to save again.

What the mixers do not compute is refused by the name of its field, not approximated, and so is what a layout cannot say.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from maclaurin.common.arguments import one_of
from maclaurin.common.files import naming, replacing, write_text
from maclaurin.convert.layouts.files import apart, copy_tokenizer, described_by, shapes_of, tensors_of
from maclaurin.convert.layouts.fla import FLA_LAYOUTS
from maclaurin.convert.layouts.layout import EMBEDDINGS, HEAD, Described, Layout, Shapes, options_of
from maclaurin.convert.layouts.mamba import MAMBA_LAYOUTS
from maclaurin.convert.layouts.recurrent_gemma import RECURRENT_GEMMA_LAYOUTS
from maclaurin.convert.layouts.xlstm import XLSTM_LAYOUTS
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM
from maclaurin.models.checked import check_size

LAYOUTS: dict[str, Layout] = MAMBA_LAYOUTS | FLA_LAYOUTS | XLSTM_LAYOUTS | RECURRENT_GEMMA_LAYOUTS
# beside options of mixers, what a layout has to say of a model
SAID = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "rms_norm_eps",
    "logit_cap",
    "tie_word_embeddings",
    "mlp_bias",
    "embedding_scale",
    "zero_centered_norms",
)


def import_layout(folder: Path, output: Path) -> Iterator[str]:
    """Writes the model to `output`, with the tokenizer if there is one; says what it found, line by line."""
    apart(folder, output)
    name, model, unknown = load_layout(folder)
    model.save_pretrained(output)
    copy_tokenizer(folder, output)
    for tensor in unknown:
        yield f"unknown and left out: {tensor}"
    config = model.config
    yield f"{name}: {model.num_parameters():,} parameters, {config.num_hidden_layers} layers of {_kinds(config)}"
    yield str(output)


def load_layout(folder: Path) -> tuple[str, MaclaurinForCausalLM, list[str]]:
    """The name of the layout, the model, and the names of tensors that have no place in it."""
    described, file = described_by(folder), folder / "config.json"
    with naming(file):
        name = next((name for name, layout in LAYOUTS.items() if layout.recognised(described)), None)
    if name is None:
        kind = described.get("model_type")
        raise ValueError(f"{str(folder)!r} must have a known layout ({', '.join(LAYOUTS)}), its model_type is {kind!r:.60}")
    shapes, layout = shapes_of(folder), LAYOUTS[name]
    with naming(file):
        config = _config(layout, described, shapes)
    check_size(folder, described, lambda: MaclaurinForCausalLM(config))
    model = MaclaurinForCausalLM(config)
    with naming(folder):
        given, used = _joined(layout, tensors_of(folder), model)
    model.load_state_dict(given, assign=True)
    model.tie_weights()
    return name, model.eval(), sorted(set(shapes) - used)


def _config(layout: Layout, described: Described, shapes: Shapes) -> MaclaurinConfig:
    try:
        fields = layout.fields(described, shapes)
        fields["vocab_size"] = shapes[str(layout.names[EMBEDDINGS])][0]
    except KeyError as missing:
        raise ValueError(f"config.json and the tensors must have {missing.args[0]}, they have not") from missing
    return MaclaurinConfig(**fields)


def _joined(layout: Layout, tensors: dict[str, Tensor], model: MaclaurinForCausalLM) -> tuple[dict[str, Tensor], set[str]]:
    given: dict[str, Tensor] = {}
    used: set[str] = set()
    known, tied = model.state_dict(), model.config.tie_word_embeddings
    for ours, parts, layer in _pairs(layout, model.config):
        wanted = known.get(ours)
        if wanted is None:
            continue
        if ours == HEAD and tied and HEAD not in tensors:
            parts = (str(layout.names[EMBEDDINGS]),)
        for part in parts:
            if part not in tensors:
                raise ValueError(f"the checkpoint lacks {part}" + (f" of layer {layer}" if layer else ""))
        dim = -1 if ours.endswith(layout.beside) else 0
        made = torch.cat([tensors[part] for part in parts], dim) if len(parts) > 1 else tensors[parts[0]]
        if ours.endswith(layout.flat) and made.numel() == wanted.numel():
            made = made.view(wanted.shape)
        if made.shape != wanted.shape:
            raise ValueError(
                f"the checkpoint has {' and '.join(parts)} of shape {tuple(made.shape)}, "
                f"its config.json gives {tuple(wanted.shape)}"
            )
        given[ours] = made
        used.update(parts)
    for part, several in _shared(layout, model.config):
        if part not in tensors:
            raise ValueError(f"the checkpoint lacks {part}")
        rows, made = [len(known[ours]) for ours in several], tensors[part]
        if made.shape != (sum(rows), *known[several[0]].shape[1:]):
            raise ValueError(
                f"the checkpoint has {part} of shape {tuple(made.shape)}, "
                f"its config.json gives {(sum(rows), *known[several[0]].shape[1:])}"
            )
        given.update(zip(several, (piece.clone() for piece in made.split(rows)), strict=True))
        used.add(part)
    if tied and not torch.equal(given[HEAD], given[EMBEDDINGS]):
        raise ValueError(f"config.json says that {HEAD} is the embeddings, the checkpoint has another one")
    return given, used


def export_layout(folder: Path, output: Path, to: str) -> Iterator[str]:
    """Writes the model of a folder in a published layout, with its tokenizer."""
    one_of("to", to, tuple(LAYOUTS))
    apart(folder, output)
    layout, config = LAYOUTS[to], MaclaurinConfig.from_pretrained(folder)
    if not set(config.layer_mixers()) <= set(layout.mixers) or config.mlp != layout.mlp:
        its, has = f"{', '.join(layout.mixers)} alone and mlp {layout.mlp}", f"{_kinds(config)} and mlp {config.mlp}"
        raise ValueError(f"layout {to} is of layers of {its}, {str(folder)!r} has {has}")
    shapes_of(folder)
    found, left = _cut(layout, tensors_of(folder), config)
    if left:
        raise ValueError(f"layout {to} has no place for {', '.join(left)}")
    described = layout.described(config)
    _says_all(to, described, found, config)
    output.mkdir(parents=True, exist_ok=True)
    with replacing(output / "model.safetensors") as temporary:
        save_file(found, temporary, metadata={"format": "pt"})
    write_text(output / "config.json", json.dumps(described, indent=2) + "\n")
    copy_tokenizer(folder, output)
    yield str(output)


def _cut(layout: Layout, tensors: dict[str, Tensor], config: MaclaurinConfig) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors under their names there, and the names of those without a place."""
    found: dict[str, Tensor] = {}
    with torch.device("meta"):
        layers: Any = MaclaurinForCausalLM(config).model.layers
    if config.tie_word_embeddings:
        tensors.pop(HEAD, None)
    for ours, parts, layer in _pairs(layout, config):
        if ours not in tensors:
            continue
        tensor = tensors.pop(ours)
        if ours.endswith(layout.flat):
            tensor = tensor.flatten()
        pieces: Any = [tensor]
        if ours.endswith(layout.beside):
            pieces = tensor.chunk(len(parts), -1)
        elif len(parts) > 1:
            pieces = tensor.split(layers[layer].mixer.fused[ours.split(".")[-2]])
        found.update(zip(parts, (piece.contiguous() for piece in pieces), strict=True))
    for part, several in _shared(layout, config):
        found[part] = torch.cat([tensors.pop(ours) for ours in several])
    return found, sorted(tensors)


def _shared(layout: Layout, config: MaclaurinConfig) -> Iterator[tuple[str, tuple[str, ...]]]:
    for layer in range(config.num_hidden_layers):
        for theirs, several in layout.shared.items():
            yield theirs.format(layer), tuple(ours.format(layer) for ours in several)


def _says_all(to: str, described: Described, found: dict[str, Tensor], config: MaclaurinConfig) -> None:
    """A layout has no field for most options: what it says must be read again as the same model."""
    again = _config(LAYOUTS[to], described, {name: tuple(tensor.shape) for name, tensor in found.items()})
    wanted, said = ({name: getattr(one, name) for name in SAID} | {"mixers": one.layer_mixers()} for one in (config, again))
    pairs = [(wanted, said)] + [(options_of(config, name), options_of(again, name)) for name in set(config.layer_mixers())]
    for wanted, said in pairs:
        for name in sorted(set(wanted) - {"init", "block"}):
            if wanted[name] != said[name]:
                raise ValueError(f"layout {to} cannot say {name} = {wanted[name]!r:.60}, only {said[name]!r:.60}")


def _kinds(config: MaclaurinConfig) -> str:
    return ", ".join(sorted(set(config.layer_mixers())))


def _pairs(layout: Layout, config: MaclaurinConfig) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """Our name and theirs of every tensor that a model of the layout may have, and the number of its layer."""
    kinds = config.layer_mixers()
    tensors = [(ours, theirs, layer) for ours, theirs in layout.names.items() for layer in range(len(kinds))]
    tensors += [(ours, theirs, layer) for layer, kind in enumerate(kinds) for ours, theirs in layout.mixers[kind].items()]
    for ours, theirs, layer in tensors:
        if "{}" in ours or layer == 0:
            parts = (theirs,) if isinstance(theirs, str) else theirs
            yield ours.format(layer), tuple(part.format(layer) for part in parts), layer
