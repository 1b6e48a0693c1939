"""The cache of tokens: keyed by all that decides them, built again when damaged, shared by processes without a race."""

import json
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from maclaurin.data import byte_tokenizer, open_corpus, tokenise
from maclaurin.data import corpus as corpus_module
from maclaurin.data import entry as entry_module


def text_of(file):
    return bytes(token for token in file.tokens.tolist() if token < 256).decode()


class Songs(corpus_module.Corpus):
    name = "songs"

    def documents(self, split):
        yield from (f"{i} green bottles" for i in range(30))

    def fingerprint(self):
        return "songs"


@pytest.fixture
def corpus(tmp_path):
    rows = ({"text": f"body {i}", "title": f"head {i}"} for i in range(60))
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return str(tmp_path / "rows.jsonl")


def test_tokens_are_those_of_the_field_that_is_asked_for(tmp_path, corpus):
    for field, word in (("text", "body"), ("title", "head")):
        text = text_of(tokenise(open_corpus(corpus, text_field=field), "train", byte_tokenizer(), tmp_path / "cache"))
        assert word in text and text.count(word) > 40


def test_a_fingerprint_changes_with_all_that_decides_the_documents(corpus, monkeypatch):
    prints = [open_corpus(corpus).fingerprint(), open_corpus(corpus, text_field="title").fingerprint()]
    for name, value in (("HELD_OUT", 0.5), ("LONGEST_TEXT", 10)):
        monkeypatch.setattr(corpus_module, name, value)
        prints.append(open_corpus(corpus).fingerprint())
    monkeypatch.setattr(corpus_module.HubDataset, "_revision", "abc")
    prints += [corpus_module.HubDataset("a/b", None, field).fingerprint() for field in ("text", "title")]
    assert len(set(prints)) == len(prints)


def test_another_end_of_text_is_another_entry(tmp_path, corpus):
    one, other = byte_tokenizer(), byte_tokenizer()
    other.eos_token = "!"
    ends = {tokenise(open_corpus(corpus), "train", tokenizer, tmp_path / "cache").tokens[-1] for tokenizer in (one, other)}
    assert ends == {256, ord("!")}


def damaged(content, rng):
    """One of: a bit flipped, a stretch overwritten, the end cut off or lengthened, two bytes exchanged."""
    content = bytearray(content)
    place = rng.randrange(len(content))
    kind = rng.randrange(5)
    if kind == 0:
        content[place] ^= 1 << rng.randrange(8)
    elif kind == 1:
        content[place : place + 8] = rng.randbytes(len(content[place : place + 8]))
    elif kind == 2:
        del content[place:]
    elif kind == 3:
        content += rng.randbytes(1 + rng.randrange(16))
    else:
        other = rng.randrange(len(content))
        content[place], content[other] = content[other], content[place]
    return bytes(content)


def test_no_damage_is_ever_trained_on(tmp_path):
    opened, tokenizer, rng = Songs(), byte_tokenizer(), random.Random(0)
    expected = tokenise(opened, "held-out", tokenizer, tmp_path / "cache")
    (folder,) = (tmp_path / "cache").glob("songs*")
    for _ in range(150):
        path = rng.choice(sorted(folder.iterdir()))
        path.write_bytes(damaged(path.read_bytes(), rng))
        file = tokenise(opened, "held-out", tokenizer, tmp_path / "cache")
        assert file.tokens.tolist() == expected.tokens.tolist() and file.ends.tolist() == expected.ends.tolist()


@pytest.mark.parametrize(
    "meta",
    [
        {"tokens": 2**62},
        {"tokens": -1, "documents": -1},
        {"documents": 1e300},
        {"tokens": True},
        {"dtype": ["uint16"]},
        {"dtype": "object"},
        {"vocab_size": None},
        {"more": [[[[]]]]},
    ],
)
def test_sizes_that_are_not_those_of_the_files_are_never_believed(tmp_path, meta):
    """Even under a checksum that fits."""
    opened, tokenizer = Songs(), byte_tokenizer()
    expected = tokenise(opened, "train", tokenizer, tmp_path / "cache").tokens.tolist()
    (folder,) = (tmp_path / "cache").glob("songs*")
    seal(folder, meta)
    assert tokenise(opened, "train", tokenizer, tmp_path / "cache").tokens.tolist() == expected


def seal(folder, changes):
    meta = json.loads((folder / "meta.json").read_text()) | changes
    del meta["sha256"]
    with open(folder / "tokens.bin", "rb") as tokens, open(folder / "ends.bin", "rb") as ends:
        meta["sha256"] = entry_module.checksum(meta, tokens, ends)
    (folder / "meta.json").write_text(json.dumps(meta))


@pytest.mark.parametrize("change", [lambda ends: ends[::-1], lambda ends: ends - 1, lambda ends: ends * 0])
def test_documents_end_one_after_the_other_and_at_the_end(tmp_path, change):
    opened, tokenizer = Songs(), byte_tokenizer()
    expected = tokenise(opened, "train", tokenizer, tmp_path / "cache").ends.tolist()
    (folder,) = (tmp_path / "cache").glob("songs*")
    change(np.fromfile(folder / "ends.bin", dtype=np.int64)).tofile(folder / "ends.bin")
    seal(folder, {})
    assert tokenise(opened, "train", tokenizer, tmp_path / "cache").ends.tolist() == expected


def test_side_by_side_all_get_the_same_entry(tmp_path):
    """Fresh, and in the place of a damaged one; what one of them has mapped stays readable."""
    opened, cache = Songs(), tmp_path / "cache"
    expected = tokenise(opened, "train", byte_tokenizer(), tmp_path / "other").tokens.tolist()
    with ThreadPoolExecutor(8) as pool:
        for attempt in range(12):
            if attempt % 2:
                (folder,) = cache.glob("songs*")
                (folder / "ends.bin").write_bytes(b"")
            else:
                cache = tmp_path / f"cache-{attempt}"
            files = list(pool.map(lambda _: tokenise(opened, "train", byte_tokenizer(), cache), range(8)))  # noqa: B023
            assert all(file.tokens.tolist() == expected for file in files)
            assert [path.name for path in cache.iterdir() if path.is_dir()] == [next(cache.glob("songs*")).name]
