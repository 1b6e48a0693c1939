"""Tokenizers: bytes, a BPE trained here, or any pretrained one. All are `transformers` tokenizers and save with a model.

`transformers` takes seconds to import, so it is imported where a tokenizer is made: tasks and corpora need none.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from maclaurin.common.files import naming
from maclaurin.common.hub import from_hub

END = "<|endoftext|>"


def open_tokenizer(spec: str, documents: Iterable[str] | None = None) -> Any:
    """`bytes`, `bpe:SIZE` trained on the documents, or a folder or hub name of a pretrained tokenizer."""
    if spec == "bytes":
        return byte_tokenizer()
    if spec.startswith("bpe:"):
        size = spec.removeprefix("bpe:")
        if not size.isdigit() or int(size) < 257:
            raise ValueError(f"tokenizer {spec!r} must give a vocabulary of at least 257, such as 'bpe:4096'")
        if documents is None:
            raise ValueError(f"tokenizer {spec!r} is trained on a corpus: give documents")
        return train_bpe(documents, int(size))
    is_folder = Path(spec).is_dir()
    if not is_folder and spec.count("/") != 1:
        raise ValueError(f"tokenizer {spec!r} is not 'bytes', not 'bpe:SIZE', no folder here and no owner/name of the hub")
    if is_folder:
        from maclaurin.models.folder import tokenizer_in

        return tokenizer_in(Path(spec))
    from transformers import AutoTokenizer

    what = f"tokenizer {spec!r}"
    with naming(what), from_hub(what):
        return AutoTokenizer.from_pretrained(spec, trust_remote_code=False)


def byte_tokenizer() -> Any:
    """256 bytes, each its own token with its value as id, and an end of text."""
    # ByteLevel writes byte b as one printable character; the order of these characters gives the ids
    characters = _byte_characters()
    return _finished(Tokenizer(models.BPE(vocab={character: byte for byte, character in enumerate(characters)}, merges=[])))


def train_bpe(documents: Iterable[str], size: int) -> Any:
    """A byte-level BPE with `size` tokens, the end of text included."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size - 1, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, min_frequency=2
    )
    tokenizer.train_from_iterator(documents, trainer)
    return _finished(tokenizer)


def _finished(tokenizer: Tokenizer) -> Any:
    from transformers import PreTrainedTokenizerFast

    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True, normalized=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=END, clean_up_tokenization_spaces=False, padding_side="left"
    )


def _byte_characters() -> list[str]:
    """The character that ByteLevel writes for each byte: printable Latin-1 as itself, the others from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
