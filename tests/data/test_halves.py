"""Validation and test: every held-out document in one of them, whatever else the corpus has."""

import pytest

from maclaurin.data.corpus import open_corpus
from maclaurin.data.halves import Halves


def write(path, count):
    path.mkdir()
    for place in range(count):
        (path / f"{place:03}.txt").write_text(f"document {place}, of {place * 7} words\n")
    return open_corpus(str(path))


def test_the_halves_share_no_document_and_are_the_held_out_ones(tmp_path):
    corpus = write(tmp_path / "many", 400)
    halves = Halves(corpus, "held-out")
    validation, test = (list(halves.documents(name)) for name in ("validation", "test"))
    assert validation and test and not set(validation) & set(test)
    assert sorted(validation + test) == sorted(corpus.documents("held-out"))
    assert not set(validation + test) & set(corpus.documents("train"))


def test_a_document_stays_in_its_half_when_others_come(tmp_path):
    few, many = (Halves(write(tmp_path / str(count), count), "all") for count in (40, 80))
    assert set(few.documents("test")) < set(many.documents("test"))


def test_a_single_document_is_cut_in_the_middle(tmp_path):
    (tmp_path / "one.txt").write_text("abcdefgh")
    halves = Halves(open_corpus(str(tmp_path / "one.txt")), "all")
    assert [list(halves.documents(name)) for name in ("validation", "test")] == [["abcd"], ["efgh"]]


def test_halves_of_other_splits_have_another_fingerprint(tmp_path):
    corpus = write(tmp_path / "some", 20)
    assert Halves(corpus, "all").fingerprint() != Halves(corpus, "held-out").fingerprint() != corpus.fingerprint()
    with pytest.raises(ValueError, match="split"):
        list(Halves(corpus, "all").documents("train"))
