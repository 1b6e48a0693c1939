"""The application: transformers' server, with the engine behind it and the routes that it lacks.

Routes by which a request would load a model, empty the memory or read the hub's folder are taken out.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Annotated, Any

from fastapi import FastAPI, Path, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse
from pydantic import Field
from transformers.cli.serving.response import ResponseHandler
from transformers.cli.serving.utils import CBWorkerDeadError

from maclaurin import __version__
from maclaurin.serving.http.completions import Answers, add_completions
from maclaurin.serving.http.errors import ApiError, answer_errors
from maclaurin.serving.http.guard import Guard
from maclaurin.serving.http.leaving import Left, unless_gone
from maclaurin.serving.http.metrics import Metrics
from maclaurin.serving.http.requests import Body, Message
from maclaurin.serving.http.seam import HeldModels, States, transformers_app
from maclaurin.serving.http.served import Served
from maclaurin.serving.http.session_routes import add_sessions
from maclaurin.serving.http.sessions import Sessions
from maclaurin.serving.http.settings import Settings

# the page asks nobody but its own server for anything, and runs nothing but its own script
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGE = {
    "/": ("playground.html", "text/html; charset=utf-8"),
    "/playground.css": ("playground.css", "text/css; charset=utf-8"),
    "/playground.js": ("playground.js", "text/javascript; charset=utf-8"),
}


def create_app(served: Mapping[str, Served], settings: Settings) -> FastAPI:
    """The engines begin to work here, and end with the application, after sessions were saved."""
    metrics, sessions = Metrics(), Sessions(served, settings)

    def at_end() -> None:
        for one in served.values():
            one.engine.close()
        sessions.save_all()

    models = HeldModels(served, settings, at_end)
    app: FastAPI = transformers_app(models)
    app.title, app.version = "maclaurin serve", __version__
    app.router.routes.clear()
    app.user_middleware.clear()  # it names requests, as the guard does without a task and a queue for every response
    app.add_api_route("/openapi.json", lambda: JSONResponse(app.openapi()), include_in_schema=False)
    answer_errors(app, CBWorkerDeadError)
    answers = Answers(models, settings, metrics)
    _add_facts(app, served, settings, metrics)
    add_completions(app, answers)
    _add_responses(app, models)
    add_sessions(app, answers, sessions)
    _add_page(app)
    app.add_middleware(Guard, settings=settings, metrics=metrics, public=frozenset([*PAGE, "/health"]))
    if settings.origins:
        app.add_middleware(CORSMiddleware, allow_origins=list(settings.origins), allow_methods=["*"], allow_headers=["*"])
    metrics.watch(served, sessions)
    sessions.forget_old_files()
    for one in served.values():
        one.engine.start()
    return app


def _add_facts(app: FastAPI, served: Mapping[str, Served], settings: Settings, metrics: Metrics) -> None:
    def about(one: Served) -> dict[str, Any]:
        return {
            "id": one.name,
            "object": "model",
            "created": one.created,
            "owned_by": "maclaurin",
            "max_model_len": settings.max_prompt,
        }

    @app.get("/v1/models", tags=["models"])
    async def list_models() -> Any:
        return JSONResponse({"object": "list", "data": [about(one) for one in served.values()]})

    @app.get("/v1/models/{model}", tags=["models"])
    async def one_model(model: Annotated[str, Path(max_length=256)]) -> Any:
        if model not in served:
            raise ApiError(404, f"the model {model!r:.80} is not served here", param="model", code="model_not_found")
        return JSONResponse(about(served[model]))

    @app.get("/health", tags=["server"])
    async def health() -> Any:
        if not all(one.engine.alive for one in served.values()):
            return ApiError(503, "an engine has ended: restart the server").response()
        return JSONResponse({"status": "ok"})

    @app.get("/metrics", tags=["server"])
    async def prometheus() -> Any:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


class ResponseBody(Body):
    """The part of OpenAI's Responses API that transformers' handler answers, without tools."""

    model: str | None = Field(None, max_length=256)
    input: str | Annotated[list[Message], Field(min_length=1, max_length=4096)]
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=2**31)
    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(None, gt=0, le=1, allow_inf_nan=False)
    stream: bool = False


def _add_responses(app: FastAPI, models: HeldModels) -> None:
    """Answered by transformers' own handler, through the seam."""

    @app.post("/v1/responses", tags=["completions"])
    async def responses(request: Request, body: ResponseBody) -> Any:
        asked = body.model_dump(exclude_none=True, exclude={"input"})
        asked["model"] = models.named(body.model).name
        given = body.input
        asked["input"] = given if isinstance(given, str) else [message.plain() for message in given]
        states = States()
        handler = ResponseHandler(models, states)
        if body.stream:
            return Left(await handler.handle_request(asked, request.state.request_id), states.leave)
        return await unless_gone(request, handler.handle_request(asked, request.state.request_id), states.leave)


def _add_page(app: FastAPI) -> None:
    folder = files("maclaurin.serving").joinpath("playground")

    def route(path: str, content: bytes, kind: str) -> None:
        async def page() -> Any:
            headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache", "Referrer-Policy": "no-referrer"}
            return Response(content, media_type=kind, headers=headers)

        app.add_api_route(path, page, include_in_schema=False)

    for path, (name, kind) in PAGE.items():
        route(path, folder.joinpath(name).read_bytes(), kind)
