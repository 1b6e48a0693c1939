"""Many sessions through one model: the engine against `generate`, whose batch starts and ends together, and against softmax.

Tokens are those that sessions asked for, per second of CPU time of one thread. A way that gives a session other tokens than
`generate` ends the benchmark, unless they part where two logits are closer than rounding.

    http       8 and 32 requests at once: `maclaurin serve` against transformers' server (`serve_http.py`)
    sessions   64 at `tiny`: 8 to 200 tokens of prompt, 8 to 128 new ones; and the same behind 512 tokens in common
    context    steps of sessions behind 2,048 tokens at `small`, as many as fit into the same bytes of state, at most 64. All
               have the state of one prompt. A fold is one of the 32 steps that are averaged. Second order also with
               state_dtype="bfloat16", and how far that moves the logits of a step at most
    prefix     the same prompt of 2,048 tokens twice: what is computed until the first token
    rows       one layer of `small` with 32 sessions of 1,100 tokens: a join, a leave, and a step
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from maclaurin.bench.serve_http import TIE, over_http
from maclaurin.common.records import Record
from maclaurin.mixers import build_mixer
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM
from maclaurin.models.lighter import lighter
from maclaurin.ops.native.halves import STATE_DTYPES
from maclaurin.serving import Engine, PrefixCache, Sampling
from maclaurin.serving.batch import batch_of
from maclaurin.serving.slots import slots_of

WORDS = 256
SESSIONS, COMMON, PREFILL = 64, 512, 2048
NEW = (8, 16, 32, 128)
MIXERS = ("2mamba", "2mamba-orders", "gla", "mamba2")
PEER = "softmax"
SECOND_ORDER = ("2mamba", "2mamba-orders")
CONTEXT, CONTEXT_BYTES, CONTEXT_STEPS = 2048, 2**30, 32
ROWS, ROW_TOKENS = 32, 1100
REPEATS = 3

Prompt = tuple[list[int], int]  # tokens, and how many new ones are asked for
Way = Callable[[], list[list[int]]]


@dataclass(frozen=True)
class ServeRow(Record):
    """what: of the parts above. value in `unit`; ratio: to the peer, above 1 where ours is better."""

    what: str
    mixer: str
    way: str
    value: float
    unit: str
    ratio: float | None = None


Part = Callable[[], list[ServeRow]]


def model_of(size: str, mixer: str) -> MaclaurinForCausalLM:
    torch.manual_seed(0)
    tokens = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    return MaclaurinForCausalLM(MaclaurinConfig.of_size(size, vocab_size=WORDS, mixer=mixer, **tokens)).eval()


def prompts(common: int) -> list[Prompt]:
    rng = random.Random(0)
    head = [rng.randrange(1, WORDS) for _ in range(common)]
    return [(head + [rng.randrange(1, WORDS) for _ in range(rng.randint(8, 200))], rng.choice(NEW)) for _ in range(SESSIONS)]


def together(model: MaclaurinForCausalLM, jobs: list[Prompt]) -> list[list[int]]:
    """As `generate` takes many prompts: padded on the left, until the last one has all its tokens."""
    longest = max(len(tokens) for tokens, _ in jobs)
    padded = [[0] * (longest - len(tokens)) + tokens for tokens, _ in jobs]
    ids = torch.tensor(padded, dtype=torch.long, device="cpu")
    out = model.generate(
        ids, attention_mask=(ids != 0).long(), max_new_tokens=max(new for _, new in jobs), do_sample=False, pad_token_id=0
    )
    return [row[longest : longest + new].tolist() for row, (_, new) in zip(out, jobs, strict=True)]


def continuously(model: MaclaurinForCausalLM, jobs: list[Prompt], *, prefixes: bool) -> list[list[int]]:
    kept = PrefixCache(2**29) if prefixes else None
    engine = Engine(model, max_active=SESSIONS, prefill_tokens=PREFILL, prefixes=kept)
    requests = [engine.submit(tokens, Sampling(new)) for tokens, new in jobs]
    engine.run()
    return [request.output for request in requests]


@torch.inference_mode()
def agree(model: MaclaurinForCausalLM, jobs: list[Prompt], expected: list[list[int]], found: list[list[int]]) -> bool:
    """Whether every session got the same tokens, up to one that could as well have been the other."""
    for (prompt, new), one, other in zip(jobs, expected, found, strict=True):
        if not len(one) == len(other) == new:
            return False
        parted = next((place for place, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]), None)
        if parted is not None:
            ids = torch.tensor([prompt + one[:parted]], dtype=torch.long, device="cpu")
            logits = model(ids, logits_to_keep=1).logits[0, -1]
            if logits.max() - logits[[one[parted], other[parted]]].min() > TIE:
                return False
    return True


def cpu_seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def sessions(mixer: str) -> list[ServeRow]:
    model, rows = model_of("tiny", mixer), []
    for common in (0, COMMON):
        jobs = prompts(common)
        ways: dict[str, Way] = {"generate": partial(together, model, jobs)}
        ways["engine"] = partial(continuously, model, jobs, prefixes=False)
        if common:
            ways["engine, prefix kept"] = partial(continuously, model, jobs, prefixes=True)
        times: dict[str, list[float]] = {name: [] for name in ways}
        what = f"{SESSIONS} sessions at tiny" + (f" behind {common} tokens in common" if common else "")
        for _ in range(REPEATS):
            expected: list[list[int]] = []
            for name, way in ways.items():
                start = time.process_time()
                found = way()
                times[name].append(time.process_time() - start)
                expected = expected or found
                if not agree(model, jobs, expected, found):
                    raise RuntimeError(f"{what}, {mixer}: sessions of {name!r} got other tokens than of 'generate'")
        total = sum(new for _, new in jobs)
        for name, seconds in times.items():
            paired = [peer / own for peer, own in zip(times["generate"], seconds, strict=True)]
            ratio = None if name == "generate" else statistics.median(paired)
            rows.append(ServeRow(what, mixer, name, total / statistics.median(seconds), "tokens/s", ratio))
    return rows


@torch.inference_mode()
def context(mixer: str) -> list[ServeRow]:
    """As many sessions as there is room for, each behind a long context."""
    model = model_of("small", mixer)
    states = read(model)
    count = min(SESSIONS, CONTEXT_BYTES // sum(state.nbytes for state in states))
    tokens = list(range(1, count + 1))
    what = f"behind {CONTEXT} tokens at small, {CONTEXT_BYTES / 2**30:.1f} GiB of states"
    rows: list[ServeRow] = []
    exact: list[Tensor] = []
    for dtype in STATE_DTYPES if mixer in SECOND_ORDER else STATE_DTYPES[:1]:
        batch = batch_of(lighter(model, state_dtype=dtype), SESSIONS)
        for _ in range(count):
            batch.put(states, CONTEXT)
        logits, seconds = [batch.step(tokens)], 0.0
        for _ in range(CONTEXT_STEPS):
            start = time.process_time()
            logits.append(batch.step(tokens))
            seconds += time.process_time() - start
        exact = exact or logits
        error = max(float((one - other).norm() / other.norm()) for one, other in zip(logits, exact, strict=True))
        way = f"{count} sessions" + ("" if dtype == "float32" else f", {dtype} state, off by {error:.1e}")
        rows.append(ServeRow(what, mixer, way, count * CONTEXT_STEPS / seconds, "tokens/s"))
    return rows


def read(model: MaclaurinForCausalLM) -> list[Any]:
    """The states of all layers after CONTEXT tokens."""
    rng, batch = random.Random(0), batch_of(model, 1)
    _, (states,) = batch.read([[rng.randrange(1, WORDS) for _ in range(CONTEXT)]], [[None] * batch.layers], [0])
    return states


def prefix(mixer: str) -> list[ServeRow]:
    model, rng = model_of("tiny", mixer), random.Random(0)
    head = [rng.randrange(1, WORDS) for _ in range(CONTEXT)]
    engine = Engine(model, prefixes=PrefixCache(2**29))
    found = []
    for way in ("first", "again"):
        before = engine.stats()["prompt_tokens"]
        request = engine.submit([*head, 7, 8, 9], Sampling(1))
        seconds = cpu_seconds(engine.run)
        computed = engine.stats()["prompt_tokens"] - before
        found.append((way, computed, seconds, request.output))
    if found[0][3] != found[1][3]:
        raise RuntimeError(f"a prefix of {mixer} that was kept gave other tokens")
    what, ratio = f"a prompt of {CONTEXT + 3} tokens", found[0][2] / found[1][2]
    return [
        ServeRow(what, mixer, f"{way}: {computed} computed", seconds * 1e3, "ms", ratio if way == "again" else None)
        for way, computed, seconds, _ in found
    ]


@torch.inference_mode()
def rows(mixer: str) -> list[ServeRow]:
    torch.manual_seed(0)
    layer = build_mixer(mixer, 1024, 16).eval()
    _, state = layer(torch.randn(1, ROW_TOKENS, 1024, dtype=torch.float32, device="cpu"))
    slots = slots_of(layer, ROWS)
    for _ in range(ROWS):
        slots.put(state)
    times: dict[str, list[float]] = {"step": [], "leave": [], "join": []}
    for _ in range(8):
        x = torch.randn(ROWS, 1, 1024, dtype=torch.float32, device="cpu")
        times["step"].append(cpu_seconds(lambda x=x: slots.step(x)))  # type: ignore[misc]
        times["leave"].append(cpu_seconds(lambda: slots.drop(ROWS // 2)))
        times["join"].append(cpu_seconds(lambda: slots.put(state)))
    step = statistics.median(times["step"])
    what = f"a layer of small, {ROWS} sessions of {ROW_TOKENS} tokens"
    return [
        ServeRow(what, mixer, name, 1e3 * (own := statistics.median(found)), "ms", None if name == "step" else step / own)
        for name, found in times.items()
    ]


def http() -> list[ServeRow]:
    rows = []
    for one in over_http("tiny", "2mamba"):
        what = f"{one.at_once} requests over HTTP at tiny"
        rows.append(ServeRow(what, "2mamba", "transformers' server", one.transformers, "tokens/s"))
        rows.append(ServeRow(what, "2mamba", "maclaurin serve", one.maclaurin, "tokens/s", one.ratio))
    return rows


def behind_contexts() -> list[ServeRow]:
    found = [row for mixer in (PEER, *MIXERS) for row in context(mixer)]
    peer = found[0].value
    return [found[0], *(replace(row, ratio=row.value / peer) for row in found[1:])]


def run(console: Console, *, long: bool) -> list[ServeRow]:
    """A table as soon as it is measured: all of them take minutes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    of_each: list[Part] = [partial(part, mixer) for part in (sessions, prefix, rows) for mixer in MIXERS]
    found: list[ServeRow] = []
    try:
        for part in (http, behind_contexts, *of_each):
            measured = part()
            console.print(_table(measured))
            found += measured
    finally:
        torch.set_num_threads(threads)
    return found


def _table(found: list[ServeRow]) -> Table:
    table = Table(title="serving, CPU time of one thread")
    for column in ("what", "mixer", "way", "value", "unit", "ratio"):
        table.add_column(column)
    for row in found:
        times = "" if row.ratio is None else f"{row.ratio:.2f}x"
        table.add_row(row.what, row.mixer, row.way, f"{row.value:.4g}", row.unit, times)
    return table
