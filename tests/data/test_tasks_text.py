"""Text: the three parts are apart, every byte is asked for from those before it, and a seed is the same text again."""

import numpy as np
import pytest
import torch

from maclaurin.data.tasks import task
from maclaurin.data.tasks.text import part_of


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """300 documents of one letter pattern each, so that a stretch says which documents it is from."""
    monkeypatch.setenv("MACLAURIN_CACHE", str(tmp_path / "cache"))
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number in range(300):
        (corpus / f"{number:03}.txt").write_text(f"<{number:03}>" * (5 + number % 7))
    return str(corpus)


def documents(tokens):
    text = bytes(np.where(tokens == 256, ord("\n"), tokens).astype(np.uint8)).decode()
    return {line[:5] for line in text.splitlines()}


def test_the_three_parts_share_no_document_and_leave_none_out(folder):
    train, validation, test = (documents(part_of(folder, split)) for split in ("train", "validation", "test"))
    assert len(train) + len(validation) + len(test) == 300
    assert len(train | validation | test) == 300
    assert len(validation) > 1 and len(test) > 1


def test_the_parts_of_one_file_are_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("MACLAURIN_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "one.txt"
    text = "".join(f"{number:04} " for number in range(2000))
    file.write_text(text)
    parts = [part_of(str(file), split) for split in ("train", "validation", "test")]
    words = [set(bytes(part[part < 256].astype(np.uint8)).decode().split()) for part in parts]
    whole = [{word for word in own if len(word) == 4} for own in words]
    assert all(len(own) > 40 for own in whole)
    assert not (whole[0] & whole[1] or whole[0] & whole[2] or whole[1] & whole[2])


def test_every_target_is_the_next_byte(folder):
    one = task("text", corpus=folder, length=32)
    batch = one.sample(20, seed=3)
    assert batch.tokens.shape == batch.targets.shape == (20, 32)
    assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])
    stream = part_of(folder, "train")
    for tokens, last in zip(batch.tokens.tolist(), batch.targets[:, -1].tolist(), strict=True):
        found = bytes(value % 256 for value in [*tokens, last])
        assert found in bytes((stream % 256).astype(np.uint8))


def test_a_text_that_is_too_short_or_has_no_end_says_so(folder, monkeypatch):
    with pytest.raises(ValueError, match=r"length must be below the .* bytes of the test part"):
        task("text", corpus=folder, length=10_000, split="test").sample(1, seed=0)
    with pytest.raises(ValueError, match="split must be one of 'train', 'validation', 'test'"):
        task("text", split="held-out")
    with pytest.raises(ValueError, match="corpus must be 'stdlib', or a file or folder"):
        part_of("fineweb", "train")
