"""Writes a task of the lm-evaluation-harness from any text: which of four passages goes on from this one?

    python scripts/continuation_task.py TEXT FOLDER
    maclaurin judge TEACHER MODEL --task continuation --task-folder FOLDER …

The passages are of validation documents, on which neither `maclaurin train` nor `maclaurin convert` trains. The three wrong
ones come from other documents.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from maclaurin.data import open_corpus
from maclaurin.data.corpus import sample

ITEMS, CHOICES, CONTEXT, PASSAGE = 60, 4, 240, 100  # the last two in characters

YAML = """\
task: continuation
dataset_path: json
dataset_kwargs:
  data_files: {{validation: {data}}}
output_type: multiple_choice
validation_split: validation
doc_to_text: "{{{{context}}}}"
doc_to_choice: choices
doc_to_target: answer
target_delimiter: ""
metric_list:
  - metric: acc
"""


def items(documents: list[str]) -> list[dict[str, object]]:
    rng = random.Random(0)
    pieces = []
    for text in rng.sample(documents, len(documents)):
        words = text[len(text) // 2 :].split()  # past the headings with which documents begin
        text = " ".join(words)
        if len(text) >= CONTEXT + PASSAGE:
            cut = text.rindex(" ", 0, CONTEXT)
            pieces.append((text[:cut], text[cut : cut + PASSAGE]))
    made = []
    for index, (context, passage) in enumerate(pieces[:ITEMS]):
        others = rng.sample([other for number, (_, other) in enumerate(pieces) if number != index], CHOICES - 1)
        answer = rng.randrange(CHOICES)
        choices = [*others[:answer], passage, *others[answer:]]
        made.append({"context": context, "choices": choices, "answer": answer})
    return made


if __name__ == "__main__":
    corpus, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "continuation.jsonl"
    found = items(list(sample(open_corpus(corpus), "held-out")))
    data.write_text("".join(json.dumps(item) + "\n" for item in found), encoding="utf-8")
    (folder / "continuation.yaml").write_text(YAML.format(data=data.resolve()), encoding="utf-8")
    print(f"{len(found)} items in {folder}")
