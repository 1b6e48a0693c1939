"""One request of the engine as the event loop sees it: tokens as they come, and what it cost."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any

from maclaurin.models import StateCache
from maclaurin.serving import Request, Sampling
from maclaurin.serving.http.metrics import Metrics
from maclaurin.serving.http.served import Served
from maclaurin.serving.http.text import TextStream


class Bridge:
    """From the engine's thread to the event loop: one call wakes all whose tokens came in a step."""

    def __init__(self) -> None:
        self._ready: deque[asyncio.Event] = deque()
        self._called = False

    def wake(self, loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
        self._ready.append(event)
        if not self._called:
            self._called = True
            try:
                loop.call_soon_threadsafe(self._set)
            except RuntimeError:  # the loop has ended, and with it whoever would read this
                self._called = False

    def _set(self) -> None:
        self._called = False  # first: what is appended from now on has a call of its own
        while self._ready:
            self._ready.popleft().set()


class Generation:
    """Submitted at once: QueueFull and ValueError are raised here, before an answer has begun.

    finish_reason: "stop" or "length", once it is there. tokens: of the output, up to a stop string. Whoever begins one calls
    `leave` in the end: before the end of the output it gives the slot back. over: once the engine is done with it. settled:
    with keep_state, once whoever wanted the state has it; no answer ends before, so that the next request finds it.
    """

    def __init__(
        self,
        served: Served,
        bridge: Bridge,
        metrics: Metrics,
        tokens: Sequence[int],
        sampling: Sampling,
        stops: Sequence[str] = (),
        *,
        state: StateCache | None = None,
        keep_state: bool = False,
        whole: bool = False,
    ) -> None:
        self.served, self.metrics = served, metrics
        self.before = 0 if state is None else state.get_seq_length()
        self.text = TextStream(served.tokenizer, stops)
        self.finish_reason: str | None = None
        self.tokens = 0
        self.said = ""
        self._whole = whole and not stops  # nobody looks before the end
        self._came, self.over, self.left, self.settled = (asyncio.Event() for _ in range(4))
        if not keep_state:
            self.settled.set()
        loop = asyncio.get_running_loop()

        def on_token(request: Request) -> None:
            if request.done:
                bridge.wake(loop, self.over)
            if request.done or not self._whole:
                bridge.wake(loop, self._came)

        self.request = served.engine.submit(tokens, sampling, state=state, keep_state=keep_state, on_token=on_token)
        self._looked = self.request.submitted

    async def pieces(self) -> AsyncIterator[str]:
        """The text, piece by piece; raises RuntimeError if the engine failed."""
        read = 0
        while self.finish_reason is None:
            await self._came.wait()
            self._came.clear()
            reason = self.request.finish_reason  # first: what comes after it is not missed
            new = self.request.output[read:]
            self._note_delays(len(new), first=read == 0)
            read += len(new)
            text = self._text_of(new)
            if self.text.stopped:
                reason = "stop"
            if reason in ("stop", "length"):
                text += self.text.flush()
                self.finish_reason = "stop" if self.text.stopped else reason
                self.leave()
            elif reason is not None:
                raise RuntimeError(self.request.error or "the server is shutting down")
            if text:
                self.said += text
                yield text
        await self.settled.wait()

    def _text_of(self, new: list[int]) -> str:
        """What is certain to be text after these tokens, and up to which of them."""
        if self._whole:
            self.text.hold(new)
            self.tokens += len(new)
            return ""
        text = ""
        for token in new:
            text += self.text.push(token)
            self.tokens += 1
            if self.text.stopped:
                break
        return text

    def _note_delays(self, new: int, *, first: bool) -> None:
        now, came = time.perf_counter(), self.request.first_token
        if new and first and came is not None:
            self.metrics.first_token(came - self.request.submitted)
            self._looked, new = came, new - 1
        if new:
            self.metrics.between_tokens((now - self._looked) / new)
        self._looked = now

    async def all(self) -> str:
        return "".join([piece async for piece in self.pieces()])

    def leave(self) -> None:
        if not self.request.done:
            self.served.engine.cancel(self.request)
        self.left.set()

    @property
    def length(self) -> int:
        """Of the sequence, with what was there before this request."""
        return self.before + len(self.request.tokens) + self.tokens


def usage_of(generations: Sequence[Generation], choices: int = 1) -> dict[str, Any]:
    """Of a request with so many choices for each prompt; a prompt counts once."""
    first = generations[::choices]
    prompt = sum(one.length - one.tokens for one in first)
    completion = sum(one.tokens for one in generations)
    longest = max(generations, key=lambda one: one.length)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(one.before + one.request.reused for one in first)},
        **longest.served.sizes(longest.length),
    }
