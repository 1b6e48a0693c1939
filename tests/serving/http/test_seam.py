"""Where transformers' server meets the engine. Run with the oldest and the newest transformers of the range."""

import inspect

import pytest

pytest.importorskip("fastapi")
from maclaurin.serving.http import seam
from transformers.cli.serving.server import build_server
from transformers.cli.serving.utils import CBGenerateManager


def test_transformers_has_the_seam():
    seam.check_seam(build_server, CBGenerateManager)
    source = inspect.getsource(CBGenerateManager)
    for name in ("add_request", "register_result_handler", "background_thread_status", ".start()", "init_continuous_batching"):
        assert name in source
    # what its streamer asks of a manager
    from transformers.cli.serving.utils import CBStreamer

    assert "cancel_request" in inspect.getsource(CBStreamer)


def test_a_version_that_moved_it_is_refused_in_one_sentence():
    def other(model_manager, chat_handler, generation_state):
        """A server of some later version."""

    class Manager:
        def init_cb(self, model):
            return model.begin_batching()

    words = r"transformers \S+ has moved the seam of its server \(completion_handler, response_handler, init_continuous_batching\)"
    with pytest.raises(ImportError, match=words) as caught:
        seam.check_seam(other, Manager)
    assert "\n" not in str(caught.value)


def test_only_routes_that_this_package_answers_are_there(server):
    paths = {route.path for route in server.app.routes}
    assert paths == {
        "/", "/playground.css", "/playground.js", "/openapi.json", "/health", "/metrics",
        "/v1/models", "/v1/models/{model}", "/v1/completions", "/v1/chat/completions", "/v1/responses",
        "/v1/sessions", "/v1/sessions/{name}", "/v1/sessions/{name}/completions", "/v1/sessions/{name}/chat/completions",
        "/v1/sessions/{name}/fork", "/v1/sessions/{name}/save", "/v1/sessions/{name}/load",
    }  # fmt: skip


def test_weights_are_the_pages_of_their_file(server, folder):
    """So that processes which serve one model have them in memory once."""
    places = []
    for line in open("/proc/self/maps"):
        if line.rstrip().endswith("model.safetensors"):
            begin, end = (int(number, 16) for number in line.split()[0].split("-"))
            places.append((begin, end))
    (served,) = server.served.values()
    for name, weight in served.model.named_parameters():
        assert any(begin <= weight.data_ptr() < end for begin, end in places), name
