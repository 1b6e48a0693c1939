"""Leases: a piece of work has one owner at a time, until that one is done or dead."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from maclaurin.common.shards import own_first
from maclaurin.processes import leases
from maclaurin.processes.leases import Leases


def test_a_piece_has_one_owner_until_it_is_given_back(tmp_path):
    with Leases(tmp_path / "leases") as mine, Leases(tmp_path / "leases") as others:
        assert mine.take("cell") and not others.take("cell") and others.take("another")
        mine.release("cell")
        assert others.take("cell")
    assert not (tmp_path / "leases").exists()


def test_the_piece_of_a_process_that_is_gone_is_free_at_once(tmp_path):
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    with Leases(tmp_path) as mine:
        (tmp_path / "cell.0").write_text(f"{process.pid} {leases._place()}")
        assert mine.take("cell") and (tmp_path / "cell.1").exists()
        assert not Leases(tmp_path).take("cell")  # it is this process's, which lives
        mine.release("cell")
        assert not list(tmp_path.iterdir())


def test_a_lease_from_elsewhere_expires_once_it_is_no_longer_touched(tmp_path, monkeypatch):
    (tmp_path / "cell.0").write_text("1 elsewhere")
    with Leases(tmp_path) as mine:
        assert not mine.take("cell")
        monkeypatch.setattr(leases, "EXPIRES", -1.0)
        os.utime(tmp_path / "cell.0", (1, 1))
        assert not mine.take("cell")  # it was touched since
        assert mine.take("cell")


def test_one_of_many_takes_what_is_left(tmp_path):
    (tmp_path / "cell.0").write_text(f"{2**22 + 1} {leases._place()}")
    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(lambda _: Leases(tmp_path).take("cell"), range(64))) == 1


def test_shards_begin_with_different_pieces_and_know_all():
    assert own_first(range(7), "2/3") == [1, 4, 2, 5, 0, 3, 6]
    assert own_first(range(3), "1/1") == [0, 1, 2]
    for wrong in ("0/3", "4/3", "1", "a/b", "1/0"):
        with pytest.raises(ValueError, match="shard must be I/N with I from 1 to N"):
            own_first([], wrong)
