"""Continuous batching over states: sequences join a running batch and leave it between two steps.

A step reads at most `prefill_tokens` tokens of prompts, so that nobody waits for a long one, and adds a token to every
sequence that runs. Requests come in the order in which they were submitted, as far as there is room: the bytes of a state
are known before its first token.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from maclaurin.common.arguments import at_least_one
from maclaurin.models import MaclaurinForCausalLM, StateCache
from maclaurin.serving.prefixes import PrefixCache, fingerprint, unshared_salt
from maclaurin.serving.request import QueueFull, Request
from maclaurin.serving.sampling import Sampling, choose

GREEDY = Sampling()


@dataclass
class Reading:
    """A request whose prompt is being read: how far, and the state there."""

    request: Request
    at: int = 0
    cache: StateCache | None = None
    marks: list[int] = field(default_factory=list)  # where states are stored for others


class Engine:
    """model: a language model of this package, which must not be used elsewhere while a step runs.

    max_active: sequences that run at a time; max_bytes: what their states may take when they are longest; None for no
    bound. queue: requests that may wait. prefill_tokens: of prompts, in one step. prefixes: states of prompts that come
    again.

    `run` and `step` work in the caller's thread, `start` in one of its own; `submit`, `cancel` and `stats` may be called
    from any.
    """

    def __init__(
        self,
        model: MaclaurinForCausalLM,
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
        self._waiting: deque[Request] = deque()
        self._reading: list[Reading] = []
        self._running: list[Request] = []
        self._caches: list[StateCache] = []
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
        if self.max_bytes is not None and self.nbytes_of(request) > self.max_bytes:
            raise ValueError(
                f"tokens must be few enough for max_bytes={self.max_bytes}, got {len(request.tokens)} and "
                f"max_tokens={sampling.max_tokens}, whose state takes {self.nbytes_of(request)}"
            )
        with self._changed:
            if self._closing:
                raise RuntimeError("the engine is closed")
            if len(self._waiting) >= self.queue:
                raise QueueFull(f"{self.queue} requests wait already")
            self._waiting.append(request)
            self._changed.notify_all()
        return request

    def nbytes_of(self, request: Request) -> int:
        """Of its state when it is longest."""
        before = 0 if request._given is None else request._given.get_seq_length()
        length = before + len(request.tokens) + request.sampling.max_tokens
        return sum(layer.mixer.state_nbytes(length) for layer in self.model.model.layers)

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
                "state_bytes": sum(cache.nbytes for cache in self._caches),
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
            self.step()

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
                others = [*self._running, *(one.request for one in self._reading)]
                taken = sum(map(self.nbytes_of, others))
                if self.max_bytes is not None and taken + self.nbytes_of(self._waiting[0]) > self.max_bytes:
                    return
                request = self._waiting.popleft()
                self._reading.append(self._begun(request))

    def _begun(self, request: Request) -> Reading:
        reading = Reading(request)
        if request._given is not None:
            reading.cache = request._given.fork()
        elif self.prefixes is not None:
            common = self.prefixes.shared(request.tokens[:-1], self._salt)
            reading.at, found = self.prefixes.find(request.tokens, self._salt)
            reading.cache = None if found is None else found.fork()
            last = (len(request.tokens) - 1) // self.prefixes.block * self.prefixes.block
            reading.marks = sorted({mark for mark in (common, last) if mark > reading.at})
            request.reused = reading.at
        return reading

    def _read(self) -> None:
        left = self.prefill_tokens
        for reading in list(self._reading):
            if not left:
                return
            tokens = reading.request.tokens
            end = min([len(tokens), reading.at + left, *reading.marks])
            cache = reading.cache or StateCache(self.model.config.num_hidden_layers)
            ids = torch.tensor([tokens[reading.at : end]], dtype=torch.long, device=self.model.device)
            logits = self.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
            left -= end - reading.at
            self._counts["prompt_tokens"] += end - reading.at
            reading.at, reading.cache = end, cache
            if reading.marks and end == reading.marks[0]:
                assert self.prefixes is not None
                reading.marks.pop(0)
                self.prefixes.store(tokens[:end], cache.fork(), self._salt)
            if end == len(tokens):
                self._reading.remove(reading)
                with self._changed:
                    self._running.append(reading.request)
                    self._caches.append(cache)
                self._take([reading.request], logits)

    def _decode(self) -> None:
        for request, cache in list(zip(self._running, self._caches, strict=True)):
            ids = torch.tensor([request.unread], dtype=torch.long, device=self.model.device)
            logits = self.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
            self._take([request], logits)

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
                del self._running[row]
                cache = self._caches.pop(row)
                if request.keep_state:
                    request.state = cache
            kind = {"cancelled": "cancelled", "error": "errors"}.get(str(request.finish_reason), "finished")
            self._counts[kind] += 1
        request._finish()
        if request.on_token is not None:
            request.on_token(request)

    def _check(self, tokens: Sequence[int], state: StateCache | None) -> None:
        vocabulary = self.model.config.vocab_size
        if not len(tokens):
            raise ValueError("tokens must hold at least one token")
        for token in tokens:
            if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocabulary:
                raise ValueError(f"tokens must be whole numbers from 0 to {vocabulary - 1}, got {token!r:.80}")
        if state is None:
            return
        layers: Any = self.model.model.layers
        if not isinstance(state, StateCache) or len(state.layers) != len(layers) or state.batch_size != 1:
            raise ValueError(f"state must be a StateCache of one sequence and {len(layers)} layers")
        for layer, held in zip(layers, state.layers, strict=True):
            if held.state is None:
                raise ValueError("state must hold the state of every layer")
            held.state.check(like=layer.mixer.shapes())
