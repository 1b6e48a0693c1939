"""`maclaurin generate`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer

from maclaurin.commands.output import Json, print_json


def generate(
    model: Annotated[str, typer.Argument(help="Folder of a trained model, or its owner/name on the hub.")],
    prompt: Annotated[str | None, typer.Option(help="Text to continue.")] = None,
    file: Annotated[Path | None, typer.Option(help="File with the text to continue; by default standard input.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="New tokens at most.")] = 200,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; 0 for the likeliest token.")] = 0.8,
    top_k: Annotated[int, typer.Option(help="Sample from this many of the likeliest tokens; 0 for all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Sample from the likeliest tokens with this total probability.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Sample from tokens at least this much as likely as the likeliest.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1, tokens that were there become less likely.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of sampling.")] = 0,
    int8_weights: Annotated[bool, typer.Option("--int8-weights", help="Linear layers in int8, on a CPU.")] = False,
    state_dtype: Annotated[str, typer.Option(help="bfloat16 halves what a step reads of a state of order 2.")] = "float32",
    as_json: Json = False,
) -> None:
    """Continue a text: streams it, then prints the speed and the size of the state."""
    from maclaurin.common.sizes import size_text
    from maclaurin.models.folder import open_model
    from maclaurin.models.generation import continue_text
    from maclaurin.models.lighter import lighter

    if prompt is not None and file is not None:
        raise ValueError("give --prompt or --file, not both")
    text = _text_of(file) if prompt is None else prompt
    opened, tokenizer = open_model(model)
    opened = lighter(opened, int8_weights=int8_weights, state_dtype=state_dtype)
    if not as_json:
        _write(text)
    result = continue_text(
        opened,
        tokenizer,
        text,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        write=None if as_json else _write,
    )
    if as_json:
        print_json(dataclasses.asdict(result))
        return
    print()
    speed = "" if result.tokens_per_second is None else f" at {result.tokens_per_second:,.0f} tokens/s"
    print(
        f"{result.prompt_tokens} tokens read in {result.prefill_seconds:.2f} s, {result.new_tokens} written{speed}, "
        f"state {size_text(result.state_bytes)}",
        file=sys.stderr,
    )


def _text_of(file: Path | None) -> str:
    if file is not None:
        return file.read_text(encoding="utf-8")
    if sys.stdin.isatty():
        raise ValueError("give a text to continue: --prompt TEXT, --file FILE, or on standard input")
    return sys.stdin.read()


def _write(text: str) -> None:
    print(text, end="", flush=True)
