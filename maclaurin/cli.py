"""The shell: which commands there are, and how they end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from maclaurin import __version__
from maclaurin.commands.lazy import BOTH_SPELLINGS, PLAIN, LazyGroup
from maclaurin.processes.exits import errors_as_sentences
from maclaurin.processes.stopping import raise_on_terminate
from maclaurin.processes.waiting import wait_asleep

# a command is the function of its name, in the module of its name
COMMANDS = {
    "mixers": "List the mixers: complexity, state size, crossover with softmax. With a name, explain one.",
    "doctor": "Print versions, devices, backends and what is missing, and check the arithmetic of this machine.",
    "train": "Train a language model: flags, or --config FILE.yaml with the same names; --resume continues a run.",
    "compare": "Train several mixers at an equal budget and print which one wins.",
    "generate": "Continue a text.",
    "serve": "Serve models over HTTP: OpenAI's API, sessions, metrics, and a page to try them.",
    "eval": "Score a model on a text: loss, perplexity, bits per byte.",
    "suite": "Train small models to see what mixers can do: recall, tracking, needles, the Arena.",
    "convert": "Make a trained softmax model linear: transfer, recover, evaluate.",
    "judge": "Judge a softmax model and its conversions side by side: text, answers, recall, decoding, a task. One page.",
    "export": "Write a model in the layout of a published checkpoint.",
    "lab": "Compute claims of the theory, beside the published numbers, and say which held.",
    "reproduce": "Make the tables of the papers again, beside the published numbers: does their order hold?",
    "report": "Write one HTML page about runs, suites, conversions and the lab.",
    "bench": "Measure speed and memory against PyTorch's attention and other peers.",
    "cache": "List the tokenised corpora on this disk, with their size and age; --clear and --limit remove them.",
    "consolidate": "Make one file of the weights that several processes have saved, each its part.",
    "run": "Run a Python script in which linear models of transformers take the kernels of this package.",
    "lm_eval": "Run the lm-evaluation-harness on models of this package.",
}

MEASURING = {"bench", "doctor"}  # on an idle machine, with threads as libraries have them


class Shell(LazyGroup):
    lines = COMMANDS

    @staticmethod
    def load(name: str) -> Callable[..., None] | typer.Typer:
        if name not in MEASURING:
            wait_asleep()
        made: Callable[..., None] | typer.Typer = getattr(import_module(f"maclaurin.commands.{name}"), name)
        return made


app = typer.Typer(cls=Shell, **PLAIN | {"add_completion": True}, context_settings=BOTH_SPELLINGS)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback(invoke_without_command=True)
def maclaurin(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Attention from linear to softmax, exact in every form."""
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)


def main(arguments: Sequence[str] | None = None) -> None:
    raise_on_terminate()
    with errors_as_sentences():
        try:
            code = app(arguments, prog_name="maclaurin", standalone_mode=False)
        except typer.TyperException as error:
            raise ValueError(_sentence(error)) from error
    raise SystemExit(code or 0)


def _sentence(error: typer.TyperException) -> str:
    """With the refused value, which typer's own message leaves out."""
    values: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    return error.format_message().rstrip(".") + (f", got {values[0]['input']!r:.80}" if values else "")


if __name__ == "__main__":
    main()
