"""The pass key: four digits said once in a long text, asked for at its end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from maclaurin.common.arguments import at_least_one, one_of
from maclaurin.data.tasks.needle import REPEATED, SPLITS, NeedleTask, Prompt, check_depth, sentence_end, stretch
from maclaurin.data.tasks.registry import register

HEAD = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I will quiz you about the important information there. "
)
NEEDLE = "The pass key is {key}. Remember it. {key} is the pass key. "
TAIL = " \n\nWhat is the pass key? The pass key is "

PIECE = re.compile(r"\d|[A-Za-z]+|[^A-Za-z\d ]")  # a digit, a word or a mark
WORDS = {
    word: number
    for number, word in enumerate(
        sorted(set(PIECE.findall(HEAD + NEEDLE.format(key="0123456789") + TAIL + REPEATED))), start=1
    )
}


@dataclass(frozen=True)
class Passkey(NeedleTask):
    """The pass key of the thesis (Mongaras and Larson, arXiv 2602.17363; data: nanotron's simple needle in a haystack).

    A sentence that announces the quiz, `length` characters of haystack with the needle "The pass key is 1234. Remember
    it. 1234 is the pass key. " behind the last sentence that ends before `depth`, and "What is the pass key? The pass
    key is ". The haystack is five short sentences repeated, or, with "stdlib" or any corpus, a stretch of its text from
    `split`. Depth None draws one of 0, 0.05, …, 1. Published: lengths 1024, 2048, 4096, 8192 and 16384; greedy decoding,
    right if the digits of the first word are the key's. With every_mention `sample` asks for the key where the needle
    repeats it, too: a model that is trained on nothing but such prompts then learns to copy over a short distance first.
    With token="word" it has one token per word, digit or mark instead of one per byte, four times fewer: the same prompts,
    for models that are trained in a minute. A last word that the end of the haystack cuts is token 0.

    What differs: the published haystack repeats short sentences too, but which was not seen, and those here are RULER's;
    keys are always four digits (published: 1 to 10000); the needle stands between two sentences
    (published: in front of a full stop) and, at depth 1, behind the haystack instead of over its end, so that lengths do
    not vary.
    """

    length: int = 1024
    depth: float | None = None
    haystack: str = "repeat"
    split: str = "train"
    every_mention: bool = False
    token: str = "byte"

    def __post_init__(self) -> None:
        at_least_one("length", self.length)
        check_depth(self.depth)
        one_of("split", self.split, SPLITS)
        one_of("token", self.token, ("byte", "word"))
        if self.token == "word" and self.haystack != "repeat":
            raise ValueError(f"token='word' knows the words of haystack='repeat' only, got haystack={self.haystack!r}")

    @property
    def vocab_size(self) -> int:
        return super().vocab_size if self.token == "byte" else 1 + len(WORDS)

    def prompt(self, rng: np.random.Generator) -> Prompt:
        key = str(rng.integers(1000, 10000))
        depth = rng.integers(21) / 20 if self.depth is None else self.depth
        needle = NEEDLE.format(key=key)
        context = stretch(self.haystack, self.split, self.length, rng)
        place = sentence_end(context, round(depth * self.length))
        return Prompt(f"{HEAD}{context[:place]}{needle}{context[place:]}{TAIL}", (key,), depth)

    def asked(self, prompt: Prompt) -> list[tuple[int, int]]:
        answer = super().asked(prompt)
        if not self.every_mention:
            return answer
        (key,) = prompt.answers
        start = prompt.text.index(f"Remember it. {key}") + len("Remember it. ")
        return [(start, start + len(key)), *answer]

    def encode(self, text: str, asked: Sequence[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        if self.token == "byte":
            return super().encode(text, asked)
        found = list(PIECE.finditer(text))
        is_asked = [any(start <= piece.start() < stop for start, stop in asked) for piece in found]
        tokens = torch.tensor([WORDS.get(piece[0], 0) for piece in found], dtype=torch.long, device="cpu")
        return tokens, torch.tensor(is_asked, dtype=torch.bool, device="cpu")

    @staticmethod
    def score(output: str, prompt: Prompt) -> float:
        """1 if the digits of the first word are the key."""
        first_word = output.strip().split(" ")[0]
        return float(re.sub(r"\D", "", first_word) == prompt.answers[0])


register("passkey", Passkey, "four digits said in a long text, in the protocol of arXiv 2602.17363")
