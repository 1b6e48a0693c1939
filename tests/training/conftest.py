"""A folder with a small corpus, and a cache of its own."""

import json

import pytest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MACLAURIN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text").mkdir()
    rows = (json.dumps({"text": f"{i} green bottles hanging on the wall\n" * (1 + i % 4)}) for i in range(150))
    (tmp_path / "text" / "songs.jsonl").write_text("\n".join(rows))
    return tmp_path
