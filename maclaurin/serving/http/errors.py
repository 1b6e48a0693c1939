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
NOT_SUPPORTED = "not_supported"  # a kind of pydantic's errors: a field that is known and not honoured


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

    async def refused(request: Request, error: Any) -> JSONResponse:
        nowhere = error.status_code in (404, 405)
        words = f"there is no {request.method} {request.url.path} here" if nowhere else str(error.detail)
        return ApiError(error.status_code, words[:LONGEST]).response()

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
    first = _most_telling(found)
    where, kind = _name(first["loc"]), first["type"]
    if kind == "json_invalid":
        return ApiError(400, f"the body is not JSON: {first['ctx']['error']}"[:LONGEST])
    if not where and kind.endswith("_type"):
        return ApiError(400, "the body must be a JSON object, and its Content-Type application/json")
    if kind in ("extra_forbidden", NOT_SUPPORTED):
        where = where or first["ctx"]["name"]
        return ApiError(400, f"{where} is not supported here"[:LONGEST], param=where)
    return ApiError(400, f"{where}: {first['msg']}"[:LONGEST] if where else first["msg"][:LONGEST], param=where or None)


def _most_telling(found: Any) -> Any:
    """A field of several types complains of each: not that it is of another one, but what is wrong within its own."""
    same = [one for one in found if one["loc"][:2] == found[0]["loc"][:2]]
    return max(same, key=lambda one: (not one["type"].endswith("_type"), len(one["loc"])))


def _name(place: Any) -> str:
    """Without where it was sent, the types that were tried, and positions in a text."""
    parts = [part for part in place[1:] if isinstance(part, int) or (part.isidentifier() and part != "str")]
    return ".".join(str(part) for part in parts)
