"""What goes on is said where there is no terminal, too: a line every few seconds."""

import time

import pytest

from maclaurin.common import progress
from maclaurin.common.progress import Every, counted, running, time_text


def test_work_that_is_soon_done_says_nothing(capsys):
    assert list(counted("abc", "reading", "letters")) == ["a", "b", "c"]
    assert capsys.readouterr() == ("", "")


def test_long_work_says_how_far_it_is(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    for _ in counted(range(5), "reading", "letters"):
        now[0] += 0.6 * progress.SECONDS
    assert capsys.readouterr().err.splitlines() == ["reading: 2 letters", "reading: 4 letters"]


def test_work_without_parts_says_for_how_long_it_runs(monkeypatch, capfd):
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    monkeypatch.setattr(progress, "TICK", 0.01)
    with running("lab series"):
        time.sleep(0.1)
    said = capfd.readouterr()
    assert said.out == "" and set(said.err.splitlines()) == {"lab series: 0 s"}


def test_a_line_is_due_once_in_its_time(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    due = Every(10)
    assert not due()
    now[0] += 10
    assert due() and not due()


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (99, "99 s"), (600, "10 min"), (9000, "2.5 h")])
def test_times_are_read_at_a_glance(seconds, text):
    assert time_text(seconds) == text
