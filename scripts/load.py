"""Load on a server over HTTP, on loopback, with a model that nobody has trained.

    python scripts/load.py throughput            # requests of different lengths: transformers' server as it is, and ours
    python scripts/load.py sessions --minutes 30 # a thousand sessions, some of them active: errors, memory, delays

Servers are processes of their own and end with this one; tokens are counted per second of their CPU time. Needs
the extra `serve`.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles

import aiohttp

START = 420  # seconds for a server to answer
REQUEST = aiohttp.ClientTimeout(total=300)
TICKS = os.sysconf("SC_CLK_TCK")


def make_model(folder: Path, size: str, mixer: str) -> None:
    import torch

    from maclaurin.data.tokenizer import byte_tokenizer
    from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM

    torch.manual_seed(0)
    # an end of text would make the lengths of answers a matter of chance
    config = MaclaurinConfig.of_size(size, vocab_size=257, mixer=mixer, bos_token_id=None, eos_token_id=None)
    MaclaurinForCausalLM(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)


def stock(folder: str) -> None:
    """transformers' server without the seam: a request at a time, each by `generate`."""
    import torch
    from transformers.cli.serving.completion import CompletionHandler
    from transformers.cli.serving.server import build_server
    from transformers.cli.serving.utils import GenerationState

    from maclaurin.serving.http import server
    from maclaurin.serving.http.seam import HeldModels
    from maclaurin.serving.http.served import opened
    from maclaurin.serving.http.settings import Settings

    settings = Settings(port=0)
    with server.listening(settings) as bound:
        torch.set_num_threads(1)
        server._quietly()
        served = opened([folder], settings)
        models, states = HeldModels(served, settings, lambda: None), GenerationState()
        names = [name for name in inspect.signature(build_server).parameters if name.endswith("_handler")]
        handlers = dict.fromkeys(names) | {"completion_handler": CompletionHandler(models, states)}
        app = build_server(model_manager=models, generation_state=states, **handlers)
        server._run(app, bound, lambda port: print(f"http://127.0.0.1:{port}", flush=True))


class Server:
    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.url = process, url

    def cpu(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def resident(self) -> float:
        """MiB."""
        words = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return int(words[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextmanager
def serving(command: Sequence[str]) -> Iterator[Server]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        end = time.monotonic() + START
        while not (line := process.stdout.readline()):
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"the server did not start: {' '.join(command)}")
            time.sleep(0.2)
        yield Server(process, line.strip())
    finally:
        process.terminate()
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()


def ours(folder: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "maclaurin", "serve", str(folder), "--port", "0", "--threads", "1", *options]


# --- requests of different lengths


async def throughput(server: Server, count: int) -> float:
    """Tokens per second of CPU time, of `count` requests at once."""
    pick = random.Random(0)
    asked = [
        {"prompt": "x" * pick.randint(8, 256), "max_tokens": pick.randint(16, 128), "temperature": 0, "seed": 1}
        for _ in range(count)
    ]

    async def one(session: aiohttp.ClientSession, body: dict[str, object]) -> int:
        async with session.post(f"{server.url}/v1/completions", json={**body, "model": "model"}) as answer:
            content = await answer.json()
            if answer.status != 200:
                raise SystemExit(f"{answer.status}: {content}")
            tokens: int = content["usage"]["completion_tokens"]
            return tokens

    async with aiohttp.ClientSession(timeout=REQUEST, connector=aiohttp.TCPConnector(limit=0)) as session:
        await one(session, asked[0])
        before, began = server.cpu(), time.perf_counter()
        tokens = sum(await asyncio.gather(*(one(session, body) for body in asked)))
        used, took = server.cpu() - before, time.perf_counter() - began
    speed = f"{tokens / used:7.1f} tokens per CPU second"
    print(f"  {count:3d} requests, {tokens} tokens, {used:6.2f} s of CPU time, {took:6.1f} s: {speed}", flush=True)
    return tokens / used


def compare(folder: Path, counts: Sequence[int]) -> None:
    commands = {"transformers": [sys.executable, __file__, "stock", str(folder)], "maclaurin serve": ours(folder)}
    found: dict[str, list[float]] = {}
    for name, command in commands.items():
        print(name)
        with serving(command) as server:
            found[name] = [asyncio.run(throughput(server, count)) for count in counts]
    for count, before, now in zip(counts, *found.values(), strict=True):
        print(f"{count} requests: {now / before:.1f} times the tokens per CPU second")


# --- many sessions


class Delays:
    def __init__(self) -> None:
        self.first: list[float] = []
        self.between: list[float] = []
        self.errors: dict[str, int] = {}

    def failed(self, what: str) -> None:
        self.errors[what] = self.errors.get(what, 0) + 1


async def turn(client: aiohttp.ClientSession, url: str, name: str, delays: Delays) -> int:
    """One answer of a session, as a stream; how many tokens the session has."""
    body = {"prompt": " and so on:", "max_tokens": 16, "stream": True, "stream_options": {"include_usage": True}}
    last, total, begun = time.perf_counter(), 0, False
    async with client.post(f"{url}/v1/sessions/{name}/completions", json=body) as answer:
        if answer.status != 200:
            delays.failed(f"status {answer.status}")
            return 0
        async for line in answer.content:
            if b'"text":' in line:
                now = time.perf_counter()
                (delays.between if begun else delays.first).append(now - last)
                last, begun = now, True
            elif b'"usage":' in line:
                total = int(line.split(b'"total_tokens":')[1].split(b",")[0].rstrip(b"}\n"))
            elif b'"error":' in line:
                delays.failed(line.decode()[:80])
    return total


async def many_sessions(server: Server, count: int, active: int, minutes: float, longest: int) -> None:
    delays, turns, pick = Delays(), 0, random.Random(0)
    async with aiohttp.ClientSession(timeout=REQUEST, connector=aiohttp.TCPConnector(limit=0)) as client:

        async def new() -> str:
            async with client.post(
                f"{server.url}/v1/sessions", json={"prompt": f"session {pick.random()} begins"}
            ) as answer:
                name: str = (await answer.json())["id"]
                return name

        idle = [await new() for _ in range(count)]
        for start in range(0, count, active):  # every session has a state before the clock starts
            await asyncio.gather(*(turn(client, server.url, name, Delays()) for name in idle[start : start + active]))
        began = time.monotonic()
        end = began + 60 * minutes
        print(f"{count} sessions open, {active} active; resident memory {server.resident():.0f} MiB", flush=True)

        async def user() -> None:
            nonlocal turns
            while time.monotonic() < end:
                name = idle.pop(pick.randrange(len(idle)))
                try:
                    length = await turn(client, server.url, name, delays)
                    if length > longest:  # it ends, and another one begins
                        await (await client.delete(f"{server.url}/v1/sessions/{name}")).release()
                        name = await new()
                    turns += 1
                except (aiohttp.ClientError, TimeoutError) as error:
                    delays.failed(type(error).__name__)
                idle.append(name)

        async def report() -> None:
            while (left := end - time.monotonic()) > 0:
                await asyncio.sleep(min(60, left))
                minute = (time.monotonic() - began) / 60
                errors = sum(delays.errors.values())
                print(f"  {minute:4.1f} min: {turns} answers, {errors} errors, {server.resident():.0f} MiB", flush=True)

        cpu = server.cpu()
        await asyncio.gather(report(), *(user() for _ in range(active)))
        used = server.cpu() - cpu
        async with client.get(f"{server.url}/v1/sessions") as answer:
            still = len((await answer.json())["data"])
    tokens = len(delays.first) + len(delays.between)
    speed = f"{tokens / used:.0f} per CPU second"
    print(f"{turns} answers, {tokens} pieces, {speed}; {still} sessions open; errors: {delays.errors or 'none'}")
    for name, values in (("first token", delays.first), ("between tokens", delays.between)):
        cuts = quantiles(values, n=100)
        print(f"{name}: median {1000 * cuts[49]:.0f} ms, p95 {1000 * cuts[94]:.0f} ms, p99 {1000 * cuts[98]:.0f} ms")


def main() -> None:
    if sys.argv[1:2] == ["stock"]:
        stock(sys.argv[2])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["throughput", "sessions"])
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--mixer", default="2mamba")
    parser.add_argument("--requests", default="1,8,32", help="throughput: how many at once")
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--active", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--longest", type=int, default=160, help="tokens after which a session ends and another one begins")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        make_model(folder, options.size, options.mixer)
        if options.what == "throughput":
            compare(folder, [int(number) for number in options.requests.split(",")])
        else:
            with serving(ours(folder, "--max-active", str(options.active), "--queue", str(2 * options.active))) as server:
                asyncio.run(many_sessions(server, options.sessions, options.active, options.minutes, options.longest))


if __name__ == "__main__":
    main()
