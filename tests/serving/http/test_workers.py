"""Several servers behind the router: sessions find the one that has them, others the least busy, and nothing hangs."""

import json
import os
import signal
import socket
import subprocess
import time

import pytest
from maclaurin.serving.http.settings import Settings
from maclaurin.serving.http.workers import Router, Workers
from tests.serving.http.conftest import running, started
from tests.serving.http.test_guard import LONG, slow_down, until
from tests.serving.http.test_sessions import begun, more, whole
from tests.shell import command


@pytest.fixture(scope="module")
def behind(folder):
    """A router, and its two servers, which here are in this process."""
    workers = Workers(2, [], Settings(), 1)
    workers.watch = _nothing
    with running(folder, number=0) as first, running(folder, number=1) as second:
        workers.ports = [first.port, second.port]
        router = started(Router(workers), first.served)
        router.workers, router.servers = workers, (first, second)
        yield router
        router.stop()


async def _nothing():
    """Nobody has to be started again."""


def test_sessions_are_where_their_names_say(behind):
    names = [begun(behind, prompt="12 green") for _ in range(4)]
    assert sorted(name[:2] for name in names) == ["0-", "0-", "1-", "1-"]
    for name in names:
        assert more(behind, name) + more(behind, name) == whole(behind, "12 green", 20)
        fork = behind.ask("POST", f"/v1/sessions/{name}/fork", {})[1]["id"]
        assert fork[:2] == name[:2]
        here = behind.servers[int(name[0])]
        assert here.ask("GET", f"/v1/sessions/{name}")[0] == 200
    status, found = behind.ask("GET", "/v1/sessions")
    assert status == 200 and len(found["data"]) == 8
    for number in range(2):
        assert "maclaurin_sessions 4.0" in behind.ask("GET", f"/workers/{number}/metrics")[1]


def test_streams_pass_and_large_bodies_are_refused(behind):
    client = behind.client()
    text = "".join(chunk.choices[0].text for chunk in client.completions.create(**{**LONG, "max_tokens": 9}, stream=True))
    assert text == whole(behind, "ab", 9)
    assert behind.ask("POST", "/v1/completions", {"prompt": "x" * 5_000_000})[0] in (413, 503)


def test_a_client_that_goes_away_is_gone_for_the_worker(behind, monkeypatch):
    for server in behind.servers:
        slow_down(server.engine, monkeypatch, 0.05)
    content = json.dumps({**LONG, "stream": True}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", behind.port), timeout=30) as raw:
        raw.sendall(head.encode() + f"Content-Length: {len(content)}\r\n\r\n".encode() + content)
        until(lambda: sum(server.engine.stats()["active"] for server in behind.servers) == 1)
    until(lambda: sum(server.engine.stats()["active"] for server in behind.servers) == 0)


def test_a_worker_that_is_down_is_said_to_be(behind, monkeypatch):
    monkeypatch.setattr(behind.workers, "ports", [behind.workers.ports[0], None])
    status, answer = behind.ask("GET", f"/v1/sessions/1-{'A' * 32}")
    assert status == 503 and answer["error"]["code"] == "worker_down"
    assert all(behind.ask("GET", "/v1/models")[0] == 200 for _ in range(3))


@pytest.mark.slow
def test_kill_9_and_a_new_start(folder, tmp_path):
    """The command itself, with two processes: one of them is killed, then all of them."""
    options = ("serve", folder, "--port", 0, "--workers", 2, "--state-folder", tmp_path, "--threads", 1)

    def start():
        process = subprocess.Popen(command(*options), stdout=subprocess.PIPE, text=True, start_new_session=True)
        return process, Address(process.stdout.readline().strip())

    process, server = start()
    try:
        names = [begun(server, prompt="12 green") for _ in range(4)]
        texts = [more(server, name) for name in names]
        for name in names:
            assert server.ask("POST", f"/v1/sessions/{name}/save")[0] == 200
        expected = whole(server, "12 green", 20)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
        process, server = start()
        assert [text + more(server, name) for name, text in zip(names, texts, strict=True)] == [expected] * 4
        process.terminate()  # saves what came since
        process.wait(60)
        process, server = start()
        assert all(server.ask("GET", f"/v1/sessions/{name}")[1]["tokens"] == 28 for name in names)
    finally:
        process.kill()
        time.sleep(1)


class Address:
    """A server that is a process of its own."""

    def __init__(self, url):
        from tests.serving.http.conftest import Running

        self.url = url
        self.ask, self.client = Running.ask.__get__(self), Running.client.__get__(self)
