"""`maclaurin judge`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from maclaurin.commands.output import Json, print_json, screen, typed
from maclaurin.training.conversion import whole_numbers


def judge(
    teacher: Annotated[str, typer.Argument(help="The softmax model: a folder, a name of the hub, or a GGUF file.")],
    models: Annotated[list[str], typer.Argument(help="Folders of its conversions.")],
    output: Annotated[Path, typer.Option(help="Folder of judgement.json and of the page.")],
    corpus: Annotated[str, typer.Option(help="Text as for `maclaurin train`; its validation part is read.")] = "stdlib",
    rows: Annotated[int, typer.Option(help="Sequences of that text; 0 for none.")] = 16,
    length: Annotated[int, typer.Option(help="Tokens of each.")] = 1024,
    questions: Annotated[
        Path | None, typer.Option(help="File with a question per line; twenty are built in. An empty file for none.")
    ] = None,
    recall: Annotated[str, typer.Option(help="Tokens of the prompts with a pass key; empty for none.")] = "2048,4096,8192",
    prompts: Annotated[int, typer.Option(help="Prompts of each length.")] = 10,
    contexts: Annotated[
        str, typer.Option(help="Tokens after which decoding is measured; empty for none.")
    ] = "1024,4096,8192,16384,32768",
    task: Annotated[str, typer.Option(help="A task of the lm-evaluation-harness.")] = "",
    task_folder: Annotated[str, typer.Option(help="Folder of tasks that the harness does not bring.")] = "",
    as_json: Json = False,
) -> None:
    """Judge a softmax model and its conversions side by side: text, answers, recall, decoding, a task. One page."""
    from maclaurin.judge.questions import QUESTIONS
    from maclaurin.judge.run import Question
    from maclaurin.judge.run import judge as judged
    from maclaurin.page import missing

    lines = QUESTIONS if questions is None else tuple(questions.read_text(encoding="utf-8").splitlines())
    asked = Question(
        corpus,
        rows,
        length,
        [line for line in lines if line.strip()],
        whole_numbers("recall", recall),
        prompts,
        whole_numbers("contexts", contexts),
        task,
        task_folder,
    )
    found = judged(teacher, models, asked, output, partial(print, file=sys.stderr))
    if as_json:
        print_json(found.to_json())
    else:
        table = Table(title="text that no model was trained on")
        for column in ("model", "perplexity", "same next token", "KL"):
            table.add_column(column, justify="left" if column == "model" else "right")
        for name, one in found.models.items():
            if one.text is not None:
                table.add_row(name, f"{one.text.perplexity:.3f}", f"{one.text.same_token:.1%}", f"{one.text.kl:.4f}")
        screen().print(table)
    if sentence := missing():
        print(f"no page: {sentence}", file=sys.stderr)
        return
    from maclaurin.judge.page import page

    page(found, typed()).write(output / "report.html")
    print(output / "report.html", file=sys.stderr if as_json else sys.stdout)
