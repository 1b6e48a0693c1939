"""`maclaurin serve`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def serve(
    models: Annotated[list[str], typer.Argument(help="Folders of models, or NAME=FOLDER; no others are served.")],
    host: Annotated[str, typer.Option(help="Address to listen at. One that other machines reach needs an --api-key.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="Port; 0 for any that is free.")] = 8000,
    api_key: Annotated[
        list[str] | None,
        typer.Option(envvar="MACLAURIN_API_KEY", help="A key that clients must send; several may be given."),
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes; they share the weights in memory.")] = 1,
    number: Annotated[int, typer.Option(help="Number of this server among those behind a balancer.")] = 0,
    state_folder: Annotated[
        Path | None, typer.Option(help="Where sessions are saved and prefixes kept; without it, in memory alone.")
    ] = None,
    max_active: Annotated[int, typer.Option(help="Sequences that run at a time.")] = 64,
    queue: Annotated[int, typer.Option(help="Requests that may wait; those beyond are told to come back (429).")] = 256,
    max_state: Annotated[str | None, typer.Option(help="What states of running sequences may take, such as 4GB.")] = None,
    state_dtype: Annotated[
        str, typer.Option(help="bfloat16 halves what a step reads of states of order 2, and of orders 0 to 2.")
    ] = "float32",
    prefix_cache: Annotated[str, typer.Option(help="Memory for states of prompts that come again.")] = "512MB",
    session_memory: Annotated[str, typer.Option(help="Memory for states of sessions.")] = "1GB",
    session_idle: Annotated[float, typer.Option(help="Seconds without a request after which a session ends.")] = 3600.0,
    max_prompt: Annotated[int, typer.Option(help="Tokens of a prompt, with what its session has.")] = 32768,
    max_new_tokens: Annotated[int, typer.Option(help="New tokens of a request.")] = 4096,
    max_body: Annotated[str, typer.Option(help="Size of a request.")] = "4MB",
    cors_origin: Annotated[list[str] | None, typer.Option(help="Origin of pages that may use this server.")] = None,
    threads: Annotated[int, typer.Option(help="Threads of each process; 0 for as many as there are cores.")] = 0,
) -> None:
    """Serve models over HTTP with OpenAI's API, sessions and a page to try them."""
    from maclaurin.common.arguments import at_least_one
    from maclaurin.common.cores import cores
    from maclaurin.common.sizes import size_bytes
    from maclaurin.serving.http.server import run, run_workers
    from maclaurin.serving.http.settings import Settings

    at_least_one("workers", workers)
    settings = Settings(
        host=host,
        port=port,
        keys=tuple(api_key or ()),
        origins=tuple(cors_origin or ()),
        number=number,
        folder=state_folder,
        max_active=max_active,
        queue=queue,
        max_bytes=None if max_state is None else size_bytes("--max-state", max_state),
        state_dtype=state_dtype,
        prefix_bytes=size_bytes("--prefix-cache", prefix_cache),
        session_bytes=size_bytes("--session-memory", session_memory),
        session_idle=session_idle,
        max_prompt=max_prompt,
        max_new=max_new_tokens,
        max_body=size_bytes("--max-body", max_body),
    )

    def ready(port: int) -> None:
        shown = f"[{host}]" if ":" in host else host
        print(f"http://{shown}:{port}", flush=True)
        print(f"{', '.join(models)}; API at /v1, metrics at /metrics; Ctrl-C ends it", file=sys.stderr)

    threads = threads or max(1, cores() // workers)
    if workers == 1:
        run(models, settings, threads, ready)
    else:
        run_workers(workers, models, settings, threads, ready)
