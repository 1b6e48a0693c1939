"""Every tensor that the package makes says its dtype and device, where torch's defaults would decide otherwise."""

import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).parent.parent / "scripts" / "check_allocations.py"


def check(*folders):
    return subprocess.run([sys.executable, str(CHECK), *map(str, folders)], capture_output=True, text=True)


def test_the_package_leaves_nothing_to_the_defaults():
    found = check()
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("y = torch.empty(2, 3)", "torch.empty without dtype and device"),
        ("y = torch.zeros(2, device=x.device)", "torch.zeros without dtype"),
        ("y = torch.arange(2, dtype=torch.long)", "torch.arange without device"),
        ("y = [torch.randn(2) for _ in x]", "torch.randn without dtype and device"),
        ("y = nn.Linear(2, len(torch.ones(2)))", "torch.ones without dtype and device"),
        ("y = torch.randperm(2)", "torch.randperm without device"),
        ("y = torch.as_tensor(x)", "torch.as_tensor without device"),
    ],
)
def test_a_call_that_follows_the_defaults_is_found(line, missing, tmp_path):
    (tmp_path / "op.py").write_text(f"import torch\n\n{line}\n")
    found = check(tmp_path)
    assert found.returncode == 1
    assert found.stderr == f"{tmp_path / 'op.py'}:3: {missing}\n"


@pytest.mark.parametrize(
    "line",
    [
        "y = torch.empty(2, dtype=x.dtype, device=x.device)",
        "y = torch.empty(2, **like)",
        "y = nn.Parameter(torch.zeros(2))",
        "y = nn.ParameterDict({'u': torch.zeros(2)})",
        "y = torch.empty_like(x) + x.new_zeros(2)",
    ],
)
def test_a_call_that_does_not_is_not(line, tmp_path):
    (tmp_path / "op.py").write_text(line)
    assert check(tmp_path).returncode == 0
