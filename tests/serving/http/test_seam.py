"""Where transformers' server meets the engine. Run with the oldest and the newest transformers of the range."""

import asyncio
import inspect
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
from transformers import GenerationConfig
from transformers.cli.serving.server import build_server
from transformers.cli.serving.utils import CBGenerateManager, GenerateManager

from maclaurin.models.folder import open_model
from maclaurin.serving.http import seam


def test_transformers_has_the_seam():
    seam.check_seam(build_server, CBGenerateManager)
    source = inspect.getsource(CBGenerateManager)
    for name in (
        "add_request",
        "register_result_handler",
        "fatal_error",
        ".start()",
        "init_continuous_batching",
    ):
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

    missing = "completion_handler, response_handler, init_continuous_batching"
    words = rf"transformers \S+ has moved the seam of its server \({missing}\)"
    with pytest.raises(ImportError, match=words) as caught:
        seam.check_seam(other, Manager)
    assert "\n" not in str(caught.value)


def test_without_the_seam_its_own_generation_runs_too(folder):
    """One request after the other, by `generate`: the tokenizer is handed on for stop strings."""
    (model, tokenizer), manager = open_model(folder), GenerateManager()
    inputs = dict(tokenizer("and so", return_tensors="pt", return_token_type_ids=False))
    letters = [*range(32), *range(127, 257)]  # not drawn, so that every token is text of its own
    config = GenerationConfig(max_new_tokens=12, do_sample=False, suppress_tokens=letters)
    expected = tokenizer.decode(model.generate(**inputs, generation_config=config)[0, 6:])

    async def both():
        text, read, _ = await manager.generate_non_streaming(model, tokenizer, inputs, config, "one")
        queue, _ = manager.generate_streaming(model, tokenizer, inputs, config, "two")
        pieces = []
        while isinstance(piece := await queue.get(), str):
            pieces.append(piece)
        return text, read, "".join(pieces), piece

    assert asyncio.run(both()) == (expected, 6, expected, None)
    assert len(expected) == 12


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
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.rstrip().endswith("model.safetensors"):
            begin, end = (int(number, 16) for number in line.split()[0].split("-"))
            places.append((begin, end))
    (served,) = server.served.values()
    for name, weight in served.model.named_parameters():
        assert any(begin <= weight.data_ptr() < end for begin, end in places), name
