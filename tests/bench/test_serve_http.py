"""Throughput over HTTP: what is asked, and that both servers are measured at the same answers."""

import pytest

from maclaurin.bench import serve_http


def test_no_two_requests_begin_alike_and_every_run_asks_the_same():
    every = [body for count in (8, 32) for turn in range(-1, 5) for body in serve_http._requests(count, turn)]
    assert len({body["prompt"][:8] for body in every}) == len(every)
    assert len({len(body["prompt"]) for body in every}) > 50 and len({body["max_tokens"] for body in every}) > 50
    assert serve_http._requests(8, 2) == serve_http._requests(8, 2)


@pytest.mark.slow
def test_both_servers_give_the_same_answers(monkeypatch):
    pytest.importorskip("fastapi")
    monkeypatch.setattr(serve_http, "TURNS", 1)
    (found,) = serve_http.over_http("tiny", "gla", at_once=[2])
    assert found.at_once == 2 and found.transformers > 0
    assert found.ratio == pytest.approx(found.maclaurin / found.transformers)
