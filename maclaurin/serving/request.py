"""One sequence that an engine continues: what was asked, what has come so far, and when."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from maclaurin.models import StateCache
from maclaurin.serving.sampling import Draws, Sampling


class QueueFull(RuntimeError):  # noqa: N818 - as `queue.Full` is named
    """More requests wait than the engine takes."""


class Request:
    """tokens: the prompt; those before it are in the state it was submitted with, if any. output: what has come so far.

    finish_reason: None while it runs, then "stop" (a stop token came, which is the last of the output), "length",
    "cancelled" or "error", of which `error` says why. reused: how many tokens of the prompt did not have to be computed.

    state: with keep_state, once it is finished, the state after all tokens that were read: the prompt and the output
    without its last token, which stands in `unread`. To go on: submit([*request.unread, *more], state=request.state). A
    request that was cancelled before its prompt was read has no state.
    """

    def __init__(
        self,
        tokens: Sequence[int],
        sampling: Sampling,
        *,
        given: StateCache | None = None,
        keep_state: bool = False,
        on_token: Callable[[Request], None] | None = None,
    ) -> None:
        self.tokens = list(tokens)
        self.sampling = sampling
        self.keep_state = keep_state
        self.on_token = on_token
        self.output: list[int] = []
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.reused = 0
        self.state: StateCache | None = None
        self.submitted = time.perf_counter()
        self.first_token: float | None = None
        self.finished: float | None = None
        self._given = given
        self._nbytes = 0
        self._draws = Draws(sampling.seed)
        self._done = threading.Event()
        self._cancelled = False

    @property
    def done(self) -> bool:
        """Once nothing about it changes any more."""
        return self._done.is_set()

    @property
    def unread(self) -> list[int]:
        """The last token of the output, which no step has read: it is not in the state."""
        return self.output[-1:]

    @property
    def _length(self) -> int:
        """Of the state: all tokens that were read."""
        before = 0 if self._given is None else self._given.get_seq_length()
        return before + len(self.tokens) + max(0, len(self.output) - 1)

    def _add(self, token: int) -> None:
        if self.first_token is None:
            self.first_token = time.perf_counter()
        self.output.append(token)
        if token in self.sampling.stop_tokens:
            self.finish_reason = "stop"
        elif len(self.output) >= self.sampling.max_tokens:
            self.finish_reason = "length"

    def _finish(self) -> None:
        self.finished = time.perf_counter()
        self._done.set()
