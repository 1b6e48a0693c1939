"""What goes wrong, in the format of OpenAI's API: clients of that API show it as their own errors."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from maclaurin.serving.request import QueueFull

TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
LONGEST = 300  # characters of a message, which may quote what was sent


class ApiError(Exception):
    """param: the field of the request that is at fault. code: a short name of what is wrong."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        headers = {429: {"Retry-After": "1"}, 401: {"WWW-Authenticate": "Bearer"}}.get(self.status)
        return JSONResponse(self.body(), status_code=self.status, headers=headers)


def answer_errors(app: FastAPI, dead: type[Exception]) -> None:
    """dead: what transformers raises once its worker has ended."""

    async def told(_: Request, error: Any) -> JSONResponse:
        return error.response()

    async def full(_: Request, error: Any) -> JSONResponse:
        return ApiError(429, f"the server is busy: {error}", code="queue_full").response()

    async def refused(_: Request, error: Any) -> JSONResponse:
        return ApiError(error.status_code, str(error.detail)[:LONGEST]).response()

    async def invalid(_: Request, error: Any) -> JSONResponse:
        return of_validation(error.errors()).response()

    async def ended(_: Request, error: Any) -> JSONResponse:
        return ApiError(503, str(error)[:LONGEST]).response()

    async def unforeseen(_: Request, error: Any) -> JSONResponse:
        return ApiError(500, f"the server failed at this request: {type(error).__name__}").response()

    handlers: dict[Any, Any] = {
        ApiError: told,
        QueueFull: full,
        HTTPException: refused,
        RequestValidationError: invalid,
        dead: ended,
        Exception: unforeseen,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)


def of_validation(found: Any) -> ApiError:
    """The first thing that is wrong with a body, by the name of its field."""
    first = found[0]
    param = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
    words = first["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{param}: {words}"[:LONGEST] if param else words[:LONGEST], param=param or None)
