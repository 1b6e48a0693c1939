"""`maclaurin mixers`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from maclaurin.commands.output import Json, print_json, screen

LENGTHS = (1024, 8192, 65536)
CONTEXTS = (1024, 4096)  # at which the cost per token is counted


def mixers(
    name: Annotated[
        str | None,
        typer.Argument(help="Only this mixer, a pattern such as '*mamba*', or a row of the thesis such as paper-2/2Mamba."),
    ] = None,
    d_model: Annotated[int, typer.Option(help="Width of the model.")] = 1024,
    num_heads: Annotated[int, typer.Option(help="Number of heads.")] = 16,
    as_json: Json = False,
) -> None:
    """List the mixers: complexity, state size at 1k, 8k and 64k tokens, crossover with softmax. With a name, explain one."""
    from maclaurin.mixers.overview import explanation, overview

    facts = overview(name or "*", d_model, num_heads, LENGTHS)
    if name == facts[0]["name"]:
        facts[0] |= explanation(facts[0]["name"], d_model, num_heads, CONTEXTS)
    if as_json:
        print_json(facts)
        return
    console = screen()
    console.print(_table(facts, f"Mixers at d_model {d_model}, {num_heads} heads"))
    console.print("1k, 8k, 64k: the state of one layer and sequence after so many tokens, float32")
    console.print("crossover: from this many tokens on the state is no larger than softmax's KV cache\n")
    for row in facts:
        _print_one(row, console)


def _table(facts: Sequence[dict[str, Any]], title: str) -> Table:
    from maclaurin.common.sizes import size_text

    table = Table(title=title, box=None, padding=(0, 1, 0, 0))  # fits into 80 columns with whole names
    for column in ("mixer", "training", "decoding"):
        table.add_column(column, no_wrap=True)
    for column in (*(f"{length // 1024}k" for length in LENGTHS), "crossover"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in facts:
        sizes = (size_text(nbytes) for nbytes in row["state_nbytes"].values())
        crossover = "never" if row["crossover"] is None else str(row["crossover"])
        table.add_row(row["name"], row["training"], row["decoding"], *sizes, crossover)
    return table


def _print_one(row: dict[str, Any], console: Console) -> None:
    console.print(f"[bold]{row['name']}[/bold]  {row['citation']}")
    options = ", ".join(f"{option}={value!r}" for option, value in row["options"].items())
    for title, text in (("", f"{row['summary']}\n{options}"), *(_explained(row) if "maths" in row else ())):
        if title:
            console.print(f"\n[bold]{title}[/bold]")
        console.print(Padding(Text(text), (0, 0, 0, 4)))


def _explained(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The sections about one mixer."""
    yield "what its options mean", row["help"]
    yield "maths", row["maths"]
    shapes = (f"{tensor} {' x '.join(map(str, shape)) or '1'}" for tensor, shape in row["state"].items())
    yield f"state after {CONTEXTS[-1]} tokens", "\n".join(shapes)
    lines = (
        f"{int(context):,} tokens: {cost['training']:,} training (forward), {cost['decoding']:,} decoding"
        for context, cost in row["multiply_adds"].items()
    )
    yield "multiply-adds per token, in matrix products", "\n".join(lines)
    both = "can" if row["bidirectional"] else "cannot"
    yield "parameters", f"{row['parameters']:,}; it {both} see whole sequences (causal=False)"
