"""A GGUF file as a folder that can be converted: its weights dequantised once to float32, its tokenizer and chat template.

The `gguf` package parses the file, by way of transformers; nothing in it is run. What is made of it is kept in the cache
under the file's checksum, and appears there by one rename.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from maclaurin.common.files import naming
from maclaurin.data.tokens import default_cache
from maclaurin.models.linearised.classes import FAMILIES
from maclaurin.training.checkpoints import writing

SUFFIX = ".gguf"
MAGIC = b"GGUF"


def dequantised(file: Path) -> Path:
    """The folder of its model in the cache, which is made where it is not there yet."""
    if importlib.util.find_spec("gguf") is None:
        raise ValueError(f"source {str(file)!r} is a GGUF file, which needs the package gguf: pip install 'maclaurin[gguf]'")
    with open(file, "rb") as stream:
        if stream.read(len(MAGIC)) != MAGIC:
            raise ValueError(f"source {str(file)!r} is not a GGUF file: it does not begin with {MAGIC.decode()}")
        stream.seek(0)
        checksum = hashlib.file_digest(stream, "sha256").hexdigest()
    folder = default_cache().with_name("gguf") / checksum[:32]
    if not folder.is_dir():
        staging = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}")
        try:
            with writing(folder):
                staging.mkdir(parents=True)
            _unpack(file, staging)
            with writing(folder):
                os.rename(staging, folder)
        except OSError:
            if not folder.is_dir():  # another process may have been faster
                raise
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return folder


def _unpack(file: Path, folder: Path) -> None:
    options: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    with naming(file):
        config = AutoConfig.from_pretrained(file.parent, trust_remote_code=False, **options)
        if config.model_type not in FAMILIES:
            known = ", ".join(FAMILIES)
            raise ValueError(f"{file} holds a {config.model_type}, which is not supported; supported: {known}")
        tokenizer = AutoTokenizer.from_pretrained(file.parent, trust_remote_code=False, **options)
        quantised = AutoModelForCausalLM.from_pretrained(file.parent, dtype="float32", trust_remote_code=False, **options)
    # a model that remembers where it came from is taken for a quantised one, and refuses to be saved
    fields = {
        name: value
        for name, value in quantised.config.to_dict().items()
        if name not in ("model_type", "quantization_config")
    }
    model = type(quantised)(type(quantised.config)(**fields))
    model.load_state_dict(quantised.state_dict())
    model.generation_config = quantised.generation_config
    with writing(folder):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
