"""Entries leave the cache by a command: those alone that the cache has made, the oldest first, and none in use."""

import json
import os
import subprocess
import sys

import pytest

from maclaurin import cli
from maclaurin.common.sizes import size_bytes
from maclaurin.data import byte_tokenizer, tokenise
from maclaurin.data.cache import entries, remove, shrink
from maclaurin.data.corpus import SPLITS, Corpus
from maclaurin.data.halves import HALVES
from maclaurin.data.partial_entry import used_file

NAMES = ("old", "middle", "new")


class Songs(Corpus):
    def __init__(self, name):
        self.name = name

    def documents(self, split):
        yield from (f"{i} green bottles" for i in range(1000))

    def fingerprint(self):
        return self.name


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Three entries, the first complete and unused for longest, the last a part."""
    monkeypatch.setenv("MACLAURIN_CACHE", str(tmp_path))
    for age, name in enumerate(reversed(NAMES)):
        tokenise(Songs(name), "train", byte_tokenizer(), tokens=1 if name == "new" else 0)
        (folder,) = (tmp_path / "tokens").glob(f"{name}-*")
        for file in (used_file(folder), *folder.iterdir()):
            os.utime(file, (1e9 - 1000 * age, 1e9 - 1000 * age))
    return tmp_path / "tokens"


def names(cache):
    return [entry.corpus for entry in entries(cache)]


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        cli.main(["cache", *arguments])
    assert ended.value.code == 0


@pytest.mark.parametrize("split", [*SPLITS, *HALVES])
def test_entries_of_every_split_are_listed_and_cleared(tmp_path, monkeypatch, split):
    """Those of `compare`, which divides what is held out, too."""
    monkeypatch.setenv("MACLAURIN_CACHE", str(tmp_path))
    tokenise(Songs("corpus"), split, byte_tokenizer())
    assert [(entry.corpus, entry.split) for entry in entries(tmp_path / "tokens")] == [("corpus", split)]
    run("--clear")
    assert not list((tmp_path / "tokens").glob("corpus-*"))


def test_entries_have_size_age_and_whether_they_are_complete(cache, capsys):
    assert names(cache) == list(NAMES)
    assert [entry.complete for entry in entries(cache)] == [True, True, False]
    (folder,) = cache.glob("old-*")
    assert entries(cache)[0].nbytes == sum(file.stat().st_size for file in folder.iterdir())
    run("--json")
    shown = json.loads(capsys.readouterr().out)
    assert [entry["corpus"] for entry in shown["left"]] == list(NAMES) and not shown["removed"]
    assert shown["left"][0]["unused_seconds"] > shown["left"][1]["unused_seconds"] > 0
    run()
    text = capsys.readouterr().out
    assert all(name in text for name in NAMES) and "days ago" in text and str(cache) in text


def test_using_an_entry_makes_it_young(cache):
    tokenise(Songs("old"), "train", byte_tokenizer())
    assert names(cache) == ["middle", "new", "old"]


def test_the_oldest_go_until_the_rest_fits(cache):
    sizes = [entry.nbytes for entry in entries(cache)]
    assert not shrink(cache, sum(sizes)) and names(cache) == list(NAMES)
    assert [entry.corpus for entry in shrink(cache, sum(sizes) - 1)] == ["old"]
    assert names(cache) == ["middle", "new"]
    run("--limit", "0")
    assert names(cache) == [] and list(cache.iterdir()) == []


def test_clear_removes_only_what_the_cache_has_made(cache):
    (folder,) = cache.glob("old-*")
    made = {
        "notes": "mine",
        "mine-train-0123456789abcdef": "mine",  # a name like an entry's
        "other-train-fedcba9876543210": json.dumps({"key": "0" * 64}),  # with another key
    }
    for name, text in made.items():
        (cache / name).mkdir()
        (cache / name / "meta.json").write_text(text)
    (cache / "linked-train-0123456789abcdef").symlink_to(folder)
    (cache / "file-train-0123456789abcdef").write_text("mine")
    (folder / "notes.txt").write_text("mine")
    run("--clear")
    assert names(cache) == []
    assert all((cache / name / "meta.json").read_text() == text for name, text in made.items())
    assert (cache / "file-train-0123456789abcdef").exists() and (cache / "linked-train-0123456789abcdef").is_symlink()
    assert [path.read_text() for path in cache.rglob("notes.txt")] == ["mine"]


def test_an_entry_in_use_stays(cache, capsys):
    file = tokenise(Songs("old"), "train", byte_tokenizer())
    run("--clear")
    assert names(cache) == ["old"] and "the others are in use" in capsys.readouterr().out
    assert len(file.tokens) == len(file)
    del file
    run("--clear")
    assert names(cache) == []


USES = """
import sys
from tests.data.test_cache_entries import Songs, byte_tokenizer, tokenise
file = tokenise(Songs("old"), "train", byte_tokenizer())
print("has it", flush=True)
sys.stdin.readline()
print(int(file.tokens.sum()), flush=True)
"""


def test_an_entry_that_another_process_uses_stays(cache):
    expected = int(tokenise(Songs("old"), "train", byte_tokenizer()).tokens.sum())
    other = subprocess.Popen([sys.executable, "-c", USES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "has it\n"
    run("--clear")
    assert names(cache) == ["old"]
    assert other.communicate("\n")[0] == f"{expected}\n"
    run("--clear")
    assert names(cache) == []


def test_what_a_killed_removal_has_left_goes_too(cache):
    (folder,) = cache.glob("old-*")
    (folder / "tokens.bin").unlink()
    folder.rename(cache / f".{folder.name}.0123456789abcdef")
    assert names(cache) == list(NAMES)
    run("--clear")
    assert not [path for path in cache.iterdir() if path.is_dir()]


def test_a_removed_entry_is_made_again(cache):
    expected = tokenise(Songs("old"), "train", byte_tokenizer()).tokens.tolist()
    assert remove(entries(cache)[-1])
    assert tokenise(Songs("old"), "train", byte_tokenizer()).tokens.tolist() == expected


def test_sizes_are_read_as_they_are_written():
    assert [size_bytes("limit", text) for text in ("0", "7", "1.5k", "500MB", "20 GiB", "2tb")] == [
        0,
        7,
        1536,
        500 * 2**20,
        20 * 2**30,
        2 * 2**40,
    ]
    for text in ("", "GB", "-1", "5 apples", "1e9"):
        with pytest.raises(ValueError, match="limit must be a size such as 500MB or 20GB, got"):
            size_bytes("limit", text)
    with pytest.raises(SystemExit) as ended:
        cli.main(["cache", "--clear", "--limit", "1GB"])
    assert ended.value.code
