"""What stands before every route: who may ask, from where, and how much."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import secrets
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders

from maclaurin.serving.http.errors import ApiError
from maclaurin.serving.http.metrics import Metrics
from maclaurin.serving.http.sessions import owner_of
from maclaurin.serving.http.settings import Settings, is_this_machine

BODY_SECONDS = 60.0  # for a body to arrive in
LONGEST_NAME = 128  # characters of a request's name that are given back


class Guard:
    """public: paths for which no key is needed."""

    def __init__(self, app: Any, settings: Settings, metrics: Metrics, public: frozenset[str]) -> None:
        self.app, self.settings, self.metrics, self.public = app, settings, metrics, public
        self._keys = [_hashed(key) for key in settings.keys]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = 500
        name = Headers(scope=scope).get("x-request-id", "")[:LONGEST_NAME] or secrets.token_hex(16)
        state = scope.setdefault("state", {})
        state["request_id"] = name

        async def noted(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Content-Type-Options"], headers["X-Request-Id"] = "nosniff", name
            await send(message)

        try:
            state["owner"] = self._checked(scope)
            body = await self._body(scope, receive)
        except ApiError as error:
            await error.response()(scope, receive, noted)
        else:
            await self.app(scope, _again(body, receive), noted)
        finally:
            self.metrics.answered(getattr(scope.get("route"), "path", "none"), status)

    def _checked(self, scope: Any) -> str:
        """Whose sessions are meant: a hash of the key."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        origin = headers.get("origin")
        if origin is not None and origin not in self.settings.origins and urlsplit(origin).netloc != host:
            raise ApiError(403, f"pages of {origin!r:.80} may not use this server", code="origin_not_allowed")
        if not self._keys:
            # a page of another site whose name was made to point here has the user's browser, but not this name
            if not self._is_own(host):
                raise ApiError(403, f"this server is not {host!r:.80}", code="host_not_allowed")
            return owner_of("")
        if scope["path"] in self.public:
            return ""
        given = headers.get("authorization", "")
        key = given[7:].strip() if given[:7].lower() == "bearer " else headers.get("x-api-key", "")
        # all of them, so that the time does not tell which
        if not sum(hmac.compare_digest(_hashed(key), known) for known in self._keys):
            raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key")
        return owner_of(key)

    def _is_own(self, host: str) -> bool:
        name = urlsplit(f"//{host}").hostname or "" if _is_plain(host) else ""
        return is_this_machine(name) or (name == self.settings.host and name != "")

    async def _body(self, scope: Any, receive: Any) -> bytes:
        most = self.settings.max_body
        told = Headers(scope=scope).get("content-length", "0")
        if not told.isdecimal() or int(told) > most:
            raise ApiError(413, f"a request may have {most} bytes at most", code="body_too_large")
        parts, size = [], 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ApiError(499, "the client went away")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > most:
                        raise ApiError(413, f"a request may have {most} bytes at most", code="body_too_large")
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            raise ApiError(408, f"the request did not arrive within {BODY_SECONDS:g} seconds") from None


def _again(body: bytes, receive: Any) -> Any:
    """The body that was read already, and then what the connection says."""
    left = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> Any:
        return left.pop() if left else await receive()

    return received


def _is_plain(host: str) -> bool:
    try:
        ipaddress.ip_address(host.rpartition(":")[0].strip("[]") or host)
    except ValueError:
        return all(letter.isalnum() or letter in "-.:" for letter in host)
    return True


def _hashed(key: str) -> bytes:
    """Of one length, so that a comparison says nothing about that of the key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
