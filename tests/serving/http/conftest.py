"""Servers of tiny models in this process. Every wait has an end: clients, shutdowns and the tests themselves."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager

import pytest
import torch

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")

SECONDS = 240  # for one test on a machine that is busy with others
CLIENT = {"max_retries": 0, "timeout": 60}


@pytest.fixture(autouse=True)
def _every_test_ends():
    def late(*_):
        raise TimeoutError(f"the test did not end within {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A hybrid that nobody has trained: second order and softmax."""
    from maclaurin.data.tokenizer import byte_tokenizer
    from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM

    torch.manual_seed(1)
    path = tmp_path_factory.mktemp("models") / "tiny"
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = MaclaurinConfig(vocab_size=257, mixer=["2mamba", "softmax"], bos_token_id=None, eos_token_id=256, **sizes)
    MaclaurinForCausalLM(config).save_pretrained(path)
    byte_tokenizer().save_pretrained(path)
    return path


class Running:
    """A server at a port of its own."""

    def __init__(self, app, server, thread, port, served):
        self.app, self.server, self.thread, self.port, self.served = app, server, thread, port, served
        self.url = f"http://127.0.0.1:{port}"

    @property
    def engine(self):
        return next(iter(self.served.values())).engine

    def client(self, path="/v1", key="none"):
        import openai

        return openai.OpenAI(base_url=f"{self.url}{path}", api_key=key, **CLIENT)

    def ask(self, method, path, body=None, key=None, headers=None):
        """Status and content."""
        import requests

        headers = {**({} if key is None else {"Authorization": f"Bearer {key}"}), **(headers or {})}
        answer = requests.request(method, self.url + path, json=body, headers=headers, timeout=60)
        is_json = answer.headers.get("content-type", "").startswith("application/json")
        return answer.status_code, answer.json() if is_json else answer.text

    def stop(self):
        self.server.should_exit = True
        self.thread.join(30)
        assert not self.thread.is_alive(), "the server did not end"


def started(app, served=None):
    from maclaurin.serving.http.server import listening, uvicorn_server
    from maclaurin.serving.http.settings import Settings

    bound = listening(Settings(port=0))
    server = uvicorn_server(app)
    thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
    thread.start()
    return Running(app, server, thread, bound.getsockname()[1], served or {})


@contextmanager
def running(path, *, models=None, **fields):
    from maclaurin.serving.http.app import create_app
    from maclaurin.serving.http.served import opened
    from maclaurin.serving.http.settings import Settings

    settings = Settings(port=0, max_new=64, max_prompt=512, **fields)
    served = opened(models or [str(path)], settings)
    one = started(create_app(served, settings), served)
    try:
        yield one
    finally:
        one.stop()


@pytest.fixture(scope="module")
def server(folder):
    with running(folder) as one:
        yield one


def alone(server, text, count):
    """The greedy continuation by `generate`, without an engine."""
    from maclaurin.models.folder import open_model

    one = next(iter(server.served.values()))
    model, tokenizer = open_model(one.model.name_or_path)
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    new = model.generate(ids, max_new_tokens=count, do_sample=False)[0, ids.shape[1] :]
    return tokenizer.decode(new, skip_special_tokens=True)
