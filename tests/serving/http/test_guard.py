"""Who may ask, how much, and what becomes of what they leave behind."""

import gc
import json
import socket
import threading
import time

import pytest

from maclaurin.serving.http.settings import Settings
from tests.serving.http.conftest import running

KEY = "a-key-of-this-test"
LONG = {"model": "tiny", "prompt": "ab", "max_tokens": 64, "temperature": 0}


@pytest.fixture(scope="module")
def keyed(folder):
    with running(folder, keys=(KEY, "another-key"), max_body=10_000) as one:
        yield one


def code(answer):
    return answer[0], answer[1]["error"]["code"]


def test_without_a_key_nothing_is_told(keyed):
    for method, path in (("GET", "/v1/models"), ("POST", "/v1/completions"), ("GET", "/metrics"), ("GET", "/openapi.json")):
        for key in (None, "", "a-key-of-this-tes", KEY + "x", "\u00e9"):
            headers = None if key is None else {"Authorization": f"Bearer {key}".encode()}
            assert code(keyed.ask(method, path, {}, headers=headers)) == (401, "invalid_api_key")
    assert keyed.ask("GET", "/v1/models", key=KEY)[0] == keyed.ask("GET", "/v1/models", key="another-key")[0] == 200
    assert keyed.ask("GET", "/v1/models", headers={"x-api-key": KEY})[0] == 200
    assert keyed.ask("GET", "/health") == (200, {"status": "ok"}) and keyed.ask("GET", "/")[0] == 200


def test_pages_of_other_sites_are_refused(server):
    own = f"127.0.0.1:{server.port}"
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "0.0.0.0.evil", "[::ffff:1.2.3.4]"):
        assert code(server.ask("GET", "/v1/models", headers={"Host": host})) == (403, "host_not_allowed")
    for host in (own, "localhost", f"localhost:{server.port}", "[::1]:80"):
        assert server.ask("GET", "/v1/models", headers={"Host": host})[0] == 200
    for origin in ("http://evil.example", "null", "https://127.0.0.1"):
        assert code(server.ask("GET", "/v1/models", headers={"Origin": origin})) == (403, "origin_not_allowed")
    answer = server.ask("GET", "/v1/models", headers={"Origin": f"http://{own}"})
    assert answer[0] == 200


def test_pages_of_named_origins_may_ask(folder):
    import requests

    with running(folder, origins=("https://app.example",)) as one:
        headers = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
        answer = requests.options(f"{one.url}/v1/completions", headers=headers, timeout=30)
        assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == "https://app.example"
        assert one.ask("GET", "/v1/models", headers={"Origin": "https://app.example"})[0] == 200
        assert one.ask("GET", "/v1/models", headers={"Origin": "https://other.example"})[0] == 403


def test_large_requests_are_refused_before_they_are_read(keyed):
    assert code(keyed.ask("POST", "/v1/completions", {"prompt": "x" * 20_000}, key=KEY)) == (413, "body_too_large")
    with socket.create_connection(("127.0.0.1", keyed.port), timeout=30) as raw:  # in parts whose sum nobody announced
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
        raw.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        part = b"3e8\r\n" + b" " * 1000 + b"\r\n"
        raw.sendall(part * 11)
        assert b" 413 " in raw.recv(100)


def test_broken_bodies_are_the_clients_fault(server):
    import requests

    kinds = {"content-type": "application/json"}
    for body in (b"", b"{", b"[]", b"null", b'"a"', b"\xff\xfe", b'{"prompt": {}}', b'{"temperature": NaN}', b"[" * 5000):
        for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses"):
            answer = requests.post(server.url + path, data=body, headers=kinds, timeout=30)
            assert answer.status_code in (400, 422) and answer.json()["error"]["type"] == "invalid_request_error"
    image = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}
    for headers, body, words in (
        (kinds, b"{bad", "the body is not JSON"),
        ({"content-type": "text/plain"}, b'{"prompt": "a"}', "Content-Type application/json"),
        (kinds, json.dumps(image).encode(), "messages.0.content.0.type: Input should be 'text'"),
    ):
        answer = requests.post(f"{server.url}/v1/chat/completions", data=body, headers=headers, timeout=30)
        assert answer.status_code == 400 and words in answer.json()["error"]["message"]
    assert server.ask("POST", "/v1/embeddings", {})[1]["error"]["message"] == "there is no POST /v1/embeddings here"
    assert server.ask("POST", "/load_model", {"model": "/etc"})[0] == 404
    assert server.ask("POST", "/reset", {})[0] == 404
    assert code(server.ask("GET", "/nowhere")) == (404, None)


def test_a_request_has_a_name(server):
    import requests

    names = [requests.get(f"{server.url}/health", timeout=30).headers["x-request-id"] for _ in range(2)]
    assert len(set(names)) == 2 and all(len(name) == 32 for name in names)
    answer = requests.get(f"{server.url}/nowhere", headers={"X-Request-Id": "mine" * 100}, timeout=30)
    assert answer.headers["x-request-id"] == ("mine" * 100)[:128]


def slow_down(engine, monkeypatch, seconds):
    step = engine.step

    def slow():
        time.sleep(seconds)
        return step()

    monkeypatch.setattr(engine, "step", slow)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_its_slot(server, monkeypatch, caplog, stream, path):
    slow_down(server.engine, monkeypatch, 0.05)
    before = server.engine.stats()
    fields = LONG if path.endswith("completions") else {"input": "ab", "temperature": 0}  # what is sampled may end at once
    body = {**fields, "stream": stream}
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(content)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as raw:
        raw.sendall(head.encode() + content)
        until(lambda: server.engine.stats()["tokens"] > before["tokens"] + 2)
    until(lambda: server.engine.stats()["active"] == 0)
    after = server.engine.stats()
    assert after["cancelled"] == before["cancelled"] + 1 and after["tokens"] < before["tokens"] + 50
    assert server.ask("GET", "/health")[0] == 200  # the loop has come past it
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_beyond_the_queue_clients_are_told_to_come_back(folder, monkeypatch):
    with running(folder, max_active=1, queue=1) as one:
        slow_down(one.engine, monkeypatch, 0.05)
        answers = []
        threads = [
            threading.Thread(target=lambda: answers.append(one.ask("POST", "/v1/completions", LONG))) for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        refused = [content["error"] for status, content in answers if status == 429]
        assert len(answers) == 6 and 1 <= len(refused) <= 5
        assert {error["type"] for error in refused} == {"rate_limit_error"}
        assert {status for status, _ in answers} == {200, 429}
        # a request of which only a part has room leaves nothing of itself
        assert one.ask("POST", "/v1/completions", {**LONG, "n": 8})[0] == 429
        until(lambda: one.engine.stats()["waiting"] == one.engine.stats()["active"] == 0)


def test_the_end_of_a_server_completes_what_was_begun(folder, monkeypatch):
    answers = []
    with running(folder) as one:
        slow_down(one.engine, monkeypatch, 0.02)
        thread = threading.Thread(target=lambda: answers.append(one.ask("POST", "/v1/completions", LONG)))
        thread.start()
        until(lambda: one.engine.stats()["active"] == 1)
    thread.join(60)
    assert answers[0][0] == 200 and answers[0][1]["usage"]["completion_tokens"] == 64


def test_metrics_count_what_was_done(folder):
    with running(folder) as one:
        one.ask("POST", "/v1/completions", LONG)
        list(one.client().completions.create(**{**LONG, "max_tokens": 5}, stream=True))
        one.ask("POST", "/v1/sessions", {})
        one.ask("GET", "/nowhere")
        lines = dict(line.rsplit(" ", 1) for line in one.ask("GET", "/metrics")[1].splitlines() if line[0] != "#")
    assert lines['maclaurin_requests_total{route="/v1/completions",status="200"}'] == "2.0"
    assert lines['maclaurin_requests_total{route="none",status="404"}'] == "1.0"
    assert lines['maclaurin_engine_tokens_total{model="tiny"}'] == "69.0"
    assert lines['maclaurin_engine_active{model="tiny"}'] == "0.0" and lines["maclaurin_sessions"] == "1.0"
    assert lines["maclaurin_first_token_seconds_count"] == "2.0"
    assert float(lines["maclaurin_between_tokens_seconds_count"]) >= 1


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"host": "0.0.0.0"}, "--host 0.0.0.0 is reached by other machines: give an --api-key"),
        ({"host": "example.org"}, "give an --api-key"),
        ({"keys": ("short",)}, "at least 8 characters"),
        ({"max_active": 0}, "max_active must be"),
    ],
)
def test_settings_that_would_be_unsafe_are_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        Settings(**fields)
    for host in ("127.0.0.1", "localhost", "::1", "127.1.2.3"):
        Settings(host=host)
    Settings(host="0.0.0.0", keys=("12345678",))


def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "nothing changed for a minute"
        time.sleep(0.02)


def test_states_are_read_in_the_dtype_of_the_settings(folder):
    from maclaurin.serving.http.served import opened

    served = opened([f"one={folder}"], Settings(state_dtype="bfloat16"))["one"]
    assert {x.state_dtype for x in served.model.modules() if hasattr(x, "state_dtype")} == {"bfloat16"}
    assert served.identity != opened([f"one={folder}"], Settings())["one"].identity
    with pytest.raises(ValueError, match="state_dtype must be one of"):
        opened([f"one={folder}"], Settings(state_dtype="int8"))
