"""Several processes behind one address. Each is a whole server of its own port; the first part of a session's name is the number of
the server that has it, so that any HTTP balancer can do what the router here does.

Weights are not copied: safetensors maps a file into memory, and processes that map one file share its pages.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import h11
from starlette.requests import Request
from starlette.responses import JSONResponse

from maclaurin.processes.children import end_with_pool
from maclaurin.serving.http.errors import ApiError
from maclaurin.serving.http.settings import Settings

SESSION = re.compile(r"/v1/sessions/(\d{1,4})-")
OF_ONE = re.compile(r"/workers/(\d{1,4})(/.*)")  # what each server says of itself, as its metrics
LOOK = 0.5  # seconds between two looks at whether all are alive
STOP = 30.0  # seconds for a worker to save its sessions
READ = 65536


def work(folders: Sequence[str], settings: Settings, threads: int, told: Connection) -> None:
    """A worker: says its port once it answers, and ends with its parent."""
    end_with_pool()
    from maclaurin.serving.http.server import run

    run(folders, replace(settings, port=0, bind="127.0.0.1"), threads, ready=told.send)


class Workers:
    """As many processes as asked for; one that ends is started again."""

    def __init__(self, count: int, folders: Sequence[str], settings: Settings, threads: int) -> None:
        self.folders, self.settings, self.threads = folders, settings, threads
        self.ports: list[int | None] = [None] * count
        self.busy = [0] * count
        self._processes: list[Any] = [None] * count
        self._stopping = False

    async def start(self) -> None:
        await asyncio.gather(*(self._start(number) for number in range(len(self.ports))))

    async def _start(self, number: int) -> None:
        context = get_context("spawn")
        heard, told = context.Pipe(duplex=False)
        settings = replace(self.settings, number=self.settings.number + number)
        process = context.Process(target=work, args=(self.folders, settings, self.threads, told))
        process.start()
        told.close()
        self._processes[number] = process
        try:
            self.ports[number] = await asyncio.to_thread(heard.recv)
        except EOFError:
            raise ValueError(f"worker {number} ended before it was ready") from None

    async def watch(self) -> None:
        """Starts again those that have ended, until the stop."""
        while not self._stopping:
            for number, process in enumerate(self._processes):
                if not process.is_alive() and not self._stopping:
                    self.ports[number] = None
                    with suppress(ValueError):
                        await self._start(number)
            await asyncio.sleep(LOOK)

    def stop(self) -> None:
        """They save their sessions."""
        self._stopping = True
        for process in self._processes:
            if process is not None and process.is_alive():
                process.terminate()
        for process in self._processes:
            if process is not None:
                process.join(STOP)
                if process.is_alive():
                    process.kill()


class Router:
    """An application that hands every request to a worker, a session's to the one that has it, others to the least busy."""

    def __init__(self, workers: Workers) -> None:
        self.workers, self._turn = workers, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            try:
                await self._route(scope, receive, send)
            except ApiError as error:
                await error.response()(scope, receive, send)

    async def _live(self, receive: Any, send: Any) -> None:
        await receive()
        watching = asyncio.create_task(self.workers.watch())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        watching.cancel()
        await asyncio.to_thread(self.workers.stop)
        await send({"type": "lifespan.shutdown.complete"})

    async def _route(self, scope: Any, receive: Any, send: Any) -> None:
        path, count = scope["raw_path"].decode("ascii", "replace"), len(self.workers.ports)
        first = self.workers.settings.number
        if (one := OF_ONE.fullmatch(path)) and int(one[1]) < count:
            await self._forward(int(one[1]), one[2], scope, receive, send)
        elif found := SESSION.match(path):
            await self._forward((int(found[1]) - first) % count, path, scope, receive, send)
        elif path == "/v1/sessions" and scope["method"] == "GET":
            await self._all_sessions(scope, receive, send)
        else:
            number = self._least_busy(count)
            await self._forward(number, path, scope, receive, send)

    def _least_busy(self, count: int) -> int:
        """Of equals, the one whose turn it is."""
        ready = [number for number in range(count) if self.workers.ports[number] is not None]
        number = min(ready, key=lambda one: (self.workers.busy[one], (one - self._turn) % count), default=0)
        self._turn = number + 1
        return number

    async def _all_sessions(self, scope: Any, receive: Any, send: Any) -> None:
        """Those of all workers, or the first refusal."""
        rows: list[Any] = []
        await Request(scope, receive).body()
        for number in range(len(self.workers.ports)):
            answer = _Answer()
            await self._forward(number, "/v1/sessions", scope, _nothing_more(), answer)
            content = json.loads(answer.body)
            if answer.status != 200:
                await JSONResponse(content, status_code=answer.status)(scope, receive, send)
                return
            rows += content["data"]
        await JSONResponse({"object": "list", "data": rows})(scope, receive, send)

    async def _forward(self, number: int, path: str, scope: Any, receive: Any, send: Any) -> None:
        port = self.workers.ports[number]
        try:
            if port is None:
                raise OSError
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            raise ApiError(503, "the process that would answer is being started again", code="worker_down") from None
        self.workers.busy[number] += 1
        try:
            await _exchange(reader, writer, path, scope, receive, send)
        finally:
            self.workers.busy[number] -= 1
            writer.close()  # a worker that still writes sees that nobody reads


class _Answer:
    """A response, collected."""

    def __init__(self) -> None:
        self.status, self.body = 500, b""

    async def __call__(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        self.body += message.get("body", b"")


def _nothing_more() -> Any:
    left = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        return left.pop() if left else await asyncio.Event().wait()

    return receive


async def _exchange(reader: Any, writer: Any, path: str, scope: Any, receive: Any, send: Any) -> None:
    query = scope["query_string"].decode("latin-1")
    headers = [(name, value) for name, value in scope["headers"] if name not in (b"connection", b"expect", b"upgrade")]
    connection = h11.Connection(h11.CLIENT)
    target = f"{path}?{query}" if query else path
    with suppress(ConnectionError):  # it may have answered already: that the request is too large
        writer.write(
            connection.send(h11.Request(method=scope["method"], target=target, headers=[*headers, (b"connection", b"close")]))
        )
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            if message.get("body"):
                writer.write(connection.send(h11.Data(data=message["body"])))
                await writer.drain()
            if not message.get("more_body"):
                break
        writer.write(connection.send(h11.EndOfMessage()))
    answering = asyncio.create_task(_answer(reader, connection, send))
    gone = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait([answering, gone], return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            answering.result()
    finally:
        answering.cancel()
        gone.cancel()


async def _gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _answer(reader: Any, connection: h11.Connection, send: Any) -> None:
    begun = False
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            try:
                connection.receive_data(await reader.read(READ))
            except (ConnectionError, h11.RemoteProtocolError) as error:
                raise _broken(begun) from error
        elif isinstance(event, h11.Response):
            begun = True
            kept = [(name, value) for name, value in event.headers if name not in (b"connection", b"transfer-encoding")]
            await send({"type": "http.response.start", "status": event.status_code, "headers": kept})
        elif isinstance(event, h11.Data):
            await send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
        elif isinstance(event, h11.EndOfMessage):
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        else:  # the worker ended in between
            raise _broken(begun)


def _broken(begun: bool) -> Exception:
    """Before the answer has begun it can still be one; afterwards the connection is cut, so that nobody takes it for whole."""
    return RuntimeError("the worker ended within its answer") if begun else ApiError(503, "the worker ended", code="worker_down")
