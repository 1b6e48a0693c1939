"""A conversion takes from a corpus without an end what its steps need, however far the cache is."""

from itertools import count

from maclaurin.convert import data
from maclaurin.data import byte_tokenizer, corpus, tokenise


class Endless(corpus.Corpus):
    name, streams = "songs", True

    def documents(self, split):
        yield from (f"There are {number} green bottles on the wall." for number in count())

    def fingerprint(self):
        return "songs"


def test_tokens_are_the_first_ones(tmp_path, monkeypatch):
    monkeypatch.setenv("MACLAURIN_CACHE", str(tmp_path))
    first = data._tokens(Endless(), "train", byte_tokenizer(), 1000)
    assert len(first) == first.ends[-1] == 1000
    tokenise(Endless(), "train", byte_tokenizer(), tokens=50_000)
    again = data._tokens(Endless(), "train", byte_tokenizer(), 1000)
    assert again.tokens.tolist() == first.tokens.tolist() and again.ends.tolist() == first.ends.tolist()


def test_sentences_are_those_of_a_sample(monkeypatch):
    monkeypatch.setattr(corpus, "SAMPLE", 4000)
    assert 80 < len(data.sentences(Endless(), "train")) < 120
    assert 3 < len(data.sentences(Endless(), "held-out")) < 10
