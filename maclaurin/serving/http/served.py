"""A model that is served: from a folder named at the start, with its tokenizer, its engine and its name."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from maclaurin.models.folder import open_model
from maclaurin.models.lighter import lighter
from maclaurin.serving import Engine, PrefixCache
from maclaurin.serving.http.errors import ApiError
from maclaurin.serving.http.settings import Settings
from maclaurin.serving.prefixes import fingerprint

# of models that were not trained on chats
PLAIN_CHAT = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Served:
    def __init__(self, name: str, model: Any, tokenizer: Any, engine: Engine) -> None:
        self.name, self.model, self.tokenizer, self.engine = name, model, tokenizer, engine
        self.created = int(time.time())
        self.identity = fingerprint(model).hex()
        ends = model.generation_config.eos_token_id
        self.stop_tokens = tuple(ends if isinstance(ends, list) else [] if ends is None else [ends])
        if tokenizer.chat_template is None:
            tokenizer.chat_template = PLAIN_CHAT
        config = model.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._kv_bytes = 2 * config.num_hidden_layers * heads * size * model.dtype.itemsize

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        tokens: list[int] = self.tokenizer(text, add_special_tokens=special)["input_ids"]
        return tokens

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        """The conversation as the model reads it, up to where its answer begins; a last message of its own is continued."""
        going_on = messages[-1]["role"] == "assistant"
        try:
            text: str = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=not going_on, continue_final_message=going_on
            )
        except Exception as error:  # templates refuse by whatever Jinja raises
            raise ApiError(
                400, f"the model's chat template refuses these messages: {error}"[:300], param="messages"
            ) from error
        return text

    def sizes(self, tokens: int) -> dict[str, int]:
        """Bytes of the state of a sequence, and of a KV cache of as many layers and heads."""
        return {"state_bytes": self.engine.state_nbytes_about(max(tokens, 1)), "kv_cache_bytes": self._kv_bytes * tokens}


def opened(folders: Sequence[str], settings: Settings) -> dict[str, Served]:
    """folders: each a folder, or NAME=FOLDER."""
    found: dict[str, Served] = {}
    for number, words in enumerate(folders):
        name, equals, folder = words.partition("=")
        folder = folder if equals else words
        name = name if equals else re.sub(r"[^A-Za-z0-9._-]", "-", Path(folder).resolve().name)
        if not NAME.fullmatch(name):
            raise ValueError(
                f"the name of a model must be letters, digits, dots and dashes, got {name!r:.80}: give NAME=FOLDER"
            )
        if name in found:
            raise ValueError(f"two models would have the name {name!r}: give NAME=FOLDER")
        model, tokenizer = open_model(folder)
        found[name] = serve(
            name, lighter(model, state_dtype=settings.state_dtype), tokenizer, settings, share=len(folders), place=number
        )
    return found


def serve(name: str, model: Any, tokenizer: Any, settings: Settings, *, share: int = 1, place: int = 0) -> Served:
    """share: how many models divide what there is. place: which of them this is."""
    kept = None if settings.folder is None else settings.folder / "prefixes" / f"{settings.number}-{place}"
    engine = Engine(
        model,
        max_active=settings.max_active,
        max_bytes=None if settings.max_bytes is None else settings.max_bytes // share,
        queue=settings.queue,
        prefixes=PrefixCache(settings.prefix_bytes // share, folder=kept),
    )
    return Served(name, model, tokenizer, engine)
