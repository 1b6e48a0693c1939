"""Routes of sessions. `/v1/sessions/NAME` is an address of its own for clients of OpenAI's API: what they send there as
messages or prompt comes after what the session has.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import FastAPI, Path, Request
from fastapi.responses import JSONResponse
from pydantic import Field

from maclaurin.serving.http.completions import Answers, ChatForm, Form
from maclaurin.serving.http.errors import ApiError
from maclaurin.serving.http.generation import Generation
from maclaurin.serving.http.requests import Body, ChatBody, CompletionBody, Sampled, check_prompt
from maclaurin.serving.http.served import Served
from maclaurin.serving.http.sessions import Session, Sessions

Name = Annotated[str, Path(max_length=64)]


class NewSession(Body):
    model: str | None = Field(None, max_length=256)
    prompt: str | None = Field(None, description="text that the session begins with; it is read with the first request")


class ForkBody(Body):
    tokens: int | None = Field(None, ge=0, description="how many tokens the new session has; all where it is left out")


class Continuing:
    """One request that goes on with a session."""

    def __init__(self, answers: Answers, sessions: Sessions) -> None:
        self.answers, self.sessions = answers, sessions
        self._settling: set[asyncio.Task[None]] = set()

    async def text(self, request: Request, session: Session, body: CompletionBody) -> Any:
        served = self._claimed(session, body, "text")
        if not isinstance(body.prompt, str):
            raise ApiError(400, "prompt must be one text, which may be empty", param="prompt")
        new = await self.answers.encoded(served, body.prompt, special=not session.tokens) if body.prompt else []
        return await self._answer(request, session, body, [*session.tokens, *new], "prompt", Form(served, _named(session)))

    async def chat(self, request: Request, session: Session, body: ChatBody) -> Any:
        served = self._claimed(session, body, "chat")
        messages = [*session.messages, *body.plain]
        text = served.render(messages)
        tokens = await self._chat_tokens(served, session, text)
        form = ChatForm(served, _named(session))
        return await self._answer(request, session, body, tokens, "messages", form, messages=messages, text=text)

    async def _chat_tokens(self, served: Served, session: Session, text: str) -> list[int]:
        """Those of the session and of what is new, where the template leaves what was said as it is; otherwise all anew."""
        if session.shown is None or not text.startswith(session.shown):
            return await self.answers.encoded(served, text, special=False)
        tokens, new = list(session.tokens), text[len(session.shown) :]
        if tokens and tokens[-1] in served.stop_tokens:
            end = served.tokenizer.decode(tokens[-1:])
            if new.startswith(end):
                new = new[len(end) :]
            else:
                tokens.pop()  # a sign for us that the template does not have; no state has read it
        return [*tokens, *(await self.answers.encoded(served, new, special=False))]

    def _claimed(self, session: Session, body: Sampled, kind: str) -> Served:
        if session.busy:
            raise ApiError(409, "another request goes on with this session: wait for it, or fork", code="session_busy")
        if body.choices > 1:
            raise ApiError(400, "a session goes on in one way: fork it for others", param="n")
        if session.kind not in (None, kind):
            raise ApiError(409, f"this is a session of {session.kind} completions", code="session_kind")
        if body.model not in (None, session.model):
            raise ApiError(400, f"this is a session of the model {session.model!r}", param="model")
        return self.sessions.models[session.model]

    async def _answer(
        self,
        request: Request,
        session: Session,
        body: Sampled,
        tokens: list[int],
        param: str,
        form: Form,
        messages: list[dict[str, str]] | None = None,
        text: str = "",
    ) -> Any:
        if session.busy:  # since it was looked at
            raise ApiError(409, "another request goes on with this session: wait for it, or fork", code="session_busy")
        served, state = self.sessions.models[session.model], session.state
        known = 0 if state is None else state.get_seq_length()
        if state is not None and tokens[:known] != session.tokens[:known]:
            known, state = 0, None
        check_prompt(tokens[known:], served, self.answers.settings, param=param, before=known)
        (begun,) = self.answers.submit(served, [tokens[known:]], body, state=state, keep_state=True)
        session.busy = True
        if session.state is not state:
            session.hold(state)
        task = asyncio.create_task(self._settle(session, begun, tokens, messages, text))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        return await self.answers.answer(request, body, [begun], form)

    async def _settle(
        self, session: Session, begun: Generation, tokens: list[int], messages: list[dict[str, str]] | None, text: str
    ) -> None:
        """Once the answer is complete, or its reader gone: what the session is from now on."""
        try:
            await begun.left.wait()
            await begun.over.wait()
            request = begun.request
            if request.finish_reason == "error":
                return
            stopped = begun.text.stopped
            output = request.output[: begun.tokens] if stopped else request.output
            session.go_on([*tokens, *output], request.state)
            session.kind = "text" if messages is None else "chat"
            if messages is not None:
                said = begun.said if stopped else begun.served.tokenizer.decode(output, skip_special_tokens=True)
                going_on = messages[-1]["role"] == "assistant"
                before = messages.pop()["content"] if going_on else ""
                session.messages = [*messages, {"role": "assistant", "content": before + said}]
                session.shown = None if stopped else text + said
        finally:
            session.busy = False
            begun.settled.set()
            self.sessions.make_room()


def add_sessions(app: FastAPI, answers: Answers, sessions: Sessions) -> None:
    continuing = Continuing(answers, sessions)

    def found(request: Request, name: str, *, idle: bool = True) -> Session:
        session = sessions.found(name, request.state.owner)
        if idle and session.busy:
            raise ApiError(409, "another request goes on with this session: wait for it", code="session_busy")
        return session

    def shown(session: Session) -> dict[str, Any]:
        idle = answers.settings.session_idle
        return {
            "id": session.name,
            "object": "session",
            "created": int(session.created),
            "expires_at": int(session.used + idle),
            "model": session.model,
            "kind": session.kind,
            "messages": session.messages,
            "tokens": len(session.tokens),
            "saved": session.saved is not None,
            **sessions.models[session.model].sizes(len(session.tokens)),
        }

    @app.post("/v1/sessions", tags=["sessions"])
    async def begin(request: Request, body: NewSession) -> Any:
        served = answers.models.named(body.model)
        tokens = await answers.encoded(served, body.prompt) if body.prompt else []
        if tokens:
            check_prompt(tokens, served, answers.settings, param="prompt")
        session = sessions.begun(request.state.owner, served)
        session.tokens, session.kind = tokens, "text" if tokens else None
        return JSONResponse(shown(session))

    @app.get("/v1/sessions", tags=["sessions"])
    async def list_open(request: Request) -> Any:
        return JSONResponse({"object": "list", "data": [shown(one) for one in sessions.of(request.state.owner)]})

    @app.get("/v1/sessions/{name}", tags=["sessions"])
    async def look(request: Request, name: Name) -> Any:
        return JSONResponse(shown(found(request, name, idle=False)))

    @app.delete("/v1/sessions/{name}", tags=["sessions"])
    async def end(request: Request, name: Name) -> Any:
        session = found(request, name)
        sessions.remove(session)
        return JSONResponse({"id": session.name, "object": "session", "deleted": True})

    @app.post("/v1/sessions/{name}/completions", tags=["sessions"])
    async def go_on(request: Request, name: Name, body: CompletionBody) -> Any:
        return await continuing.text(request, found(request, name), body)

    @app.post("/v1/sessions/{name}/chat/completions", tags=["sessions"])
    async def go_on_chatting(request: Request, name: Name, body: ChatBody) -> Any:
        return await continuing.chat(request, found(request, name), body)

    @app.post("/v1/sessions/{name}/fork", tags=["sessions"])
    async def fork(request: Request, name: Name, body: ForkBody) -> Any:
        return JSONResponse(shown(sessions.forked(found(request, name), body.tokens)))

    @app.post("/v1/sessions/{name}/save", tags=["sessions"])
    async def save(request: Request, name: Name) -> Any:
        session = found(request, name)
        session.busy = True
        try:
            await asyncio.to_thread(sessions.save, session)
        finally:
            session.busy = False
        return JSONResponse(shown(session))

    @app.post("/v1/sessions/{name}/load", tags=["sessions"])
    async def load(request: Request, name: Name) -> Any:
        session = found(request, name)
        earlier = await asyncio.to_thread(sessions.loaded, name)
        if earlier is None:
            raise ApiError(404, "this session was never saved", code="session_not_saved")
        sessions.replace(session, earlier)
        return JSONResponse(shown(earlier))


def _named(session: Session) -> dict[str, str]:
    return {"session": session.name}
