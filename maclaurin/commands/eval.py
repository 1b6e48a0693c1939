"""`maclaurin eval`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer

from maclaurin.commands.output import Json, print_json

OF_A_SUITE = typer.Option(hidden=True)  # for one release: `eval --suite NAME` is now `suite NAME`


def eval(
    model: Annotated[str | None, typer.Argument(help="Folder of a trained model.")] = None,
    text: Annotated[
        str | None,
        typer.Argument(
            help="A file or folder, - for standard input, or a corpus, of which the validation part is used; "
            "by default the corpus of its training."
        ),
    ] = None,
    text_field: Annotated[str | None, typer.Option(help="Field of the text in .jsonl and .parquet.")] = None,
    context: Annotated[int, typer.Option(help="Tokens of context per prediction at most; 0 for the training length.")] = 0,
    as_json: Json = False,
    suite: Annotated[str | None, OF_A_SUITE] = None,
    preset: Annotated[str, OF_A_SUITE] = "quick",
    mixers: Annotated[str | None, OF_A_SUITE] = None,
    seeds: Annotated[int | None, OF_A_SUITE] = None,
    steps: Annotated[int | None, OF_A_SUITE] = None,
    learning_rates: Annotated[str | None, OF_A_SUITE] = None,
    data: Annotated[Path | None, OF_A_SUITE] = None,
    jobs: Annotated[int | None, OF_A_SUITE] = None,
    output: Annotated[Path | None, OF_A_SUITE] = None,
) -> None:
    """Score a model on a text: loss, perplexity, bits per byte."""
    if suite is not None:
        from maclaurin.commands.suite import suite as run

        new = f"maclaurin suite {suite}" + (f" --model {model}" if model else "")
        print(f"maclaurin: `eval --suite {suite}` will go with the next release, use `{new}`", file=sys.stderr)
        run(suite, preset, mixers, seeds, steps, learning_rates, data, model, jobs, output, as_json=as_json)
        return
    if model is None:
        raise ValueError("give the folder of a trained model; what mixers can learn is `maclaurin suite NAME`")
    _score(model, text, text_field, context, as_json=as_json)


def _score(model: str, text: str | None, text_field: str | None, context: int, *, as_json: bool) -> None:
    from maclaurin.common.progress import counted
    from maclaurin.evals import score_text
    from maclaurin.evals.text import documents_of
    from maclaurin.models.folder import open_model

    opened, tokenizer = open_model(model)
    texts = iter([sys.stdin.read()]) if text == "-" else documents_of(model, text, text_field)
    score = score_text(
        opened, tokenizer, counted(texts, "scoring", "documents"), context=context or opened.config.max_position_embeddings
    )
    scored = _scored(model, text)
    if as_json:
        print_json({"text": scored, **dataclasses.asdict(score)})
        return
    print(f"scored: {scored}")
    print(
        f"loss {score.loss:.4f} nats per token, perplexity {score.perplexity:.4g}, {score.bits_per_byte:.4f} bits per byte "
        f"({score.tokens:,} tokens, {score.bytes:,} bytes, {score.documents:,} documents)"
    )


def _scored(model: str, text: str | None) -> str:
    """Which text that was."""
    from maclaurin.training.recipe import Recipe

    if text == "-":
        return "standard input"
    if text is not None:
        return _part(text)
    recipe = Recipe.load(Path(model))
    if recipe.validation:
        return f"{_part(recipe.validation)}, the validation corpus of its training"
    return f"the validation part of {recipe.corpus}, the corpus of its training"


def _part(text: str) -> str:
    from maclaurin.data.corpus import open_corpus, validation_split

    return f"{'all' if validation_split(open_corpus(text)) == 'all' else 'the validation part'} of {text}"
