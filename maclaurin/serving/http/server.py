"""A server from its start to its end."""

from __future__ import annotations

import socket
from typing import Any

import uvicorn

from maclaurin.serving.http.settings import Settings

GRACE = 10  # seconds for answers to be completed once the server was asked to stop


def listening(settings: Settings) -> socket.socket:
    """Bound before models are opened: a port that is taken is known at once. Port 0 takes any that is free."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((settings.host, settings.port))
    except OSError as error:
        bound.close()
        raise ValueError(f"--host {settings.host} --port {settings.port} cannot be listened at: {error}") from error
    bound.set_inheritable(True)
    return bound


def uvicorn_server(app: Any) -> uvicorn.Server:
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=GRACE, lifespan="on"
    )
    return uvicorn.Server(config)
