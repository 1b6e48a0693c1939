"""Every model on every part, each part stored as soon as it is done: run again, a judgement goes on where it stopped."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maclaurin.convert.sources import recognise
from maclaurin.judge.answers import answers, recall
from maclaurin.judge.decoding import decoding
from maclaurin.judge.result import FILE, Judged, Judgement
from maclaurin.judge.task import task_score
from maclaurin.judge.text import held_out_rows, on_text
from maclaurin.models.folder import open_model, tokenizer_in
from maclaurin.ops.products import with_faster_products
from maclaurin.processes.lock import locked


@dataclass(frozen=True)
class Question:
    """What is asked of the models. Empty lengths, 0 rows and no task leave a part out."""

    corpus: str
    rows: int
    length: int
    questions: Sequence[str]
    recall: Sequence[int]
    prompts: int
    contexts: Sequence[int]
    task: str = ""
    task_folder: str = ""

    @property
    def settings(self) -> dict[str, str]:
        return {
            "text": f"{self.rows} sequences of {self.length} tokens of {self.corpus}",
            "pass keys": f"{self.prompts} prompts of {', '.join(map(str, self.recall))} tokens",
            "contexts": ", ".join(map(str, self.contexts)),
            "task": self.task,
        }


def judge(teacher: str, folders: Sequence[str], asked: Question, output: Path, say: Callable[[str], None]) -> Judgement:
    """The first model is the teacher: the source of the others, as for a conversion."""
    source = recognise(teacher)
    names = _names([teacher, *folders])
    with locked(output / "run.lock", f"output {str(output)!r}"):
        judgement = _begun(output, asked, dict(zip(names, [teacher, *folders], strict=True)))
        tokenizer = tokenizer_in(source.path)
        models = dict(
            zip(names, [with_faster_products(source.load()), *(open_model(folder)[0] for folder in folders)], strict=True)
        )
        for part, find in _parts(asked, models, models[names[0]], tokenizer).items():
            missing = [name for name in names if getattr(judgement.models[name], part) is None]
            for name, found in find(missing):
                judged = dataclasses.replace(judgement.models[name], **{part: found})
                judgement = dataclasses.replace(judgement, models={**judgement.models, name: judged})
                judgement.save(output)
                say(f"{part}: {name}")
        return judgement


def _parts(asked: Question, models: dict[str, Any], teacher: Any, tokenizer: Any) -> dict[str, Callable[[list[str]], Any]]:
    """Each gives figures of the models whose names it gets, one after another or at once."""

    def text(names: list[str]) -> Any:
        if asked.rows and names:
            rows = held_out_rows(asked.corpus, tokenizer, asked.rows, asked.length)
            yield from on_text({name: models[name] for name in names}, teacher, rows).items()

    def answered(names: list[str]) -> Any:
        for name in names if asked.questions else []:
            yield name, answers(models[name], tokenizer, asked.questions)

    def recalled(names: list[str]) -> Any:
        for name in names if asked.recall else []:
            yield name, recall(models[name], tokenizer, asked.recall, asked.prompts)

    def decoded(names: list[str]) -> Any:
        if asked.contexts and names:  # times are compared with those of the same minutes
            yield from decoding(models, asked.contexts).items()

    def scored(names: list[str]) -> Any:
        for name in names if asked.task else []:
            yield name, task_score(models[name], tokenizer, asked.task, asked.task_folder)

    return {"text": text, "answers": answered, "decoding": decoded, "recall": recalled, "task": scored}


def _names(folders: Sequence[str]) -> list[str]:
    """The last part of every path that tells it from the others."""
    for parts in range(1, 1 + max(len(Path(folder).parts) for folder in folders)):
        names = ["/".join(Path(folder).parts[-parts:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    raise ValueError(f"models must differ, got {', '.join(folders)}")


def _begun(output: Path, asked: Question, folders: dict[str, str]) -> Judgement:
    """What is stored, with models that have joined; what was asked in another way is refused."""
    fresh = {name: Judged(folder) for name, folder in folders.items()}
    if not (output / FILE).exists():
        return Judgement(asked.settings, list(asked.questions), fresh)
    stored = Judgement.load(output)
    if dict(stored.settings) != asked.settings or list(stored.questions) != list(asked.questions):
        raise ValueError(f"{str(output)!r} holds a judgement with other settings: give another output")
    return dataclasses.replace(stored, models={name: stored.models.get(name, judged) for name, judged in fresh.items()})
