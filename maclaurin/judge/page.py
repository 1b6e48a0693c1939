"""A judgement as one page: a row per model, then decoding by context, recall by length, and the answers side by side."""

from __future__ import annotations

from collections.abc import Callable

from maclaurin.common.sizes import size_text
from maclaurin.judge.result import Decoding, Judged, Judgement
from maclaurin.page import figures
from maclaurin.page.figures import PALETTE, SYMBOLS, Line, Style
from maclaurin.page.html import Cell, Chart, Code, Column, DataTable, Page, Section

MODEL = Column("model", numeric=False)


def page(judgement: Judgement, command: str) -> Page:
    sections = [Section("On text", "", [_text(judgement)])]
    if any(judged.decoding for judged in judgement.models.values()):
        sections.append(Section("Decoding", _DECODING, _decoding(judgement)))
    if any(judged.recall for judged in judgement.models.values()):
        sections.append(Section("Recall", _RECALL, [_recall(judgement)]))
    if any(judged.answers for judged in judgement.models.values()):
        sections.append(Section("Answers", "Greedy, with the chat template of the tokenizer.", [_answers(judgement)]))
    settings = "\n".join(f"{name}: {value}" for name, value in judgement.settings.items() if value)
    sections.append(Section("How it was made", "", [Code("settings", settings), Code("command", command)]))
    return Page("Maclaurin: models judged side by side", headline(judgement), [], sections)


_DECODING = (
    "One more token after a context. The context is not computed: kept keys and values are repeated to its length, since "
    "neither time nor memory depends on them. Quartiles are below the medians."
)
_RECALL = "Pass keys found: four digits, said once in a long text at a depth that differs from prompt to prompt."


def headline(judgement: Judgement) -> str:
    """The closest model on text, and what it saves."""
    name, *others = judgement.models
    scored = [(other, judgement.models[other].text) for other in others]
    known = [(text.kl, other, text) for other, text in scored if text is not None]
    teacher = judgement.teacher.text
    if not known or teacher is None:
        return f"{name} and {len(others)} others"
    _, best, text = min(known)
    ratio = text.perplexity / teacher.perplexity
    return f"{best}: {ratio:.3f} times the perplexity of {name}, the same next token at {text.same_token:.1%} of tokens"


def _text(judgement: Judgement) -> DataTable:
    columns = [MODEL, *map(Column, ("perplexity", "times the teacher’s", "same next token", "KL", "task"))]
    teacher = judgement.teacher.text
    rows = []
    for name, judged in judgement.models.items():
        text, task = judged.text, judged.task
        cells = [Cell("")] * 4
        if text is not None and teacher is not None:
            ratio = text.perplexity / teacher.perplexity
            cells = [
                Cell(f"{text.perplexity:.3f}", text.perplexity),
                Cell(f"{ratio:.3f}", ratio),
                Cell(f"{text.same_token:.1%}", text.same_token),
                Cell(f"{text.kl:.4f}", text.kl),
            ]
        value = Cell("") if task is None else Cell(f"{task.value:.3f}", task.value, f"{task.metric} of {task.name}")
        rows.append([Cell(name), *cells, value])
    return DataTable("judged-text", columns, rows, "Text that no model was trained on here.")


def _decoding(judgement: Judgement) -> list[Chart | DataTable | Code]:
    def chart(key: str, title: str, unit: str, of: Callable[[Decoding], float]) -> Chart:
        lines = []
        for (name, judged), color, symbol in zip(judgement.models.items(), PALETTE, SYMBOLS, strict=False):
            steps = judged.decoding or []
            lines.append(
                Line(name, Style(color, symbol), [step.context for step in steps], [of(step) for step in steps], [], [])
            )
        return Chart(key, figures.against_length(lines, title, unit), title)

    contexts = sorted({step.context for judged in judgement.models.values() for step in judged.decoding or ()})
    columns = [MODEL, *(Column(f"{context:,}") for context in contexts)]
    rows = [[Cell(name), *_steps(judged, contexts)] for name, judged in judgement.models.items()]
    return [
        DataTable("judged-decoding", columns, rows, "Tokens per second by context, and the size of state or cache."),
        chart("judged-times", "time of one token", "s", lambda step: step.milliseconds / 1000),
    ]


def _steps(judged: Judged, contexts: list[int]) -> list[Cell]:
    found = {step.context: step for step in judged.decoding or ()}
    return [
        Cell(f"{1000 / step.milliseconds:.1f}", 1000 / step.milliseconds, size_text(step.state_bytes))
        if (step := found.get(context))
        else Cell("")
        for context in contexts
    ]


def _recall(judgement: Judgement) -> DataTable:
    lengths = sorted({one.tokens for judged in judgement.models.values() for one in judged.recall or ()})
    rows = []
    for name, judged in judgement.models.items():
        found = {one.tokens: one for one in judged.recall or ()}
        cells = [
            Cell(f"{one.right} of {one.prompts}", one.right / one.prompts) if (one := found.get(length)) else Cell("")
            for length in lengths
        ]
        rows.append([Cell(name), *cells])
    return DataTable("judged-recall", [MODEL, *(Column(f"{length:,} tokens") for length in lengths)], rows)


def _answers(judgement: Judgement) -> DataTable:
    columns = [Column("question", numeric=False), *(Column(name, numeric=False) for name in judgement.models)]
    rows = [
        [Cell(question), *(Cell(judged.answers[place] if judged.answers else "") for judged in judgement.models.values())]
        for place, question in enumerate(judgement.questions)
    ]
    return DataTable("judged-answers", columns, rows)
