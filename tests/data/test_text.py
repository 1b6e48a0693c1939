"""Text to sequences: deterministic splits, exact tokens, caches that are whole or rebuilt."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from maclaurin.data import DocumentRows, PackedRows, TokenFile, byte_tokenizer, open_corpus, open_tokenizer, tokenise
from maclaurin.data import corpus as corpus_module


class Memory(corpus_module.Corpus):
    name = "memory"

    def __init__(self, texts):
        self.texts = texts
        self.read = 0

    def documents(self, split):
        self.read += 1
        yield from self.texts

    def fingerprint(self):
        return json.dumps(self.texts)


def test_the_standard_library_is_split_by_file_and_never_changes():
    first, second = open_corpus("stdlib"), open_corpus("stdlib")
    assert first.fingerprint() == second.fingerprint()
    held_out = list(first.documents("held-out"))
    train = list(first.documents("train"))
    assert held_out == list(second.documents("held-out"))
    assert 0.02 < len(held_out) / (len(train) + len(held_out)) < 0.10
    assert sum(map(len, train)) > 4e6
    assert len(train) + len(held_out) == len(first.paths)


def test_local_files_of_every_kind(tmp_path):
    pandas = pytest.importorskip("pandas")
    texts = [f"document {i} äöü €\n" * 3 for i in range(90)]
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.txt").write_text(texts[0])
    (tmp_path / "folder" / "b.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[1:50]))
    pandas.DataFrame({"text": texts[50:]}).to_parquet(tmp_path / "folder" / "c.parquet")
    (tmp_path / "ignored.bin").write_bytes(b"\0")
    corpus = open_corpus(str(tmp_path))
    train, held_out = (list(corpus.documents(split)) for split in ("train", "held-out"))
    assert sorted(train + held_out) == sorted(texts)
    assert 0 < len(held_out) < 20
    before = corpus.fingerprint()
    (tmp_path / "a.txt").write_text("changed")
    assert open_corpus(str(tmp_path)).fingerprint() != before


def test_a_long_text_file_is_cut_at_line_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_module, "LONGEST_TEXT", 100)
    monkeypatch.setattr(corpus_module, "HELD_OUT", 0)
    text = "".join(f"line {i}\n" for i in range(200))
    (tmp_path / "long.txt").write_text(text)
    documents = list(open_corpus(str(tmp_path / "long.txt")).documents("train"))
    assert "".join(documents) == text
    assert all(len(document) < 120 and document.endswith("\n") for document in documents)


@pytest.mark.parametrize("spec", ["missing.txt", "./nowhere", "no such thing"])
def test_a_missing_corpus_is_one_sentence(spec):
    with pytest.raises(ValueError, match="is no file or folder here"):
        open_corpus(spec)


def test_an_empty_folder_and_a_missing_field_are_one_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"holds no \.txt, \.jsonl, \.parquet file"):
        open_corpus(str(tmp_path))
    (tmp_path / "rows.jsonl").write_text('{"body": "x"}\n')
    with pytest.raises(ValueError, match="without text in the field 'text'; its fields are body"):
        list(open_corpus(str(tmp_path)).documents("train"))


def test_bytes_are_their_own_tokens(tmp_path):
    tokenizer = byte_tokenizer()
    text = "".join(map(chr, range(256))) + "€ 漢字 🙂\r\n\t"
    ids = tokenizer(text)["input_ids"]
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text
    assert (len(tokenizer), tokenizer.eos_token_id) == (257, 256)
    tokenizer.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)(text)["input_ids"] == ids


def test_a_trained_bpe_is_shorter_and_exact():
    texts = ["the cat sat on the mat and the dog sat on the cat\n" * 20]
    tokenizer = open_tokenizer("bpe:300", texts)
    ids = tokenizer(texts[0])["input_ids"]
    assert len(tokenizer) <= 300
    assert len(ids) < len(texts[0]) / 2
    assert tokenizer.decode(ids) == texts[0]


@pytest.mark.parametrize(
    ("spec", "message"), [("bpe:10", "at least 257"), ("bpe:x", "at least 257"), ("nothing", "no folder")]
)
def test_a_bad_tokenizer_is_one_sentence(spec, message):
    with pytest.raises(ValueError, match=message):
        open_tokenizer(spec, ["text"])


def test_tokens_are_cached_by_content(tmp_path):
    tokenizer = byte_tokenizer()
    corpus = Memory(["one", "", "three"])
    for _ in range(2):
        file = tokenise(corpus, "train", tokenizer, tmp_path)
        assert file.tokens.tolist() == [*b"one", 256, 256, *b"three", 256]
        assert file.ends.tolist() == [4, 5, 11]
        assert file.document(2).tolist() == [*b"three", 256]
    assert corpus.read == 1
    assert isinstance(file.tokens, np.memmap)
    tokenise(Memory(["other"]), "train", tokenizer, tmp_path)
    assert len(list(tmp_path.glob("memory-*"))) == 2


@pytest.mark.parametrize("damage", ["tokens.bin", "ends.bin", "meta.json"])
def test_a_half_written_cache_is_rebuilt(tmp_path, damage):
    corpus, tokenizer = Memory(["some text"]), byte_tokenizer()
    expected = tokenise(corpus, "train", tokenizer, tmp_path).tokens.tolist()
    (folder,) = tmp_path.glob("memory-*")
    content = (folder / damage).read_bytes()
    (folder / damage).write_bytes(content[: len(content) // 2])
    assert tokenise(corpus, "train", tokenizer, tmp_path).tokens.tolist() == expected
    assert corpus.read == 2


def test_an_interrupted_build_leaves_no_entry(tmp_path):
    def documents():
        yield "fine"
        raise KeyboardInterrupt

    corpus = Memory([])
    corpus.documents = lambda split: documents()
    with pytest.raises(KeyboardInterrupt):
        tokenise(corpus, "train", byte_tokenizer(), tmp_path)
    assert not list(tmp_path.glob("memory-*"))


def test_an_empty_split_is_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="has no document in this split"):
        tokenise(Memory([]), "train", byte_tokenizer(), tmp_path)


def file_of(*lengths):
    ends = np.cumsum(lengths)
    return TokenFile(np.arange(ends[-1], dtype=np.uint16), ends, 300)


def test_packed_rows_keep_every_token_and_every_boundary():
    rows = PackedRows(file_of(3, 4, 10, 1, 9), 8)
    assert len(rows) == 3
    assert torch.cat([rows[i]["input_ids"] for i in range(3)]).tolist() == list(range(24))
    assert [rows[i]["bounds"].tolist() for i in range(3)] == [[0, 3, 7, 8], [0, 8], [0, 1, 2, 8]]
    batch = PackedRows.collate([rows[0], rows[2]])
    assert batch["cu_seqlens"].tolist() == [0, 3, 7, 8, 9, 10, 16]
    assert batch["input_ids"].shape == (1, 16)


def test_document_rows_are_cut_and_padded():
    rows = DocumentRows(file_of(3, 7), 5)
    batch = DocumentRows.collate([rows[0], rows[1]])
    assert batch["input_ids"].tolist() == [[0, 1, 2, 0, 0], [3, 4, 5, 6, 7]]
    assert batch["labels"].tolist() == [[0, 1, 2, -100, -100], [3, 4, 5, 6, 7]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]


def test_a_corpus_shorter_than_a_row_is_one_sentence():
    with pytest.raises(ValueError, match="10 tokens, fewer than one sequence of 64"):
        PackedRows(file_of(10), 64)
