"""Throughput over HTTP: what is asked, and that both servers are measured at the same answers."""

import pytest
import torch

from maclaurin.bench import serve_http
from maclaurin.bench.servers import make_model
from maclaurin.models.folder import open_model


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


def test_answers_may_part_at_a_tie_and_nowhere_before(tmp_path):
    torch.manual_seed(0)
    body = {"prompt": "as likely as another", "max_tokens": 24}
    make_model(tmp_path, "tiny", "gla")
    model, tokenizer = open_model(tmp_path)
    prompt = tokenizer(body["prompt"], return_tensors="pt").input_ids
    tokens = model.generate(prompt, max_new_tokens=24, do_sample=False)[0, prompt.shape[1] :].tolist()
    texts = [tokenizer.decode([*tokens[:place], ord("?")]) for place in range(24)]  # each parts at another token
    greedy = tokenizer.decode(tokens)
    assert not any(serve_http.parted_at_a_tie(tmp_path, body, greedy, text) for text in texts[::6])
    tied = max(place for place, token in enumerate(tokens) if token not in tokens[:place])
    assert 4 < tied < 24
    with torch.no_grad():
        model.lm_head.weight[256] = model.lm_head.weight[tokens[tied]]  # which is never said
    model.save_pretrained(tmp_path)
    assert all(serve_http.parted_at_a_tie(tmp_path, body, greedy, text) for text in texts[tied:])
    assert not serve_http.parted_at_a_tie(tmp_path, body, greedy, texts[0])
