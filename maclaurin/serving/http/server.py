"""A server from its start to its end."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any

import torch
import uvicorn
from transformers.utils import logging as transformers_logging

from maclaurin.serving.http.settings import Settings

GRACE = 10  # seconds for answers to be completed once the server was asked to stop
# seconds for which an idle connection stays open: longer than clients and balancers keep theirs (5 to 60), so that none is
# closed while a request is on its way
KEEP_ALIVE = 75


def run(folders: Sequence[str], settings: Settings, threads: int, ready: Callable[[int], None]) -> None:
    """Serves until it is asked to stop. ready: called with the port once requests are answered."""
    from maclaurin.serving.http.app import create_app
    from maclaurin.serving.http.served import opened

    quietly()
    with listening(settings) as bound:
        torch.set_num_threads(threads)
        answer(create_app(opened(folders, settings), settings), bound, ready)


def run_workers(count: int, folders: Sequence[str], settings: Settings, threads: int, ready: Callable[[int], None]) -> None:
    """The same over several processes."""
    from maclaurin.serving.http.workers import Router, Workers

    quietly()
    workers = Workers(count, folders, settings, threads)
    with listening(settings) as bound:
        try:
            asyncio.run(workers.start())
            answer(Router(workers), bound, ready)
        finally:
            workers.stop()


def answer(app: Any, bound: socket.socket, ready: Callable[[int], None]) -> None:
    server: Any = uvicorn_server(app)
    startup = server.startup

    async def started(sockets: list[socket.socket] | None = None) -> None:
        await startup(sockets)
        if server.started:
            ready(bound.getsockname()[1])

    server.startup = started
    gc.collect()
    gc.freeze()  # what is there now stays: each look through it would hold up all streams for a quarter of a second
    try:
        server.run([bound])
    finally:
        gc.unfreeze()


def quietly() -> None:
    """Without a line for every request."""
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    transformers_logging.set_verbosity_error()


def listening(settings: Settings) -> socket.socket:
    """Bound before models are opened: a port that is taken is known at once. Port 0 takes any that is free."""
    family = socket.AF_INET6 if ":" in settings.address else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((settings.address, settings.port))
    except OSError as error:
        bound.close()
        raise ValueError(f"--host {settings.host} --port {settings.port} cannot be listened at: {error}") from error
    bound.listen(2048)  # whoever asks from now on waits until the models are there
    return bound


def uvicorn_server(app: Any) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE,
        timeout_keep_alive=KEEP_ALIVE,
        lifespan="on",
    )
    return uvicorn.Server(config)
