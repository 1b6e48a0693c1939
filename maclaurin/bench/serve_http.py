"""Requests over HTTP: `maclaurin serve` against transformers' server, which takes these models one request at a time.

Both servers run beside each other and are asked in turns: so many requests at once, of different lengths, never the same.
Both must give the same texts, as long as no two logits are closer than rounding. Tokens are counted per second of CPU time
of the server's process.
"""

from __future__ import annotations

import json
import random
import statistics
import string
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from http.client import HTTPConnection
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from maclaurin.bench.servers import Server, make_model, ours, serving, transformers_own
from maclaurin.models.folder import open_model

AT_ONCE = (8, 32)
TURNS = 5
SECONDS = 600.0  # for an answer
TIE = 1e-5  # of two logits: batches of other sizes round them by about a tenth of it


@dataclass(frozen=True)
class Throughput:
    """Tokens per second of CPU time, medians of all turns; ratio: the median of those of each turn."""

    at_once: int
    transformers: float
    maclaurin: float
    ratio: float


def over_http(size: str, mixer: str, at_once: Sequence[int] = AT_ONCE) -> list[Throughput]:
    import_module("maclaurin.serving.http.server")  # without its extra this says so, before anything was measured
    with TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary) / "model"
        make_model(folder, size, mixer)
        theirs, own = (stack.enter_context(serving(command(folder))) for command in (transformers_own, ours))
        for server in (theirs, own):
            _asked(server, _requests(max(at_once), turn=-1)[:4])  # what is loaded and built with the first requests
        return [_compared(theirs, own, count, folder) for count in at_once]


def _compared(theirs: Server, own: Server, count: int, folder: Path) -> Throughput:
    speeds: list[tuple[float, float]] = []
    for turn in range(TURNS):
        bodies = _requests(count, turn)
        (their_texts, their_speed), (own_texts, own_speed) = _asked(theirs, bodies), _asked(own, bodies)
        differing = [texts for texts in zip(bodies, their_texts, own_texts, strict=True) if texts[1] != texts[2]]
        if wrong := sum(not parted_at_a_tie(folder, *texts) for texts in differing):
            raise RuntimeError(f"{wrong} of {count} answers over HTTP are not those of transformers' server")
        speeds.append((their_speed, own_speed))
    before, now = (statistics.median(way) for way in zip(*speeds, strict=True))
    return Throughput(count, before, now, statistics.median(own / peer for peer, own in speeds))


@torch.inference_mode()
def parted_at_a_tie(folder: Path, body: dict[str, Any], *texts: str) -> bool:
    """Whether these greedy answers are the same up to a token that could as well have been another one."""
    model, tokenizer = open_model(folder)
    prompt = tokenizer(body["prompt"], return_tensors="pt").input_ids
    found = model.generate(
        prompt, max_new_tokens=body["max_tokens"], do_sample=False, output_logits=True, return_dict_in_generate=True
    )
    likeliest = torch.cat(found.logits).topk(2).values
    ties = (likeliest[:, 0] - likeliest[:, 1] <= TIE).nonzero()
    if not len(ties):
        return False
    before = found.sequences[0, prompt.shape[1] : prompt.shape[1] + int(ties[0])]
    head = tokenizer.decode(before, skip_special_tokens=True).rstrip("\ufffd")  # a character may be cut
    return all(text.startswith(head) for text in texts)


def _requests(count: int, turn: int) -> list[dict[str, Any]]:
    """No two begin alike, in any turn, so that no prefix is known."""
    pick = random.Random(1000 * count + turn)
    return [
        {
            "model": "model",
            "prompt": "".join(pick.choices(string.ascii_letters, k=pick.randint(8, 256))),
            "max_tokens": pick.randint(16, 128),
            "temperature": 0,
            "seed": 1,  # transformers takes a request without one as a sampled one
        }
        for _ in range(count)
    ]


def _asked(server: Server, bodies: Sequence[dict[str, Any]]) -> tuple[list[str], float]:
    """The answers to requests that come at once, and tokens per second of CPU time."""
    before = server.cpu_seconds()
    with ThreadPoolExecutor(len(bodies)) as pool:
        answers = list(pool.map(lambda body: _answer(server, body), bodies))
    used = server.cpu_seconds() - before
    tokens = sum(answer["usage"]["completion_tokens"] for answer in answers)
    return [answer["choices"][0]["text"] for answer in answers], tokens / used


def _answer(server: Server, body: dict[str, Any]) -> Any:
    connection = HTTPConnection(server.address, timeout=SECONDS)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = json.loads(response.read())
    finally:
        connection.close()
    if response.status != 200:
        raise RuntimeError(f"a request over HTTP failed with {response.status}: {content}")
    return content
