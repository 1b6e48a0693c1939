"""Needles: where they should be, once, and the only answer to the question."""

import re

import numpy as np
import pytest

from maclaurin.data import byte_tokenizer
from maclaurin.data.tasks import Passkey, Ruler, available_tasks, task
from maclaurin.data.tasks.needle import REPEATED, sentence_end
from maclaurin.data.tasks.passkey import WORDS

NEEDLE = re.compile(r"One of the special magic (\w+) for (\S+) is: (\S+)\.\n")


@pytest.mark.parametrize("name", [*available_tasks("niah-*"), "passkey"])
def test_bytes_are_those_of_the_prompt_and_its_answer(name):
    one = task(name, length=1400)
    batch, prompts = one.sample(20, seed=3, start=5), one.prompts(20, seed=3, start=5)
    tokenizer = byte_tokenizer()
    assert len(tokenizer) == one.vocab_size
    for tokens, targets, prompt in zip(batch.tokens.tolist(), batch.targets.tolist(), prompts, strict=True):
        assert tokenizer.decode(tokens) == prompt.text + prompt.right()
        asked = [t for t, target in enumerate(targets) if target != -100]
        assert bytes(targets[t] for t in asked).decode() == ", ".join(prompt.answers)
        assert asked == list(range(len(tokens) - len(asked) - 1, len(tokens) - 1))
        assert all(targets[t] == tokens[t + 1] for t in asked)
        assert one.score(prompt.right(), prompt) == 1 and one.score(" 12", prompt) == 0


def test_a_pass_key_a_word_is_the_same_prompt():
    one = Passkey(200, token="word")
    names = {number: word for word, number in WORDS.items()} | {0: "ye"}  # 200 characters end within "yellow"
    batch, prompts = one.sample(20, seed=3), Passkey(200).prompts(20, seed=3)
    assert one.vocab_size == len(WORDS) + 1 and batch.tokens.shape[1] < len(prompts[0].text) / 3
    for tokens, targets, prompt in zip(batch.tokens.tolist(), batch.targets.tolist(), prompts, strict=True):
        assert "".join(names[token] for token in tokens) == (prompt.text + prompt.right()).replace(" ", "")
        asked = [t for t, target in enumerate(targets) if target != -100]
        assert asked == list(range(len(tokens) - 5, len(tokens) - 1))
        assert "".join(names[targets[t]] for t in asked) == prompt.answers[0]
    with pytest.raises(ValueError, match="token='word' knows the words of haystack='repeat' only, got haystack='stdlib'"):
        Passkey(200, haystack="stdlib", token="word")


@pytest.mark.parametrize("token", ["byte", "word"])
def test_every_mention_asks_for_the_key_where_the_needle_repeats_it(token):
    once, twice = (Passkey(100, token=token, every_mention=every).sample(20, seed=3) for every in (False, True))
    assert once.tokens.equal(twice.tokens)
    for tokens, targets, more in zip(once.tokens, once.targets, twice.targets, strict=True):
        key = targets[targets != -100].tolist()
        assert more[more != -100].tolist() == 2 * key
        first, second = (more != -100).nonzero().flatten().split(4)
        assert tokens[first + 1].tolist() == key and second.equal((targets != -100).nonzero().flatten())
        before = "".join(map(chr, tokens[: first[0] + 1].tolist()))
        assert token == "word" or before.endswith(f"is {''.join(map(chr, key))}. Remember it. ")


def needles(text):
    return [(match[2], match[3], match.start()) for match in NEEDLE.finditer(text)]


@pytest.mark.parametrize("name", available_tasks("niah-*"))
def test_the_question_has_one_answer(name):
    one = task(name, length=3000)
    for prompt in one.prompts(30, seed=0):
        context, question = prompt.text.rsplit("\nWhat ", 1)
        assert len(prompt.text + prompt.right()) == 3000
        found = needles(context)
        asked = re.findall(r"[\w-]+-[\w-]+", question.split(" mentioned")[0])
        assert len(set(asked)) == one.queries and len(prompt.answers) == one.queries * one.values
        assert prompt.answers == tuple(value for key in asked for owner, value, _ in found if owner == key)
        if one.haystack == "needle":
            assert len(found) > 10
        else:
            assert len(found) == one.keys * one.values
        kind = "number" if one.value_type == "numbers" else "uuid"
        assert question.startswith(
            f"is the special magic {kind} for" if len(prompt.answers) == 1 else f"are all the special magic {kind}s for"
        )


@pytest.mark.parametrize("haystack", ["repeat", "stdlib"])
@pytest.mark.parametrize("depth", [0.0, 0.3, 1.0])
def test_a_needle_lies_at_its_depth(haystack, depth):
    for prompt in Ruler(6000, haystack, depth=depth).prompts(10, seed=0):
        ((_, _, place),) = needles(prompt.text)
        begin, end = prompt.text.index("\n") + 1, prompt.text.rindex("\nWhat ")
        assert abs((place - begin) / (end - begin) - depth) < 0.1
        assert prompt.depth == depth
        assert place == begin or prompt.text[place - 1] == "\n" or prompt.text[place - 2 : place] == ". "


def test_all_depths_and_digits_are_drawn():
    prompts = Ruler(1000, "repeat").prompts(2000, seed=0)
    counts = np.bincount([round(prompt.depth * 39) for prompt in prompts], minlength=40)
    assert ((counts - 50) ** 2 / 50).sum() < 39 + 4 * np.sqrt(78)
    assert {len(prompt.answers[0]) for prompt in prompts} == {7}
    assert {round(prompt.depth * 20) for prompt in Passkey(300).prompts(1000, seed=0)} == set(range(21))


@pytest.mark.parametrize("haystack", ["repeat", "stdlib"])
@pytest.mark.parametrize("depth", [0.0, 0.5, 1.0])
def test_the_pass_key_of_the_thesis(haystack, depth):
    for prompt in Passkey(1024, depth, haystack).prompts(8, seed=0):
        (key,) = prompt.answers
        assert re.fullmatch(r"[1-9]\d{3}", key)
        needle = f"The pass key is {key}. Remember it. {key} is the pass key. "
        head, context = prompt.text[:150].rsplit("there. ", 1)[0], prompt.text.split("information there. ", 1)[1]
        assert head.startswith("There is an important info hidden inside a lot of irrelevant text.")
        context, question = context.rsplit(" \n\n", 1)
        assert question == "What is the pass key? The pass key is "
        assert context.count(needle) == 1 and len(context) == 1024 + len(needle)
        place = context.index(needle)
        assert place <= depth * 1024 and depth * 1024 - place < 120
        if haystack == "repeat":
            assert (REPEATED * 20).startswith(context.replace(needle, ""))


def test_scores_are_those_of_the_protocols():
    (prompt,) = Passkey(100).prompts(1, seed=0)
    (key,) = prompt.answers
    assert Passkey.score(f"{key}. Remember", prompt) == 1
    assert (
        Passkey.score(f"{key}1", prompt) == 0 and Passkey.score(f"it {key}", prompt) == 0 and Passkey.score("", prompt) == 0
    )
    (prompt,) = task("niah-multivalue").prompts(1, seed=0)
    assert Ruler.score(f"they are {prompt.answers[2]} and {prompt.answers[0]}", prompt) == 0.5


def test_splits_are_different_texts_and_a_short_corpus_says_so(tmp_path):
    train, held_out = (Ruler(2000, "stdlib", split=split).prompts(1, seed=0)[0].text for split in ("train", "held-out"))
    assert train != held_out
    (tmp_path / "short.txt").write_text("one line\n" * 100)
    with pytest.raises(ValueError, match="characters in its train part, not"):
        Passkey(4000, haystack=str(tmp_path / "short.txt")).sample(1, seed=0)
    assert Passkey(100, haystack=str(tmp_path / "short.txt")).sample(1, seed=0).tokens.shape[0] == 1


@pytest.mark.parametrize(("place", "expected"), [(0, 0), (3, 0), (4, 4), (8, 4), (9, 9), (12, 9)])
def test_a_sentence_ends_at_a_line_or_a_full_stop(place, expected):
    assert sentence_end("ab. cdef\nghi", place) == expected
