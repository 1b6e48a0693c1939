"""Continuous batching over states: sequences join a running batch and leave it between two steps.

A step reads at most `prefill_tokens` tokens of prompts, so that nobody waits for a long one, and adds a token to every
sequence that runs. Requests come in the order in which they were submitted, as far as there is room: the bytes of a state
are known before its first token.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from maclaurin.common.arguments import at_least_one
from maclaurin.models import StateCache
from maclaurin.serving.batch import States, batch_of
from maclaurin.serving.prefixes import PrefixCache, fingerprint, unshared_salt
from maclaurin.serving.request import QueueFull, Request
from maclaurin.serving.sampling import Sampling, choose

GREEDY = Sampling()
logger = logging.getLogger("maclaurin.serving")
WORTH_KEEPING = 4  # blocks of a prompt that nobody has begun with before: its state is kept too
LENGTHS = 64  # tokens: lengths whose states are taken to have one size


@dataclass
class Reading:
    """A request whose prompt is being read: how far, and the states of all layers there. Nobody changes these."""

    request: Request
    states: States
    at: int = 0
    marks: list[int] = field(default_factory=list)  # where states are stored for others

    @property
    def length(self) -> int:
        """Tokens that are in the states."""
        given = self.request._given
        return self.at if given is None else given.get_seq_length() + self.at


class Engine:
    """model: a language model of this package, or a decoder that was converted, which must not be used elsewhere while a
    step runs.

    max_active: sequences that run at a time; max_bytes: what their states may take when they are longest; None for no
    bound. queue: requests that may wait. prefill_tokens: of prompts, in one step. prefixes: states of prompts that come
    again.

    `run` and `step` work in the caller's thread, `start` in one of its own; `submit`, `cancel` and `stats` may be called
    from any.
    """

    def __init__(
        self,
        model: Any,
        *,
        max_active: int = 64,
        max_bytes: int | None = None,
        queue: int = 1024,
        prefill_tokens: int = 512,
        prefixes: PrefixCache | None = None,
    ) -> None:
        at_least_one("max_active", max_active)
        at_least_one("queue", queue)
        at_least_one("prefill_tokens", prefill_tokens)
        if max_bytes is not None:
            at_least_one("max_bytes", max_bytes)
        self.model = model.eval()
        self.max_active, self.max_bytes, self.queue, self.prefill_tokens = max_active, max_bytes, queue, prefill_tokens
        self.prefixes = prefixes
        self._salt = b"" if prefixes is None else unshared_salt() if prefixes.folder is None else fingerprint(model)
        self._sizes: dict[int, int] = {}  # bytes by length
        self._waiting: deque[Request] = deque()
        self._reading: list[Reading] = []
        self._running: list[Request] = []
        self._batch = batch_of(self.model, max_active)
        self._changed = threading.Condition()  # of the queue, and of whether there is work
        self._stepping = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._counts = {"steps": 0, "tokens": 0, "prompt_tokens": 0, "finished": 0, "cancelled": 0, "errors": 0}

    def submit(
        self,
        tokens: Sequence[int],
        sampling: Sampling = GREEDY,
        *,
        state: StateCache | None = None,
        keep_state: bool = False,
        on_token: Callable[[Request], None] | None = None,
    ) -> Request:
        """A request for what comes after these tokens, which come after those of `state` (one sequence, not changed).

        on_token is called by the thread that works, after every token and at the end.
        """
        self._check(tokens, state)
        request = Request(tokens, sampling, given=state, keep_state=keep_state, on_token=on_token)
        if self.max_bytes is not None:
            request._nbytes = self.state_nbytes(request._length + sampling.max_tokens)
        if self.max_bytes is not None and request._nbytes > self.max_bytes:
            raise ValueError(
                f"tokens must be few enough for max_bytes={self.max_bytes}, got {len(tokens)} and "
                f"max_tokens={sampling.max_tokens}, whose state takes {request._nbytes}"
            )
        with self._changed:
            if self._closing:
                raise RuntimeError("the engine is closed")
            if len(self._waiting) >= self.queue:
                raise QueueFull(f"{self.queue} requests wait already")
            self._waiting.append(request)
            self._changed.notify_all()
        return request

    def state_nbytes(self, length: int) -> int:
        """Of the state of so many tokens, or of some more."""
        return self._nbytes_of(-(-length // LENGTHS) * LENGTHS)

    def state_nbytes_about(self, length: int) -> int:
        """As if a state grew evenly between the lengths that are looked at: exact where it does, or has one size."""
        begin, end = max(1, (length - 1) // LENGTHS * LENGTHS), -(-length // LENGTHS) * LENGTHS
        small, large = self._nbytes_of(begin), self._nbytes_of(end)
        return small + (large - small) * (length - begin) // (end - begin)

    def _nbytes_of(self, length: int) -> int:
        if length not in self._sizes:
            self._sizes[length] = self._batch.state_nbytes(length)
        return self._sizes[length]

    def cancel(self, request: Request) -> None:
        """It ends before the next step, and its room is free."""
        with self._changed:
            request._cancelled = True
            self._changed.notify_all()

    def stats(self) -> dict[str, int]:
        with self._changed:
            found = {
                "active": len(self._running),
                "reading": len(self._reading),
                "waiting": len(self._waiting),
                "state_bytes": self._batch.nbytes,
                **self._counts,
            }
        return found if self.prefixes is None else {**found, **self.prefixes.stats()}

    @torch.inference_mode()
    def step(self) -> bool:
        """One round; False if there was nothing to do."""
        with self._stepping:
            self._drop_cancelled()
            self._admit()
            worked = bool(self._reading or self._running)
            self._read()
            self._decode()
            if worked:
                self._counts["steps"] += 1
            return worked

    def run(self) -> None:
        """Until every request is finished."""
        while self.step() or self._waiting:
            pass

    def start(self) -> None:
        """Work in a thread of its own until `close`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="maclaurin-engine", daemon=True)
            self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread that `start` began still works."""
        return self._thread is not None and self._thread.is_alive()

    def close(self, drain: bool = False) -> None:
        """Take no more requests. drain: finish those that are there; otherwise they are cancelled."""
        with self._changed:
            self._closing = True
            if not drain:
                for request in self._all():
                    request._cancelled = True
            self._changed.notify_all()
        if self._thread is None:
            self.run()
        else:
            self._thread.join()
            self._thread = None

    def result(self, request: Request, timeout: float | None = None) -> list[int]:
        """The output, once it is complete."""
        if not request._done.wait(timeout):
            raise TimeoutError(f"the request was not finished within {timeout} seconds")
        if request.finish_reason == "error":
            raise RuntimeError(request.error)
        return request.output

    # --- the thread

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (self._waiting or self._reading or self._running):
                    if self._closing:
                        return
                    self._changed.wait()
            try:
                self.step()
            except Exception as error:  # those it was working for learn of it; the next ones find an empty engine
                logger.exception("a step of the engine failed")
                self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, why: str) -> None:
        with self._changed:
            lost = [*(one.request for one in self._reading), *self._running]
            self._reading, self._running = [], []
            self._batch = batch_of(self.model, self.max_active)
            self._counts["errors"] += len(lost)
        for request in lost:
            request.finish_reason, request.error = "error", why
            request._finish()
            if request.on_token is not None:
                request.on_token(request)

    def _all(self) -> list[Request]:
        return [*self._waiting, *(one.request for one in self._reading), *self._running]

    # --- a step

    def _drop_cancelled(self) -> None:
        with self._changed:
            gone = [request for request in self._all() if request._cancelled]
            if gone:
                self._waiting = deque(request for request in self._waiting if not request._cancelled)
                self._reading = [one for one in self._reading if not one.request._cancelled]
        for request in gone:
            request.finish_reason = "cancelled"
            self._end(request)

    def _admit(self) -> None:
        with self._changed:
            while self._waiting and len(self._running) + len(self._reading) < self.max_active:
                taken = sum(request._nbytes for request in (*self._running, *(one.request for one in self._reading)))
                if self.max_bytes is not None and taken + self._waiting[0]._nbytes > self.max_bytes:
                    return
                if self._comes_soon(self._waiting[0]):
                    return
                request = self._waiting.popleft()
                self._reading.append(self._begun(request))

    def _comes_soon(self, request: Request) -> bool:
        """Whether somebody still reads a beginning that both have, longer than any that is known. Its state is then kept."""
        if self.prefixes is None or request._given is not None:
            return False
        known, block = self.prefixes.longest(request.tokens, self._salt), self.prefixes.block
        for reading in self._reading:
            others = reading.request.tokens
            if reading.request._given is not None:
                continue
            worth = max(reading.at + 1, known + WORTH_KEEPING * block)
            if self._begin_alike(others, request.tokens, -(-worth // block) * block):
                reading.marks = sorted({*reading.marks, self._common(others, request.tokens)})
                return True
            if any(known < mark and self._begin_alike(others, request.tokens, mark) for mark in reading.marks):
                return True
        return False

    @staticmethod
    def _begin_alike(tokens: list[int], others: list[int], count: int) -> bool:
        """Whether so many tokens begin both prompts and leave one to read in each."""
        return count < min(len(tokens), len(others)) and tokens[:count] == others[:count]

    def _common(self, tokens: list[int], others: list[int]) -> int:
        """How many tokens, in whole blocks, begin both prompts and leave one to read in each."""
        assert self.prefixes is not None
        block, end = self.prefixes.block, 0
        while end + block < min(len(tokens), len(others)) and tokens[end : end + block] == others[end : end + block]:
            end += block
        return end

    def _begun(self, request: Request) -> Reading:
        reading = Reading(request, [None] * self._batch.layers)
        if request._given is not None:
            reading.states = [layer.state for layer in request._given.layers]
        elif self.prefixes is not None:
            tokens, block = request.tokens, self.prefixes.block
            common = self.prefixes.shared(tokens[:-1], self._salt)
            reading.at, found = self.prefixes.find(tokens, self._salt)
            if found is not None:
                reading.states = [layer.state for layer in found.layers]
            last = (len(tokens) - 1) // block * block
            long = last - reading.at >= WORTH_KEEPING * block
            reading.marks = sorted({mark for mark in (common, last if long else 0) if mark > reading.at})
            request.reused = reading.at
        return reading

    def _read(self) -> None:
        """The next tokens of prompts, in the order of requests. Only what does not fit into a step of its own is cut."""
        left = self.prefill_tokens
        parts: list[tuple[Reading, int]] = []
        for reading in self._reading:
            end = min([len(reading.request.tokens), *reading.marks[:1]])
            if left < end - reading.at <= self.prefill_tokens:
                break
            end = min(end, reading.at + left)
            parts.append((reading, end))
            left -= end - reading.at
            if not left:
                break
        if parts:
            self._read_together(parts)

    def _read_together(self, parts: list[tuple[Reading, int]]) -> None:
        tokens = [reading.request.tokens[reading.at : end] for reading, end in parts]
        before = [reading.states for reading, _ in parts]
        logits, states = self._batch.read(tokens, before, [reading.length for reading, _ in parts])
        done = []
        for place, (reading, end) in enumerate(parts):
            self._counts["prompt_tokens"] += end - reading.at
            reading.at, reading.states = end, states[place]
            if end in reading.marks:
                assert self.prefixes is not None
                reading.marks.remove(end)
                cache = StateCache.of(reading.states, end).fork()  # apart from those that were read beside it
                reading.states = [layer.state for layer in cache.layers]
                self.prefixes.store(reading.request.tokens[:end], cache, self._salt)
            if end == len(reading.request.tokens):
                done.append(place)
                self._join(reading)
        if done:
            self._take([parts[place][0].request for place in done], logits[done])

    def _join(self, reading: Reading) -> None:
        """From now on it decodes, behind those that do."""
        with self._changed:
            self._reading.remove(reading)
            self._running.append(reading.request)
            self._batch.put(reading.states, reading.length)

    def _decode(self) -> None:
        """One more token of every sequence that runs."""
        if not self._running:
            return
        self._take(list(self._running), self._batch.step([request.output[-1] for request in self._running]))

    def _take(self, requests: list[Request], logits: torch.Tensor) -> None:
        """The next token of each of them."""
        samplings, draws = [one.sampling for one in requests], [one._draws for one in requests]
        for request, token in zip(requests, choose(logits, samplings, draws), strict=True):
            if token < 0:
                request.finish_reason = "error"
                request.error = "the model gives logits that are not finite"
            else:
                request._add(token)
                self._counts["tokens"] += 1
            if request.finish_reason is not None:
                self._end(request)
            elif request.on_token is not None:
                request.on_token(request)

    def _end(self, request: Request) -> None:
        with self._changed:
            if request in self._running:
                row = self._running.index(request)
                self._keep(request, row)
                self._batch.drop(row)
                self._running[row] = self._running[-1]
                self._running.pop()
            kind = {"cancelled": "cancelled", "error": "errors"}.get(str(request.finish_reason), "finished")
            self._counts[kind] += 1
        request._finish()
        if request.on_token is not None:
            request.on_token(request)

    def _keep(self, request: Request, row: int) -> None:
        """The state of a row that leaves, for its request and for those that go on from it."""
        again = self.prefixes is not None and request._given is None and request.finish_reason in ("stop", "length")
        if not request.keep_state and not again:
            return
        cache = StateCache.of(self._batch.take(row), request._length)
        if request.keep_state:
            request.state = cache
        if again and self.prefixes is not None:
            self.prefixes.store(request.tokens + request.output[:-1], cache, self._salt)

    def _check(self, tokens: Sequence[int], state: StateCache | None) -> None:
        vocabulary = self._batch.vocabulary
        if not len(tokens):
            raise ValueError("tokens must hold at least one token")
        if set(map(type, tokens)) != {int} or not 0 <= min(tokens) <= max(tokens) < vocabulary:
            wrong = next(token for token in tokens if type(token) is not int or not 0 <= token < vocabulary)
            raise ValueError(f"tokens must be whole numbers from 0 to {vocabulary - 1}, got {wrong!r:.80}")
        if state is not None:
            self._batch.check(state)
