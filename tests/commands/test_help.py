"""--help never starts work, wherever it stands."""

import pytest

from maclaurin.cli import COMMANDS, main
from maclaurin.commands.lab import Experiments

ARGUMENTS = {
    "generate": ["runs/first", "--prompt", "x"],
    "eval": ["runs/first"],
    "suite": ["recall", "--steps", "2"],
    "convert": ["runs/first", "--output", "linear"],
    "report": ["runs"],
    "bench": ["attention"],
    "doctor": ["--tune"],
}
LINES = [
    *([name, *ARGUMENTS.get(name, [])] for name in COMMANDS if name != "lm_eval"),  # the harness answers for itself
    *(["lab", name] for name in Experiments.lines),
    ["lab", "all", "--quick", "--seed", "1"],
    ["lab", "--quick", "all"],
    ["lab", "card", "softmax"],
]


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_help_anywhere_starts_no_work(line, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for work in ("run_one", "run_all"):
        monkeypatch.setattr(f"maclaurin.lab.run.{work}", pytest.fail)
    with pytest.raises(SystemExit, match="0"):
        main([*line, "--help"])
    assert "Usage: maclaurin" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
