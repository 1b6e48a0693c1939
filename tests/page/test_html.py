"""The file of a page."""

from pathlib import Path

import pytest

from maclaurin.page.html import Page


def test_a_page_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "new" / "report.html"
    Page("t", "first", [], []).write(path)

    def full(self, text, **options):
        self.write_bytes(text.encode()[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        Page("t", "second", [], []).write(path)
    monkeypatch.undo()
    assert "first" in path.read_text()
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]


def test_half_a_character_is_shown_as_a_question_mark(tmp_path):
    path = tmp_path / "report.html"
    Page("t", "half \ud800 of one", [], []).write(path)
    assert "half ? of one" in path.read_text(encoding="utf-8")
