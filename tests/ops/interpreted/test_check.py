"""What the owner of a GPU runs, here in the interpreter: every kernel is right, and the record says which were checked."""

import pytest

from maclaurin.machine.gpu_check import CALLS, examine


@pytest.mark.slow
def test_every_kernel_is_right():
    said = []
    report = examine(said.append)
    assert report["wrong"] == []
    assert len(said) == len(report["findings"]) == 2 * len(CALLS)
    assert {finding["dtype"] for finding in report["findings"]} == {"float32", "bfloat16"}
