"""What can be converted: a folder or a name on the hub, recognised or refused in one sentence before any work is done.

Weights are read from safetensors only, code that comes with a model is never run, and nothing is written to its folder.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

# under its short name transformers 5.14 has it only beside torchvision, which it does not need
from transformers.models.auto.image_processing_auto import AutoImageProcessor

from maclaurin.common.files import naming, read_json
from maclaurin.common.hub import DESCRIPTION, WEIGHTS, fetched, from_hub
from maclaurin.convert.gguf import SUFFIX, dequantised
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM, fields
from maclaurin.models.checked import check_size, checked_description, held_by
from maclaurin.models.folder import best_device, tokenizer_in
from maclaurin.models.linearised.classes import FAMILIES, PREFIX
from maclaurin.models.linearised.students import SOFTMAX
from maclaurin.models.weights import check_generation_config, load_whole

PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")
RELATIVE = ("bloom", "deberta", "deberta-v2", "falcon", "longt5", "mpt", "mpnet", "mt5", "t5", "xlnet")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "tokenizer.model")
VISION = "vit"


@dataclass(frozen=True)
class Source:
    """A model that can be converted. kind: "encoder", "vision", "decoder", or "maclaurin" for this project's own."""

    path: Path
    config: PretrainedConfig
    architecture: type[PreTrainedModel]
    kind: str

    @property
    def causal(self) -> bool:
        return self.kind in ("decoder", "maclaurin")

    def load(self) -> PreTrainedModel:
        """The model of its own class, in float32, with all of its weights."""
        options = {} if self.kind == "maclaurin" else {"attn_implementation": "sdpa"}
        with naming(self.path):
            model: PreTrainedModel = load_whole(self.architecture, self.path, unused=_is_pooler, dtype="float32", **options)
        check_generation_config(model, self.path)
        return model.eval().to(best_device())

    def processor(self) -> Any:
        """Its tokenizer or image processor."""
        if self.kind != "vision":
            return tokenizer_in(self.path)
        with naming(self.path):
            return AutoImageProcessor.from_pretrained(self.path, local_files_only=True, trust_remote_code=False)

    def pooling(self) -> str:
        """How token vectors are pooled into a sentence's: as its own files say, or the mean."""
        file = self.path / "1_Pooling" / "config.json"
        if not file.is_file():
            return "mean"
        chosen = read_json(file)
        for key, name in (("pooling_mode_mean_tokens", "mean"), ("pooling_mode_cls_token", "class")):
            if chosen.get(key):
                return name
        raise ValueError(f"source {str(self.path)!r} pools its tokens in another way than by their mean or the first one")


def recognise(spec: str) -> Source:
    """The source in a folder or on the hub, or a ValueError that says what is wrong with it."""
    path = Path(spec)
    if path.is_file() and path.suffix == SUFFIX:
        path = dequantised(path)
    remote = not path.is_dir()
    if remote:
        path = fetched("source", spec, DESCRIPTION)
    described = _config_file(path, spec)
    kind = _kind(described, spec)
    _check_processor(path, spec, kind)
    if remote:
        path = fetched("source", spec, (*DESCRIPTION, WEIGHTS))
    _check_weights(path, spec, remote)
    with naming(path / "config.json"):
        if kind == "maclaurin":
            return Source(path, MaclaurinConfig.from_pretrained(path), MaclaurinForCausalLM, kind)
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    architecture = _architecture(described, spec)
    check_size(path, described, lambda: architecture(copy.deepcopy(config)))
    return Source(path, config, architecture, kind)


def _config_file(path: Path, spec: str) -> dict[str, Any]:
    file = path / "config.json"
    if not file.is_file():
        raise ValueError(f"source {spec!r} has no config.json: it is no folder of a model")
    try:
        return checked_description(path)
    except ValueError as error:
        raise ValueError(f"source {spec!r} cannot be converted: {error}") from error


def _kind(config: dict[str, Any], spec: str) -> str:
    name = config["model_type"]
    supported = ", ".join((*FAMILIES, MaclaurinConfig.model_type))
    if name.startswith(PREFIX):
        raise ValueError(f"source {spec!r} is converted already: it is a {name}")
    if name in RELATIVE:
        raise ValueError(
            f"source {spec!r} is a {name}, whose attention adds a bias for every pair of positions: "
            "linear attention cannot keep it"
        )
    if name == MaclaurinConfig.model_type:
        mixers = config.get("mixer", "")
        fields.names(f"source {spec!r}: mixer", mixers)
        if SOFTMAX not in ([mixers] if isinstance(mixers, str) else mixers):
            raise ValueError(f"source {spec!r} has no softmax layer to convert: its mixer is {mixers!r}")
        return MaclaurinConfig.model_type
    if name not in FAMILIES:
        raise ValueError(f"source {spec!r} is a {name}, which is not supported; supported: {supported}")
    positions = config.get("position_embedding_type") or "absolute"
    if positions != "absolute":
        raise ValueError(
            f"source {spec!r} has position_embedding_type {positions!r}: linear attention cannot keep a bias per pair"
        )
    if config.get("is_decoder") or config.get("add_cross_attention"):
        raise ValueError(f"source {spec!r} is an encoder set up as a decoder (is_decoder), which is not supported")
    if FAMILIES[name].causal:
        return "decoder"
    return "vision" if name == VISION else "encoder"


def _check_weights(path: Path, spec: str, remote: bool) -> None:
    files = sorted(path.glob(WEIGHTS))
    if not files:
        names = _listed(spec) if remote else [file.name for file in path.iterdir()]
        pickled = next((name for pattern in PICKLED for name in names if fnmatch(name, pattern)), None)
        if pickled:
            raise ValueError(
                f"source {spec!r} has only pickled weights ({pickled}), which are never loaded: save safetensors"
            )
        raise ValueError(f"source {spec!r} has no weights: a .safetensors file is missing, and pickles are never loaded")
    try:
        held_by(path)
    except ValueError as error:
        raise ValueError(f"source {spec!r} has broken weights: {error}") from error


def _is_pooler(name: str) -> bool:
    """Of a bare encoder, since a conversion compares its token vectors."""
    return name.startswith("pooler.")


def _listed(spec: str) -> list[str]:
    """All of its files on the hub, also those that are not fetched."""
    from huggingface_hub import HfApi

    with from_hub(f"source {spec!r}"):
        return HfApi().list_repo_files(spec)


def _check_processor(path: Path, spec: str, kind: str) -> None:
    if kind == "vision":
        if not (path / "preprocessor_config.json").is_file():
            raise ValueError(f"source {spec!r} has no preprocessor_config.json: images cannot be made ready for it")
    elif not any((path / name).is_file() for name in TOKENIZER_FILES):
        raise ValueError(f"source {spec!r} has no tokenizer: save it there with save_pretrained")


def _architecture(config: dict[str, Any], spec: str) -> type[PreTrainedModel]:
    names = config.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"source {spec!r} must have a list of names as architectures in its config.json")
    found = getattr(transformers, names[0], None) if names else None
    family = FAMILIES[config["model_type"]]
    if not isinstance(found, type) or getattr(found, "config_class", None) is not family.config:
        named = names[0] if names else "none"
        raise ValueError(
            f"source {spec!r} names no architecture of transformers in its config.json: architectures is {named}"
        )
    return found
