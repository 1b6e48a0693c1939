"""Where transformers' server meets the engine: `model.init_continuous_batching`, and nothing else of it is replaced.

Its handlers ask a model for a manager with `start`, `stop`, `add_request`, `register_result_handler` and `cancel_request`,
and get tokens from it. Here every request has a manager of its own: sampling options are given to
`init_continuous_batching`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import transformers
from transformers.cli.serving.model_manager import ModelManager
from transformers.cli.serving.server import build_server
from transformers.cli.serving.utils import CBGenerateManager, GenerationState
from transformers.generation.continuous_batching.requests import GenerationOutput, RequestStatus

from maclaurin.serving import Request, Sampling
from maclaurin.serving.http.errors import ApiError
from maclaurin.serving.http.requests import check_prompt
from maclaurin.serving.http.served import Served
from maclaurin.serving.http.settings import Settings

NEEDED = ("model_manager", "chat_handler", "completion_handler", "response_handler", "generation_state")


class RequestManager:
    """What transformers calls a continuous batching manager, for one request."""

    batch_processor = None
    fatal_error = None  # asked for by the oldest versions; later ones ask `background_thread_status`

    def __init__(self, served: Served, options: Any, settings: Settings) -> None:
        self.served, self.options, self.settings = served, options, settings
        self.background_thread_status = SimpleNamespace(fatal_error=None)
        self._request: Request | None = None
        self._deliver: Callable[[GenerationOutput], object] | None = None
        self._streaming, self._sent = False, 0

    def start(self) -> None:
        """The engine runs already."""

    def stop(self, *_: Any, **__: Any) -> None:
        """The engine serves others too."""

    def register_result_handler(self, request_id: str, callback: Callable[[GenerationOutput], None]) -> None:
        loop = asyncio.get_running_loop()
        self._deliver = lambda output: loop.call_soon_threadsafe(callback, output)
        if self._request is not None:
            self._on_token(self._request)  # what came before the handler did

    def add_request(
        self,
        input_ids: Sequence[int],
        request_id: str | None = None,
        max_new_tokens: int | None = None,
        streaming: bool = False,
        **_: Any,
    ) -> str:
        self._streaming, self._id = streaming, request_id or ""
        check_prompt(list(input_ids), self.served, self.settings, param="input")
        temperature, most = self.options.temperature, self.settings.max_new
        sampling = Sampling(
            max_tokens=min(max_new_tokens or most, most),
            temperature=1.0 if temperature is None else temperature,
            top_p=self.options.top_p or 1.0,
            stop_tokens=self.served.stop_tokens,
        )
        self._request = self.served.engine.submit(list(input_ids), sampling, on_token=self._on_token)
        return self._id

    def cancel_request(self, request_id: str) -> None:
        if self._request is not None and not self._request.done:
            self.served.engine.cancel(self._request)

    def _on_token(self, request: Request) -> None:
        reason = request.finish_reason
        if self._deliver is None or not (reason or self._streaming):
            return
        error = request.error if reason == "error" else None
        status = RequestStatus.FAILED if error else RequestStatus.FINISHED if reason else RequestStatus.DECODING
        self._deliver(GenerationOutput(self._id, request.tokens, list(request.output), error=error, status=status))


class States(GenerationState):
    """Of one request. transformers has one for all, and with it one manager with the options of whoever came first."""

    def __init__(self) -> None:
        super().__init__(continuous_batching=True)
        self.manager = CBGenerateManager()

    def get_manager(self, model_id: str, use_cb: bool = False) -> Any:
        return self.manager

    def leave(self) -> None:
        if (used := self.manager._cb) is not None:
            used.cancel_request("")


class HeldModels:
    """In place of transformers' ModelManager, which loads whatever a request names: only what was opened at the start."""

    force_model = None
    get_model_modality = staticmethod(ModelManager.get_model_modality)

    def __init__(self, models: Mapping[str, Served], settings: Settings, at_end: Callable[[], None]) -> None:
        self.models, self.at_end = models, at_end
        for served in models.values():
            served.model.init_continuous_batching = _manager_of(served, settings)

    @staticmethod
    def process_model_name(name: str) -> str:
        return name

    def load_model_and_processor(self, name: str, *_: Any, **__: Any) -> tuple[Any, Any]:
        served = self.named(name)
        return served.model, served.tokenizer

    def named(self, name: str | None) -> Served:
        """The first one where no name is given."""
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise ApiError(404, f"the model {name!r:.80} is not served here", param="model", code="model_not_found")
        return self.models[name]

    def shutdown(self) -> None:
        self.at_end()


def _manager_of(served: Served, settings: Settings) -> Callable[..., RequestManager]:
    def init_continuous_batching(generation_config: Any = None, **_: Any) -> RequestManager:
        return RequestManager(served, generation_config, settings)

    return init_continuous_batching


def transformers_app(models: HeldModels) -> Any:
    """transformers' own application. A version in which the seam has moved is refused in one sentence."""
    check_seam(build_server, CBGenerateManager)
    parameters = inspect.signature(build_server).parameters
    handlers: dict[str, Any] = {
        name: None for name in parameters if name.endswith("_handler")
    }  # of routes that are replaced
    return build_server(model_manager=models, generation_state=States(), **handlers)


def check_seam(build: Callable[..., Any], manager: type) -> None:
    """What the files of this package rely on in transformers' server."""
    missing = [name for name in NEEDED if name not in inspect.signature(build).parameters]
    if "init_continuous_batching" not in inspect.getsource(manager.init_cb if hasattr(manager, "init_cb") else manager):
        missing.append("init_continuous_batching")
    if missing:
        raise ImportError(
            f"transformers {transformers.__version__} has moved the seam of its server ({', '.join(missing)}): "
            "maclaurin serve was tested with 5.14 to 5.23"
        )
