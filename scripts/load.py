"""Load on a server over HTTP, on loopback, with a model that nobody has trained: many sessions open, some of them active.

    python scripts/load.py --minutes 30      # errors, memory, and delays of a thousand sessions

The server is a process of its own and ends with this one. Needs the extra `serve`.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import string
import tempfile
import time
from pathlib import Path
from statistics import quantiles

import aiohttp

from maclaurin.bench.servers import Server, make_model, ours, serving

REQUEST = aiohttp.ClientTimeout(total=900)  # seconds: of a machine that does other things too
BEGUN = 40  # tokens of a session at least, before its first answer
PREFIXES = "64MB"  # full before the clock starts


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

        async def new(tokens: int = BEGUN) -> str:
            prompt = "".join(pick.choices(string.ascii_letters, k=tokens))
            async with client.post(f"{server.url}/v1/sessions", json={"prompt": prompt}) as answer:
                name: str = (await answer.json())["id"]
                return name

        # of all lengths that they will have, so that memory is what it will be
        idle = [await new(pick.randint(BEGUN, longest)) for _ in range(count)]
        for start in range(0, count, active):  # every session has a state before the clock starts
            await asyncio.gather(*(turn(client, server.url, name, Delays()) for name in idle[start : start + active]))
        began = time.monotonic()
        end = began + 60 * minutes
        print(f"{count} sessions open, {active} active; resident memory {server.resident_mib():.0f} MiB", flush=True)

        async def user() -> None:
            nonlocal turns
            while time.monotonic() < end:
                name = idle.pop(pick.randrange(len(idle)))
                try:
                    length = await turn(client, server.url, name, delays)
                    if length > longest:  # it ends, and another one begins
                        async with client.delete(f"{server.url}/v1/sessions/{name}") as answer:
                            if answer.status != 200:
                                delays.failed(f"status {answer.status} at an end")
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
                print(f"  {minute:4.1f} min: {turns} answers, {errors} errors, {server.resident_mib():.0f} MiB", flush=True)

        cpu = server.cpu_seconds()
        await asyncio.gather(report(), *(user() for _ in range(active)))
        used = server.cpu_seconds() - cpu
        async with client.get(f"{server.url}/v1/sessions") as answer:
            still = len((await answer.json())["data"])
    tokens = len(delays.first) + len(delays.between)
    share = f"{used:.0f} s of CPU time ({used / (time.monotonic() - began):.0%} of a core)"
    print(f"{turns} answers, {tokens} pieces, {share}; {still} sessions open; errors: {delays.errors or 'none'}")
    for name, values in (("first token", delays.first), ("between tokens", delays.between)):
        cuts = quantiles(values, n=100)
        print(f"{name}: median {1000 * cuts[49]:.0f} ms, p95 {1000 * cuts[94]:.0f} ms, p99 {1000 * cuts[98]:.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--mixer", default="2mamba")
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--active", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--longest", type=int, default=160, help="tokens after which a session ends and another one begins")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        make_model(folder, options.size, options.mixer)
        limits = ["--max-active", str(options.active), "--queue", str(2 * options.active), "--prefix-cache", PREFIXES]
        with serving(ours(folder, *limits)) as server:
            asyncio.run(many_sessions(server, options.sessions, options.active, options.minutes, options.longest))


if __name__ == "__main__":
    main()
