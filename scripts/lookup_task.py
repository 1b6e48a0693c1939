"""Writes a task of the lm-evaluation-harness from any text: how did a sentence go on that was read some hundred tokens ago?

    python scripts/lookup_task.py TEXT FOLDER
    maclaurin judge TEACHER MODEL --task lookup --task-folder FOLDER …

An item is a piece of a document and the first words of a sentence in its first half. The four choices are how that sentence
goes on and how three other sentences of the same piece do, so that only who can look up the sentence knows. The documents
are of validation, on which neither `maclaurin train` nor `maclaurin convert` trains.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import sys
from pathlib import Path

from maclaurin.data import open_corpus
from maclaurin.data.corpus import sample

CHOICES = 4
EACH = 8  # items of every length
LENGTHS = (1200, 2400, 4800)  # of a piece in characters
BEGINNING, REST = 50, 50  # of a sentence, in characters at least
SENTENCE_ENDS = re.compile(r"(?<=[.!?]) ")

YAML = """\
task: lookup
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


def item(text: str, length: int, rng: random.Random) -> dict[str, object] | None:
    """None where the text has not enough sentences."""
    words = " ".join(text.split())
    piece = words[len(words) // 4 :][:length]  # past the headings with which documents begin
    parts = [_split(sentence) for sentence in SENTENCE_ENDS.split(piece)[1:-1]]
    sentences = [(begin, rest) for begin, rest in parts if rest and piece.count(begin) == 1]
    early = [sentence for sentence in sentences if piece.index(sentence[0]) < length // 2]
    rests = sorted({rest for _, rest in sentences})
    if len(piece) < length or not early or len(rests) < CHOICES:
        return None
    begin, right = rng.choice(early)
    choices = rng.sample([rest for rest in rests if rest != right], CHOICES - 1)
    answer = rng.randrange(CHOICES)
    choices.insert(answer, right)
    return {"context": f"{piece}\n\nAs was said above: {begin}", "choices": choices, "answer": answer}


def _split(sentence: str) -> tuple[str, str]:
    """Its first words, and as many characters after them; nothing after them where it is short."""
    cut = sentence.find(" ", BEGINNING)
    rest = sentence[cut : cut + REST] if cut > 0 else ""
    return sentence[:cut], rest if len(rest) == REST else ""


def items(documents: list[str]) -> list[dict[str, object]]:
    rng = random.Random(0)
    shuffled = iter(rng.sample(documents, len(documents)))
    made: list[dict[str, object]] = []
    for length in LENGTHS:
        found = (one for text in shuffled if (one := item(text, length, rng)) is not None)
        made += itertools.islice(found, EACH)
    return made


if __name__ == "__main__":
    corpus, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "lookup.jsonl"
    found = items(list(sample(open_corpus(corpus), "held-out")))
    data.write_text("".join(json.dumps(one) + "\n" for one in found), encoding="utf-8")
    (folder / "lookup.yaml").write_text(YAML.format(data=data.resolve()), encoding="utf-8")
    print(f"{len(found)} items in {folder}")
