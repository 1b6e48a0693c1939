"""Corpora without an end: tokens as far as they are needed, in an order that nothing but the seed decides."""

import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from maclaurin.data import DocumentRows, PackedRows, StreamedRows, byte_tokenizer, open_corpus, streams, tokenise
from maclaurin.data.corpus import Corpus
from maclaurin.data.entry import PROGRESS
from maclaurin.data.partial_entry import RECORD
from maclaurin.data.tokens import growing

KINDS = pytest.mark.parametrize("kind", [PackedRows, DocumentRows])
TEXT = "".join(f"{number} green bottles\n" for number in range(50))


class Endless(Corpus):
    """Number after number, up to `last` if there is one."""

    name, streams = "numbers", True

    def __init__(self, last=None):
        self.last, self.read = last, 0

    def documents(self, split):
        for number in count() if self.last is None else range(self.last):
            self.read += 1
            yield f"{number} is number {number}"

    def fingerprint(self):
        return f"numbers up to {self.last}"


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Pieces and blocks small enough for many of them."""
    monkeypatch.setattr("maclaurin.data.partial_entry.FIRST_PIECE", 64)
    monkeypatch.setattr("maclaurin.data.partial_entry.LARGEST_PIECE", 256)
    monkeypatch.setattr(streams, "FIRST_BLOCK", 4)
    monkeypatch.setattr(streams, "LARGEST_BLOCK", 16)


def entry(cache, corpus):
    return growing(corpus, "train", byte_tokenizer(), cache)


def rows(cache, corpus, kind=PackedRows, *, number=100, **fields):
    return StreamedRows(entry(cache, corpus), kind, 16, **{"count": number, "seed": 0, **fields})


def ids(item):
    return (item if isinstance(item, torch.Tensor) else item["input_ids"]).tolist()


def seen(sequences):
    return [ids(sequences[index]) for index in range(len(sequences))]


def whole(cache, last):
    return tokenise(Endless(last), "train", byte_tokenizer(), cache)


def test_only_what_is_needed_is_read(tmp_path):
    corpus = Endless()
    file = tokenise(corpus, "train", byte_tokenizer(), tmp_path, tokens=1000)
    assert 1000 <= len(file) < 1500 and corpus.read < 80
    assert file.tokens[: file.ends[0]].tolist() == [*b"0 is number 0", 256]
    first = rows(tmp_path, Endless())[0]
    assert len(first["input_ids"]) == 16


def test_a_grown_entry_ends_as_one_that_was_written_at_once(tmp_path):
    part = entry(tmp_path / "grown", Endless(90))
    while not part.ended:
        wanted = len(part.file) + 100
        part.grow(lambda file: len(file) >= wanted)  # noqa: B023
    whole(tmp_path / "at once", 90)
    contents = [
        {path.relative_to(cache).as_posix(): path.read_bytes() for path in cache.glob("numbers*/*")}
        for cache in (tmp_path / "grown", tmp_path / "at once")
    ]
    assert contents[0] == contents[1] and len(contents[0]) == 3


def test_what_exists_is_not_read_again(tmp_path):
    entry(tmp_path, Endless()).grow(lambda file: len(file) >= 1000)
    corpus = Endless()
    tokenise(corpus, "train", byte_tokenizer(), tmp_path, tokens=1000)
    assert corpus.read == 0


@KINDS
def test_blocks_are_shuffled_and_nothing_is_lost_or_doubled(tmp_path, kind):
    sequences = rows(tmp_path, Endless(), kind, number=4 + 8 + 16 + 16)
    file = tokenise(Endless(), "train", byte_tokenizer(), tmp_path, tokens=2000, documents=44)
    got = seen(sequences)
    expected = [ids(kind(file, 16)[index]) for index in range(44)]
    assert got != expected
    for start, stop in ((0, 4), (4, 12), (12, 28), (28, 44)):
        assert sorted(got[start:stop]) == sorted(expected[start:stop])


@KINDS
def test_the_order_is_that_of_the_seed_however_far_the_cache_is(tmp_path, kind):
    got = seen(rows(tmp_path / "new", Endless(40), kind))
    whole(tmp_path / "complete", 40)
    entry(tmp_path / "begun", Endless(40)).grow(lambda file: len(file) >= 300)
    for cache in ("new", "complete", "begun"):
        assert seen(rows(tmp_path / cache, Endless(40), kind)) == got
    assert seen(rows(tmp_path / "new", Endless(40), kind, number=37)) == got[:37]
    assert seen(rows(tmp_path / "new", Endless(40), kind, seed=1)) != got
    later = rows(tmp_path / "other", Endless(40), kind)
    assert [ids(later[index]) for index in (60, 3, 99)] == [got[index] for index in (60, 3, 99)]


@KINDS
@pytest.mark.parametrize("tokens", [0, 400])
def test_a_corpus_that_ends_begins_again_in_a_new_order(tmp_path, kind, tokens):
    file = whole(tmp_path / "whole", 40)
    total = tokens or len(file)
    size = total // 16 if kind is PackedRows else int((file.ends <= total).sum())
    got = seen(rows(tmp_path, Endless(40), kind, number=3 * size, tokens=tokens))
    epochs = [got[start : start + size] for start in range(0, 3 * size, size)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])
    assert epochs[0] != epochs[1] != epochs[2]
    assert sorted(epochs[0]) == sorted(ids(kind(file, 16)[index]) for index in range(size))


def test_a_bound_is_not_read_beyond(tmp_path):
    corpus = Endless()
    seen(rows(tmp_path, corpus, number=200, tokens=400))
    assert corpus.read < 60
    with pytest.raises(ValueError, match="tokens must be at least the 16 of one sequence, or 0 for all, got 3"):
        rows(tmp_path, corpus, tokens=3)


def test_a_corpus_shorter_than_a_row_is_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="the corpus has 14 tokens, fewer than one sequence of 16"):
        rows(tmp_path, Endless(1))[0]


def test_an_entry_that_is_removed_meanwhile_is_made_again(tmp_path):
    expected = seen(rows(tmp_path / "other", Endless()))
    sequences = rows(tmp_path, Endless())
    got = []
    for index in range(100):
        if index in (10, 50):
            (folder,) = tmp_path.glob("numbers*")
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()
        got.append(sequences[index]["input_ids"].tolist())
    assert got == expected


@pytest.mark.parametrize("name", ["tokens.bin", "ends.bin", "progress.bin"])
def test_a_damaged_piece_and_all_behind_it_count_as_never_written(tmp_path, name):
    entry(tmp_path, Endless()).grow(lambda file: len(file) >= 2000)
    (folder,) = tmp_path.glob("numbers*")
    content = (folder / name).read_bytes()
    rng = np.random.default_rng(0)
    expected = tokenise(Endless(), "train", byte_tokenizer(), tmp_path / "other", tokens=2000).tokens[:2000].tolist()
    for place in rng.integers(len(content), size=12):
        for damaged in (content[:place], content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]):
            (folder / name).write_bytes(damaged)
            part = entry(tmp_path, Endless())
            assert len(part.file) < 2000 and part.file.tokens.tolist() == expected[: len(part.file)]
            part.grow(lambda file: len(file) >= 2000)
            assert part.file.tokens[:2000].tolist() == expected


@pytest.mark.parametrize("record", [(2**60, 1, b""), (-5, 1, b""), (1, -1, b""), (10, 2**60, b"")])
def test_sizes_that_are_not_those_of_the_files_are_never_believed(tmp_path, record):
    entry(tmp_path, Endless()).grow(lambda file: len(file) >= 10)
    (folder,) = tmp_path.glob("numbers*")
    (folder / PROGRESS).write_bytes(RECORD.pack(*record))
    assert len(entry(tmp_path, Endless()).file) == 0


def test_side_by_side_all_see_the_same(tmp_path):
    expected = seen(rows(tmp_path / "other", Endless()))
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda _: seen(rows(tmp_path, Endless())), range(6))) == [expected] * 6


def test_a_source_that_fails_is_not_one_that_ends(tmp_path):
    """Not even if it fails in the thread that tokenises ahead."""

    class Breaks(Endless):
        def documents(self, split):
            for number, text in enumerate(super().documents(split)):
                if number == 30:
                    raise ValueError("the line is dead")
                yield text

    sequences = rows(tmp_path, Breaks())
    with pytest.raises(ValueError, match="the line is dead"):
        seen(sequences)
    with pytest.raises(ValueError, match="the line is dead"):
        seen(sequences)
    assert not list(tmp_path.glob("*/meta.json"))
    assert seen(rows(tmp_path, Endless())) == seen(rows(tmp_path / "other", Endless()))


def test_workers_of_a_loader_see_the_same(tmp_path):
    expected = seen(rows(tmp_path / "other", Endless()))
    loader = DataLoader(rows(tmp_path, Endless()), batch_size=None, num_workers=2, shuffle=False)
    assert [item["input_ids"].tolist() for item in loader] == expected
    assert seen(pickle.loads(pickle.dumps(rows(tmp_path, Endless())))) == expected


KILLED = """
import sys
from tests.data.test_streams import Endless, byte_tokenizer
from maclaurin.data import partial_entry as module, tokens
module.FIRST_PIECE = module.LARGEST_PIECE = 64
print("begins", flush=True)
tokens.tokenise(Endless(), "train", byte_tokenizer(), __import__("pathlib").Path(sys.argv[1]))
"""


def test_what_a_killed_process_has_written_is_used(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE)
    process.stdout.readline()
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("*/progress.bin")) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    left = entry(tmp_path, Endless())
    assert len(left.file) > 0
    expected = tokenise(Endless(), "train", byte_tokenizer(), tmp_path / "other", tokens=len(left.file))
    assert left.file.tokens.tolist() == expected.tokens[: len(left.file)].tolist()
    assert seen(rows(tmp_path, Endless())) == seen(rows(tmp_path / "other", Endless()))


def test_a_text_that_is_cut_is_said_to_be(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("maclaurin.data.corpus.LONGEST_TEXT", 400)
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(TEXT)
    (tmp_path / "c.jsonl").write_text(json.dumps({"text": TEXT}))
    corpus = open_corpus(str(tmp_path))
    list(corpus.documents("train"))
    list(corpus.documents("held-out"))
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "a.txt has more than 400 characters: all of it is read" in error
    list(open_corpus(str(tmp_path / "c.jsonl")).documents("train"))
    assert capsys.readouterr().err == ""


def test_large_files_and_datasets_of_the_hub_stream(tmp_path, monkeypatch):
    (tmp_path / "one.txt").write_text(TEXT)
    assert not open_corpus(str(tmp_path)).streams and not open_corpus("stdlib").streams
    assert open_corpus("fineweb").streams and open_corpus("owner/name").streams
    monkeypatch.setattr("maclaurin.data.corpus.LONGEST_WAIT", len(TEXT) - 1)
    assert open_corpus(str(tmp_path)).streams


def test_a_disk_that_is_full_is_one_sentence_and_what_is_there_stays(tmp_path):
    part = entry(tmp_path, Endless())
    part.grow(lambda file: len(file) >= 100)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match=r"tokens\.bin could not be written: File too large$"):
            part.grow(lambda file: len(file) >= 10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(entry(tmp_path, Endless()).file) >= 100
    assert seen(rows(tmp_path, Endless())) == seen(rows(tmp_path / "other", Endless()))


def test_a_cache_that_cannot_be_written_is_read(tmp_path, monkeypatch):
    expected = whole(tmp_path, 40).tokens.tolist()
    (used,) = tmp_path.glob(".*.used")
    used.unlink()
    used.mkdir()  # it cannot be opened as a file
    assert whole(tmp_path, 40).tokens.tolist() == expected


def test_all_is_both_parts(tmp_path):
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"text": f"body {i}"}) for i in range(60)))
    (tmp_path / "one.txt").write_text(TEXT)
    corpus = open_corpus(str(tmp_path / "rows.jsonl"))
    parts = [set(corpus.documents(split)) for split in ("train", "held-out", "all")]
    assert parts[0] | parts[1] == parts[2] and len(parts[2]) == 60
    assert list(open_corpus(str(tmp_path / "one.txt")).documents("all")) == [TEXT]
