"""Clients that go away: whatever was begun for them ends, before, during or after their answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import Request, Response

from maclaurin.serving.http.errors import ApiError

T = TypeVar("T")


class Left(Response):
    """A response, and what happens however it ends. A stream whose client has gone may never be begun, so that nothing in it
    would run.
    """

    def __init__(self, response: Response, leave: Callable[[], None]) -> None:
        self.response, self.leave = response, leave
        self.background = None
        self.status_code = response.status_code
        self.raw_headers = response.raw_headers

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self.response(scope, receive, send)
        finally:
            self.leave()


async def unless_gone(request: Request, work: Awaitable[T], leave: Callable[[], None]) -> T:
    """The result of the work, which is given up once the client has gone away."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    answer, watch = asyncio.ensure_future(work), asyncio.create_task(gone())
    try:
        await asyncio.wait([answer, watch], return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ApiError(499, "the client went away")
        return answer.result()
    except RuntimeError as error:
        raise ApiError(500, str(error)) from error
    finally:
        watch.cancel()
        answer.cancel()
        leave()
        await asyncio.gather(answer, watch, return_exceptions=True)  # asyncio logs an end that nobody looked at
