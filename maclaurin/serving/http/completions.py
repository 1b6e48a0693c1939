"""Completions and chat completions: what transformers' own routes do not honour (n, stop, seed, options of each request, usage) is
why these stand in their place.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

from maclaurin.serving.http.errors import ApiError
from maclaurin.serving.http.generation import Bridge, Generation, usage_of
from maclaurin.serving.http.leaving import Left, unless_gone
from maclaurin.serving.http.metrics import Metrics
from maclaurin.serving.http.requests import ChatBody, CompletionBody, Sampled, check_prompt
from maclaurin.serving.http.seam import HeldModels
from maclaurin.serving.http.served import Served
from maclaurin.serving.http.settings import Settings

LONG = 20_000  # characters of a prompt that are encoded beside the event loop
# several choices as one stream, in the order in which they come
Pieces = AsyncIterator[tuple[int, str | None]]


class Answers:
    """Makes generations and answers of them."""

    def __init__(self, models: HeldModels, settings: Settings, metrics: Metrics) -> None:
        self.models, self.settings, self.metrics = models, settings, metrics
        self.bridge = Bridge()

    async def encoded(self, served: Served, text: str, *, special: bool = True) -> list[int]:
        if len(text) < LONG:
            return served.encode(text, special=special)
        return await asyncio.to_thread(served.encode, text, special=special)

    def begin(self, served: Served, prompts: list[list[int]], body: Sampled, param: str, **options: Any) -> list[Generation]:
        """All choices of all prompts, or none of them."""
        if len(prompts) * body.choices > self.settings.max_choices:
            raise ApiError(400, f"a request may ask for {self.settings.max_choices} choices at most", param="n")
        for tokens in prompts:
            check_prompt(tokens, served, self.settings, param=param)
        return self.submit(served, prompts, body, **options)

    def submit(self, served: Served, prompts: list[list[int]], body: Sampled, **options: Any) -> list[Generation]:
        begun: list[Generation] = []
        try:
            for tokens in prompts:
                for choice in range(body.choices):
                    sampling = body.sampling(served, self.settings, choice)
                    whole = not body.stream
                    begun.append(
                        Generation(
                            served, self.bridge, self.metrics, tokens, sampling, body.stops, whole=whole, **options
                        )
                    )
        except BaseException as error:
            leave(begun)
            if isinstance(error, ValueError):  # more than the engine can ever hold
                raise ApiError(400, str(error)) from error
            raise
        return begun

    async def answer(self, request: Request, body: Sampled, begun: list[Generation], form: Form) -> Any:
        if body.stream:
            events = StreamingResponse(self._events(body, begun, form), media_type="text/event-stream")
            return Left(events, lambda: leave(begun))
        texts = await unless_gone(request, asyncio.gather(*(one.all() for one in begun)), lambda: leave(begun))
        choices = [form.whole(index, text, begun[index].finish_reason) for index, text in enumerate(texts)]
        return JSONResponse(form.around(choices, form.kind, usage_of(begun, body.choices)))

    async def _events(self, body: Sampled, begun: list[Generation], form: Form) -> AsyncIterator[str]:
        options, running = body.options, len(begun)
        try:
            for index in range(len(begun)):
                if first := form.first(index):
                    yield form.event([first])
            async for index, piece in merged(begun):
                usage = usage_of(begun, body.choices) if options.continuous_usage_stats else None
                reason = begun[index].finish_reason if piece is None else None
                yield form.event([form.piece(index, piece or "", reason)], usage)
                running -= piece is None
            if options.include_usage:
                yield form.event([], usage_of(begun, body.choices))
            yield "data: [DONE]\n\n"
        except RuntimeError as error:
            yield f"data: {json.dumps(ApiError(500, str(error)).body())}\n\n"


class Form:
    """How an answer is written: of text completions."""

    kind = "text_completion"
    chunk = kind
    prefix = "cmpl"

    def __init__(self, served: Served, extra: dict[str, Any] | None = None) -> None:
        self.head = {
            "id": f"{self.prefix}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": served.name,
            **(extra or {}),
        }

    def around(self, choices: list[dict[str, Any]], kind: str, usage: dict[str, Any] | None) -> dict[str, Any]:
        return {**self.head, "object": kind, "choices": choices, **({} if usage is None else {"usage": usage})}

    def event(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> str:
        return f"data: {json.dumps(self.around(choices, self.chunk, usage), separators=(',', ':'))}\n\n"

    def first(self, index: int) -> dict[str, Any] | None:
        return None

    def piece(self, index: int, text: str, reason: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}

    whole = piece


class ChatForm(Form):
    kind = "chat.completion"
    chunk = "chat.completion.chunk"
    prefix = "chatcmpl"

    def first(self, index: int) -> dict[str, Any] | None:
        return {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}

    def piece(self, index: int, text: str, reason: str | None) -> dict[str, Any]:
        return {"index": index, "delta": {"content": text} if text else {}, "logprobs": None, "finish_reason": reason}

    def whole(self, index: int, text: str, reason: str | None) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": None, "finish_reason": reason}


async def merged(begun: list[Generation]) -> Pieces:
    """Pieces of all choices as they come, and None at the end of each."""
    if len(begun) == 1:
        async for piece in begun[0].pieces():
            yield 0, piece
        yield 0, None
        return
    queue: asyncio.Queue[tuple[int, str | None | BaseException]] = asyncio.Queue()

    async def drain(index: int) -> None:
        try:
            async for piece in begun[index].pieces():
                queue.put_nowait((index, piece))
            queue.put_nowait((index, None))
        except RuntimeError as error:
            queue.put_nowait((index, error))

    tasks = [asyncio.create_task(drain(index)) for index in range(len(begun))]
    try:
        left = len(begun)
        while left:
            index, piece = await queue.get()
            if isinstance(piece, BaseException):
                raise piece
            left -= piece is None
            yield index, piece
    finally:
        for task in tasks:
            task.cancel()


def leave(begun: Iterable[Generation]) -> None:
    for one in begun:
        one.leave()


def add_completions(app: FastAPI, answers: Answers) -> None:
    @app.post("/v1/completions", tags=["completions"])
    async def completions(request: Request, body: CompletionBody) -> Any:
        served = answers.models.named(body.model)
        prompts = [await answers.encoded(served, one) if isinstance(one, str) else one for one in body.prompts]
        if not prompts:
            raise ApiError(400, "prompt must hold at least one prompt", param="prompt")
        begun = answers.begin(served, prompts, body, "prompt")
        return await answers.answer(request, body, begun, Form(served))

    @app.post("/v1/chat/completions", tags=["completions"])
    async def chat_completions(request: Request, body: ChatBody) -> Any:
        served = answers.models.named(body.model)
        tokens = await answers.encoded(served, served.render(body.plain), special=False)
        begun = answers.begin(served, [tokens], body, "messages")
        return await answers.answer(request, body, begun, ChatForm(served))
