"""Sessions: sequences whose state is kept between requests, in memory and, where it was saved, in a folder.

What a session is, is its tokens. Its state only saves reading them again: it may be behind them, or lost, and nothing but
time is. A saved session is two files, the state and a description that names it and is written last; they are named by a
hash of the session's name, so that nothing a request sends is ever a path.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from maclaurin.common.files import read_json, write_json
from maclaurin.models import StateCache
from maclaurin.serving.http.errors import ApiError
from maclaurin.serving.http.requests import Body, Token
from maclaurin.serving.http.served import Served
from maclaurin.serving.http.settings import Settings

NAME = re.compile(r"\d{1,4}-[A-Za-z0-9_-]{32}")
KEPT = 30 * 86400.0  # seconds for which a saved session is kept after its last use
logger = logging.getLogger("maclaurin.serving")


@dataclass
class Session:
    """owner: a hash of the API key. kind: "chat" or "text", once it has begun. shown: of a chat, the text that its tokens
    stand for, where that is known. busy: while a request goes on with it. nbytes: of the state, which `hold` sets with it.
    """

    name: str
    owner: str
    model: str
    identity: str
    created: float = field(default_factory=time.time)
    used: float = field(default_factory=time.time)
    kind: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list)
    shown: str | None = None
    tokens: list[int] = field(default_factory=list)
    state: StateCache | None = None
    nbytes: int = 0
    saved: float | None = None
    busy: bool = False

    def hold(self, state: StateCache | None) -> None:
        self.state, self.nbytes = state, 0 if state is None else state.nbytes

    def go_on(self, tokens: list[int], state: StateCache | None) -> None:
        """To these tokens. A state beyond them is of no use, and the earlier one stays."""
        self.tokens, self.saved = tokens, None
        if state is not None and state.get_seq_length() < len(tokens):
            self.hold(state)

    @property
    def unread(self) -> list[int]:
        return self.tokens[0 if self.state is None else self.state.get_seq_length() :]


class Saved(Body):
    """What the description of a saved session must hold: the file may be damaged, or somebody else's."""

    owner: str
    model: str
    identity: str
    created: float
    used: float
    kind: Literal["chat", "text"] | None
    messages: list[dict[str, str]]
    shown: str | None
    tokens: list[Token]
    state: str | None = Field(pattern=r"^[0-9a-f]{64}\.[0-9a-f]{16}\.safetensors$")

    def opened(self, name: str, saved: float) -> Session:
        return Session(name=name, saved=saved, **self.model_dump(exclude={"state"}))


class Sessions:
    """owner: what `owner_of` made of an API key. A name of somebody else's session is a name of none."""

    def __init__(self, models: Mapping[str, Served], settings: Settings) -> None:
        self.models, self.settings = models, settings
        self.folder = None if settings.folder is None else settings.folder / "sessions"
        self._open: OrderedDict[str, Session] = OrderedDict()  # unused for longest first
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def __len__(self) -> int:
        return len(self._open)

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self._open.values())

    def begun(self, owner: str, served: Served) -> Session:
        self.expire()
        name = f"{self.settings.number}-{secrets.token_urlsafe(24)}"
        return self._added(Session(name, owner, served.name, served.identity))

    def forked(self, session: Session, at: int | None) -> Session:
        """The first `at` tokens, or all; states are never written to, so that both have the same one."""
        served = self.models[session.model]
        new = self.begun(session.owner, served)
        new.kind, new.tokens = session.kind, list(session.tokens)
        new.hold(session.state)
        new.messages, new.shown = list(session.messages), session.shown
        if at is not None and at < len(session.tokens):
            new.tokens, new.messages, new.shown, new.kind = session.tokens[:at], [], None, "text"
            if new.state is not None and new.state.get_seq_length() >= at:
                new.hold(None)  # the prefixes that are kept, or reading again, give it back
        return new

    def of(self, owner: str) -> list[Session]:
        self.expire()
        return [one for one in self._open.values() if hmac.compare_digest(one.owner, owner)]

    def found(self, name: str, owner: str) -> Session:
        """In memory or in the folder."""
        self.expire()
        session = self._open.get(name) or self.loaded(name)
        if session is None or not hmac.compare_digest(session.owner, owner) or session.model not in self.models:
            raise ApiError(404, "there is no such session", code="session_not_found")
        if name not in self._open:
            self._added(session)
        self._open.move_to_end(name)
        session.used = time.time()
        return session

    def replace(self, session: Session, earlier: Session) -> None:
        """By what it was when it was saved."""
        earlier.used = session.used
        self._open[session.name] = earlier

    def remove(self, session: Session) -> None:
        self._open.pop(session.name, None)
        if self.folder is not None:
            for path in self.folder.glob(f"{_digest(session.name)}.*"):
                path.unlink(missing_ok=True)

    # --- files

    def save(self, session: Session) -> None:
        if self.folder is None:
            raise ApiError(409, "this server keeps no sessions: it was started without --state-folder", code="no_folder")
        digest = _digest(session.name)
        before = set(self.folder.glob(f"{digest}.*.safetensors"))
        state = None
        if session.state is not None:
            state = f"{digest}.{secrets.token_hex(8)}.safetensors"
            session.state.save(self.folder / state)
        session.saved = time.time()
        description = {one: getattr(session, one) for one in Saved.model_fields if one != "state"}
        write_json(self.folder / f"{digest}.json", {**description, "state": state})
        for path in before:
            path.unlink(missing_ok=True)

    def loaded(self, name: str) -> Session | None:
        """As it was saved, or None. A state that cannot be read, or of other weights, is computed again."""
        if self.folder is None or not NAME.fullmatch(name):
            return None
        path = self.folder / f"{_digest(name)}.json"
        if not path.is_file():
            return None
        try:
            found = Saved.model_validate(read_json(path), strict=False)
            session = found.opened(name, path.stat().st_mtime)
        except (ValueError, OSError) as error:
            logger.warning("a saved session cannot be read and is ignored: %s", str(error)[:300])
            return None
        served = self.models.get(session.model)
        if found.state is not None and served is not None and session.identity == served.identity:
            with suppress(ValueError, OSError):
                session.hold(StateCache.load(self.folder / found.state))
        elif served is not None:
            session.identity = served.identity
        return session

    # --- bounds

    def expire(self) -> None:
        """Those unused for too long leave memory: saved if they were saved before, and gone otherwise."""
        now = time.time()
        for name, session in list(self._open.items()):
            if now - session.used < self.settings.session_idle:
                return  # so were all that follow
            if session.busy:
                continue
            if self.folder is not None and (self.folder / f"{_digest(name)}.json").exists() and session.saved is None:
                self.save(session)
            del self._open[name]

    def make_room(self) -> None:
        """States unused for longest leave memory; where there is a folder, they are saved and come back from there."""
        left = self.nbytes
        for name, session in list(self._open.items()):
            if left <= self.settings.session_bytes:
                return
            if session.busy or session.state is None:
                continue
            left -= session.nbytes
            if self.folder is not None:
                if session.saved is None:
                    self.save(session)
                del self._open[name]
            else:
                session.hold(None)

    def save_all(self) -> None:
        """At the end of the server."""
        if self.folder is not None:
            for session in self._open.values():
                if session.saved is None and session.tokens:
                    self.save(session)

    def forget_old_files(self) -> None:
        """Called at the start."""
        if self.folder is not None:
            for path in self.folder.glob("*.json"):
                if time.time() - path.stat().st_mtime > KEPT:
                    for part in self.folder.glob(f"{path.stem}.*"):
                        part.unlink(missing_ok=True)

    def _added(self, session: Session) -> Session:
        if len(self._open) >= self.settings.max_sessions:
            raise ApiError(429, f"{self.settings.max_sessions} sessions are open already", code="too_many_sessions")
        self._open[session.name] = session
        return session


def owner_of(key: str) -> str:
    return hashlib.sha256(f"maclaurin session owner {key}".encode()).hexdigest()


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
