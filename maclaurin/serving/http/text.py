"""Tokens as text while they come: whole characters only, and nothing of a stop string or of what might become one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

UNFINISHED = "\ufffd"  # what decoders show for a character whose last bytes are still to come
LOOKED_AT = 8  # tokens that are held back at most: no character has more bytes, and one may never be finished


class TextStream:
    """stopped: once a stop string came, which is not part of the text."""

    def __init__(self, tokenizer: Any, stops: Sequence[str] = ()) -> None:
        self.tokenizer, self.stops = tokenizer, tuple(stops)
        self.stopped = False
        self._tokens: list[int] = []  # the last ones: those before `_shown` only as the context of what follows
        self._shown = 0
        self._held = ""  # may be the beginning of a stop string

    def hold(self, tokens: Sequence[int]) -> None:
        """Tokens that nobody looks at before `flush`, which decodes them at once."""
        self._tokens += tokens

    def push(self, token: int) -> str:
        """What is certain to be text after this token."""
        self._tokens.append(token)
        text = self._decoded()
        unfinished = text.endswith(UNFINISHED) and len(self._tokens) - self._shown < LOOKED_AT
        return "" if unfinished else self._certain(text)

    def flush(self) -> str:
        """What was held back, once no token follows."""
        if self.stopped:
            return ""
        text = self._certain(self._decoded()) + ("" if self.stopped else self._held)
        self._held = ""
        return text

    def _decoded(self) -> str:
        """The text of the tokens that were not shown yet. Decoders look at the one before: a space may be a part of it."""
        before = self._plain(self._tokens[: self._shown])
        return self._plain(self._tokens)[len(before) :]

    def _plain(self, tokens: list[int]) -> str:
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=True) if tokens else ""
        return text

    def _certain(self, text: str) -> str:
        self._tokens = self._tokens[self._shown :]
        self._shown = len(self._tokens)
        self._held += text
        found = [place for stop in self.stops if (place := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            text, self._held = self._held[: min(found)], ""
            return text
        kept = max((_overlap(self._held, stop) for stop in self.stops), default=0)
        text, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        return text


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of the text begin the stop string."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
