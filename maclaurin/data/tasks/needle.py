"""Needles: something said once in a long text, asked for at its end.

These tasks are made of text, for any tokenizer (`prompts`), and of the bytes of that text for models trained here
(`sample`): tokens are the ids of `byte_tokenizer`, and at the byte before each byte of the answer that byte is asked
for. The texts of the prompts are the protocols' own: accuracies are comparable only if they are the same to the letter.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from maclaurin.common.arguments import at_least_one, one_of
from maclaurin.data.corpus import open_corpus
from maclaurin.data.tasks.base import NOT_ASKED, Batch, Task
from maclaurin.data.tasks.registry import register
from maclaurin.data.tasks.words import ADJECTIVES, NOUNS

REPEATED = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
SPLITS = ("train", "held-out")


@dataclass(frozen=True)
class Prompt:
    text: str
    answers: tuple[str, ...]
    depth: float  # of the first needle that is asked for: 0 is the beginning of the haystack, 1 its end

    def right(self) -> str:
        """A right continuation."""
        return ("" if self.text.endswith(" ") else " ") + ", ".join(self.answers)


class NeedleTask(Task[Batch]):
    """Prompts that end where the answer is asked for."""

    depth: float | None

    @abstractmethod
    def prompt(self, rng: np.random.Generator) -> Prompt: ...

    @property
    def vocab_size(self) -> int:
        return 257  # of `byte_tokenizer`

    @property
    def block(self) -> int:
        return 16

    def prompts(self, count: int, seed: int, start: int = 0) -> list[Prompt]:
        """The examples of `sample` as text."""
        at_least_one("count", count)
        blocks = range(start // self.block, (start + count - 1) // self.block + 1)
        generators = [np.random.default_rng((seed, block)) for block in blocks]
        found = [self.prompt(rng) for rng in generators for _ in range(self.block)]
        offset = start - blocks[0] * self.block
        return found[offset : offset + count]

    def draw(self, count: int, rng: np.random.Generator) -> Batch:
        prompts = [self.prompt(rng) for _ in range(count)]
        tokens_and_asked = [self.encode(prompt.text + prompt.right(), self.asked(prompt)) for prompt in prompts]
        tokens, asked = (torch.stack(parts) for parts in zip(*tokens_and_asked, strict=True))
        return Batch(tokens, tokens.masked_fill(~asked, NOT_ASKED).roll(-1, 1))  # each at the token before it

    def asked(self, prompt: Prompt) -> list[tuple[int, int]]:
        """From where to where `sample` asks for the text of a prompt and its answer: the answer."""
        right = prompt.right()
        end = len(prompt.text) + len(right)
        return [(end - len(right.lstrip()), end)]

    def encode(self, text: str, asked: Sequence[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokens of a text, and which of them are asked for."""
        tokens = torch.from_numpy(np.frombuffer(text.encode("ascii"), np.uint8).astype(np.int64))
        is_asked = torch.zeros_like(tokens, dtype=torch.bool)
        for start, stop in asked:
            is_asked[start:stop] = True
        return tokens, is_asked


@dataclass(frozen=True)
class Ruler(NeedleTask):
    """Needles of RULER (Hsieh et al., arXiv 2404.06654): `keys` keys with `values` values each, `queries` of them asked for.

    A needle is "One of the special magic numbers for KEY is: VALUE.", keys two words or a uuid, values seven digits or a
    uuid. The haystack is "repeat" (five short sentences), a corpus such as "stdlib" (RULER: essays) or "needle", needles
    with other keys. Needles stand behind sentences, at different ones of 40 even depths, or at `depth` where there is
    one. A prompt and its answer have `length` characters together. Answers are in the order of the queries, and those of
    one key in the order of the text; a continuation scores the share of answers that it contains.

    RULER's names: niah-single-1 … 3, niah-multikey-1 … 3, niah-multivalue, niah-multiquery. What differs: lengths are in
    characters instead of tokens of a tokenizer, haystacks start anywhere in the corpus, words are those of `words.py`.
    """

    length: int = 4096
    haystack: str = "stdlib"
    keys: int = 1
    values: int = 1
    queries: int = 1
    key_type: str = "words"
    value_type: str = "numbers"
    depth: float | None = None
    split: str = "train"

    def __post_init__(self) -> None:
        for name in ("length", "keys", "values", "queries"):
            at_least_one(name, getattr(self, name))
        if self.queries > self.keys:
            raise ValueError(f"queries must be at most keys ({self.keys}), got {self.queries}")
        if self.keys * self.values > 40:
            raise ValueError(f"keys · values must be at most 40, one needle per depth, got {self.keys * self.values}")
        one_of("key_type", self.key_type, ("words", "uuids"))
        one_of("value_type", self.value_type, ("numbers", "uuids"))
        one_of("split", self.split, SPLITS)
        check_depth(self.depth)
        if self.depth is not None and self.keys * self.values > 1:
            raise ValueError(f"depth must be None with more than one needle, got {self.depth}")
        shortest = self._shortest()
        if self.length < shortest:
            raise ValueError(
                f"length must be at least {shortest} characters for these needles and their question, got {self.length}"
            )

    def prompt(self, rng: np.random.Generator) -> Prompt:
        keys: list[str] = []
        while len(keys) < self.keys:
            if (key := _random(self.key_type, rng)) not in keys:
                keys.append(key)
        values = [[_random(self.value_type, rng) for _ in range(self.values)] for _ in keys]
        needles = [(key, value) for key, own in zip(keys, values, strict=True) for value in own]
        needles = [needles[i] for i in rng.permutation(len(needles))]
        asked = [keys[i] for i in rng.permutation(self.keys)[: self.queries]]
        answers = tuple(value for key in asked for owner, value in needles if owner == key)

        head, tail = self._question(asked)
        room = self.length - len(head) - len(tail) - len(" " + ", ".join(answers))
        context, first = self._context(needles, asked, room, rng)
        return Prompt(head + context + tail, answers, first)

    @staticmethod
    def score(output: str, prompt: Prompt) -> float:
        """The share of answers that the output contains."""
        return sum(answer.lower() in output.lower() for answer in prompt.answers) / len(prompt.answers)

    def _context(
        self, needles: Sequence[tuple[str, str]], asked: Sequence[str], room: int, rng: np.random.Generator
    ) -> tuple[str, float]:
        """`room` characters with the needles in them, and how deep the first one lies that is asked for."""
        sentences = [self._needle(*needle) for needle in needles]
        room -= sum(map(len, sentences))
        hay = (
            self._distractors(needles, room, rng)
            if self.haystack == "needle"
            else stretch(self.haystack, self.split, room, rng)
        )
        depths = np.sort(rng.choice(40, len(needles), replace=False)) / 39 if self.depth is None else np.array([self.depth])
        places = [sentence_end(hay, round(depth * len(hay))) for depth in depths]
        pieces = [hay[: places[0]]]
        for sentence, place, following in zip(sentences, places, [*places[1:], len(hay)], strict=True):
            pieces += [sentence, hay[place:following]]
        first = next(depth for depth, (key, _) in zip(depths, needles, strict=True) if key in asked)
        return "".join(pieces), float(first)

    def _distractors(self, needles: Sequence[tuple[str, str]], room: int, rng: np.random.Generator) -> str:
        taken = {key for key, _ in needles}
        lines: list[str] = []
        size = 0
        while size < room:
            key = _random(self.key_type, rng)
            if key not in taken:
                lines.append(self._needle(key, _random(self.value_type, rng)))
                size += len(lines[-1])
        return "".join(lines)[size - room :]  # the first line is cut, so that the text ends with a whole one

    def _needle(self, key: str, value: str) -> str:
        return f"One of the special magic {self.value_type} for {key} is: {value}.\n"

    def _question(self, asked: Sequence[str]) -> tuple[str, str]:
        query = asked[0] if len(asked) == 1 else ", ".join(asked[:-1]) + ", and " + asked[-1]
        one = self.queries * self.values == 1
        some, kind, are, what = (
            ("A", self.value_type[:-1], "is", "is") if one else ("Some", self.value_type, "are", "are all")
        )
        head = (
            f"{some} special magic {kind} {are} hidden within the following text. Make sure to memorize it. "
            f"I will quiz you about the {kind} afterwards.\n"
        )
        tail = (
            f"\nWhat {what} the special magic {kind} for {query} mentioned in the provided text? "
            f"The special magic {kind} for {query} mentioned in the provided text {are}"
        )
        return head, tail

    def _shortest(self) -> int:
        """Enough for the longest keys there are, and a little hay between the needles."""
        key = "x" * (36 if self.key_type == "uuids" else max(map(len, ADJECTIVES)) + max(map(len, NOUNS)) + 1)
        value = "x" * (36 if self.value_type == "uuids" else 7)
        needles = self.keys * self.values * (len(self._needle(key, value)) + 1)
        return needles + sum(map(len, self._question([key] * self.queries))) + self.queries * self.values * (len(value) + 2)


def stretch(haystack: str, split: str, length: int, rng: np.random.Generator) -> str:
    """`length` characters of hay: the repeated sentences, or text of a corpus from the beginning of one of its lines on."""
    if haystack == "repeat":
        return (REPEATED * (length // len(REPEATED) + 1))[:length]
    text = haystack_text(haystack, split)
    if len(text) < length:
        raise ValueError(f"haystack {haystack!r} has {len(text)} characters in its {split} part, not {length}: lower length")
    start = text.rfind("\n", 0, int(rng.integers(len(text) - length + 1))) + 1
    return text[start : start + length]


@lru_cache(maxsize=4)
def haystack_text(haystack: str, split: str) -> str:
    """A part of a corpus as one text of ASCII characters, so that a character is a byte."""
    return "\n".join(open_corpus(haystack).documents(split)).encode("ascii", "ignore").decode()


def sentence_end(text: str, place: int) -> int:
    """Where the last line, or sentence, that ends at or before `place` ends."""
    full_stop = text.rfind(". ", 0, place)
    return max(text.rfind("\n", 0, place) + 1, full_stop + 2 if full_stop >= 0 else 0)


def check_depth(depth: float | None) -> None:
    if depth is not None and not 0 <= depth <= 1:
        raise ValueError(
            f"depth must be from 0 (the beginning of the haystack) to 1 (its end), or None for any, got {depth}"
        )


def _random(kind: str, rng: np.random.Generator) -> str:
    if kind == "numbers":
        return str(rng.integers(10**6, 10**7))
    if kind == "words":
        return f"{ADJECTIVES[rng.integers(len(ADJECTIVES))]}-{NOUNS[rng.integers(len(NOUNS))]}"
    digits = rng.bytes(16).hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


for name, summary, preset in (
    ("niah-single-1", "RULER: a number in repeated sentences", {"haystack": "repeat"}),
    ("niah-single-2", "RULER: a number in a text", {}),
    ("niah-single-3", "RULER: a uuid in a text", {"value_type": "uuids"}),
    ("niah-multikey-1", "RULER: one of four numbers in a text", {"keys": 4}),
    ("niah-multikey-2", "RULER: one number among nothing but others", {"haystack": "needle"}),
    (
        "niah-multikey-3",
        "RULER: one uuid among nothing but others",
        {"haystack": "needle", "key_type": "uuids", "value_type": "uuids"},
    ),
    ("niah-multivalue", "RULER: four numbers of one key in a text", {"values": 4}),
    ("niah-multiquery", "RULER: four numbers of four keys in a text", {"keys": 4, "queries": 4}),
):
    register(name, Ruler, summary, **preset)
