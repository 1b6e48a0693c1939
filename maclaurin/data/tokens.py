"""Tokenised text on disk: memory-mapped, keyed by everything that determines the tokens, never damaged.

An entry of the cache is made piece by piece (`growing.py`) and ends complete (`entry.py`). One that has changed since it was
written is made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import weakref
from functools import partial
from pathlib import Path
from typing import Any

from maclaurin.data.corpus import Corpus
from maclaurin.data.entry import TokenFile
from maclaurin.data.growing import Growing


def default_cache() -> Path:
    return Path(os.environ.get("MACLAURIN_CACHE") or Path.home() / ".cache" / "maclaurin") / "tokens"


def tokenise(
    corpus: Corpus, split: str, tokenizer: Any, cache: Path | None = None, *, tokens: int = 0, documents: int = 0
) -> TokenFile:
    """The tokens of a split, from the cache if they are there. With `tokens` and `documents`, at least so many of both, or
    all where the split has fewer.
    """
    entry = growing(corpus, split, tokenizer, cache)
    some = tokens > 0 or documents > 0
    entry.grow(lambda file: some and len(file) >= tokens and len(file.ends) >= documents)
    weakref.finalize(entry.file, entry.use.close)
    return entry.file


def growing(corpus: Corpus, split: str, tokenizer: Any, cache: Path | None = None) -> Growing:
    """The entry of a split in the cache, as far as it exists."""
    key = _key(corpus, split, tokenizer)
    folder = (cache or default_cache()) / f"{corpus.name}-{split}-{key[:16]}"
    return Growing(folder, key, partial(corpus.documents, split), tokenizer, f"tokenising {corpus.name} ({split})")


def _key(corpus: Corpus, split: str, tokenizer: Any) -> str:
    if tokenizer.is_fast:
        rules = tokenizer.backend_tokenizer.to_str()
    else:
        options = {name: str(value) for name, value in tokenizer.init_kwargs.items()}
        rules = json.dumps([type(tokenizer).__name__, tokenizer.get_vocab(), options], sort_keys=True)
    ends = json.dumps([tokenizer.eos_token_id, len(tokenizer), bool(getattr(tokenizer, "split_special_tokens", False))])
    return hashlib.sha256("\0".join((corpus.fingerprint(), split, ends, rules)).encode()).hexdigest()
