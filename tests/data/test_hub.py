"""Corpora, tokenizers and tasks of the hub: read as a stream, and one sentence where they cannot be had."""

import json

import pytest

from maclaurin.data import open_corpus, open_tokenizer
from maclaurin.data.tasks.stored import _rows
from tests.hub import serving, use


def jsonl(texts):
    return "\n".join(json.dumps({"text": text}) for text in texts)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """`songs` is one file; `poems` has a test part of its own."""
    songs, poems = tmp_path / "songs", tmp_path / "poems"
    songs.mkdir()
    poems.mkdir()
    (songs / "data.jsonl").write_text(jsonl(f"{number} green bottles" for number in range(200)))
    (poems / "train.jsonl").write_text(jsonl(["roses", "violets"]))
    (poems / "test.jsonl").write_text(jsonl(["sugar"]))
    with serving({"datasets/owner/songs": songs, "datasets/owner/poems": poems}) as hub:
        use(monkeypatch, hub.address, tmp_path / "cache")
        yield hub


def test_a_dataset_is_split_by_its_content_or_as_its_owner_did(hub):
    songs, poems = open_corpus("owner/songs"), open_corpus("owner/poems")
    train, held_out = (list(songs.documents(split)) for split in ("train", "held-out"))
    assert len(train) + len(held_out) == len({*train, *held_out}) == 200 and 1 <= len(held_out) <= 30
    assert [list(poems.documents(split)) for split in ("train", "held-out")] == [["roses", "violets"], ["sugar"]]
    assert songs.fingerprint() == open_corpus("owner/songs").fingerprint() != poems.fingerprint()


def one_sentence(ask, *, says):
    with pytest.raises(ValueError, match=says) as caught:
        ask()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ask", [lambda corpus: next(corpus.documents("train")), lambda corpus: corpus.fingerprint()])
def test_a_dataset_that_cannot_be_had_is_one_sentence(hub, ask):
    one_sentence(lambda: ask(open_corpus("owner/none")), says="^corpus 'owner/none' is unknown to the hub")
    one_sentence(lambda: ask(open_corpus("owner/gated")), says="^corpus 'owner/gated' is gated: ask for access")
    hub.stop()
    one_sentence(lambda: ask(open_corpus("owner/songs")), says="^corpus 'owner/songs' cannot be had .*Connection refused$")


def test_a_field_that_is_missing_is_one_sentence(hub):
    corpus = open_corpus("owner/songs", text_field="body")
    says = "^corpus 'owner/songs' has a row without text in the field 'body'; its fields are text$"
    one_sentence(lambda: next(corpus.documents("train")), says=says)


def test_so_are_a_tokenizer_and_a_task_that_cannot_be_had(hub):
    one_sentence(lambda: open_tokenizer("owner/none"), says="^tokenizer 'owner/none' cannot be had from the hub: ")
    one_sentence(
        lambda: next(_rows("owner/none", "train", ("label",))), says="^source 'owner/none' cannot be had from the hub: "
    )
