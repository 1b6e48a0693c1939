"""One decision for all ops: what the environment wishes for, and who hears of a slow path."""

import json
import subprocess
import sys
import warnings

import pytest
import torch

import maclaurin
from maclaurin import ops
from maclaurin.ops import backends, native
from maclaurin.ops.backends import SlowPathWarning, watching
from tests.ops.helpers import ALL, Sizes, every

pytestmark = pytest.mark.skipif(not native.available(), reason="the native backend was not built")


def single(op, T=19):
    return op.draw(Sizes(T=T)).to(torch.float32)


@pytest.fixture
def nothing_said(monkeypatch):
    monkeypatch.setattr(backends, "_said", set())


@every(ALL)
def test_a_wish_for_torch_reaches_every_op(op, monkeypatch):
    def refuse(*_):
        raise AssertionError("a kernel ran")

    for function in native.library.KERNELS.values():
        for name in function:
            monkeypatch.setattr(native.library._LIBRARY, f"maclaurin_{name}", refuse)
    monkeypatch.setattr(native.library, "step", refuse)
    monkeypatch.setattr(native.library, "any_nan", refuse)
    with native.using_backend("torch"), watching() as choices:
        _, state = op(single(op))
        op(single(op, T=1), state=state)
    assert {choice.backend for choice in choices} == {"torch"}
    assert {choice.reason for choice in choices} <= {"MACLAURIN_BACKEND=torch"}


@every(ALL)
def test_a_wish_for_native_leaves_what_has_no_kernel_in_torch(op):
    with native.using_backend("native"), watching() as choices:
        op(single(op))
    for choice in choices:
        assert choice.backend == "native" or "order=2" in choice.reason or "softmax" in choice.reason


def test_a_wish_for_native_says_why_a_kernel_cannot_run():
    q = torch.zeros(1, 4, 2, 8, dtype=torch.float64)
    with native.using_backend("native"), pytest.raises(ValueError, match=r"MACLAURIN_BACKEND=native needs float32 or less"):
        ops.power_attention(q, q, q)


def test_an_argument_outweighs_the_wish():
    q = torch.zeros(1, 4, 2, 8)
    with native.using_backend("torch"), watching() as choices:
        ops.power_attention(q, q, q, backend="native")
    assert [choice.backend for choice in choices] == ["native"]


def python(code, **environment):
    import os

    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=300)


MIXER = """
import json, torch, maclaurin
from maclaurin.ops.backends import watching
with watching() as choices:
    maclaurin.build_mixer("2mamba", d_model=32, num_heads=2)(torch.zeros(1, 20, 32))
print(json.dumps(sorted({choice.backend for choice in choices})))
"""


@pytest.mark.parametrize(("wish", "runs"), [("torch", ["torch"]), ("native", ["native"]), ("", ["native"])])
def test_the_environment_is_read_for_mixers(wish, runs):
    assert json.loads(python(MIXER, MACLAURIN_BACKEND=wish).stdout) == runs


def test_another_word_in_the_environment_is_one_sentence():
    done = python("from maclaurin.cli import main; main(['mixers'])", MACLAURIN_BACKEND="cuda")
    assert done.returncode == 2
    assert done.stderr.strip() == "maclaurin: MACLAURIN_BACKEND must be one of auto, torch, native, triton, got 'cuda'"


def test_a_fall_to_torch_is_said_once_by_reason(nothing_said):
    q = torch.zeros(1, 4, 2, 8, dtype=torch.float64)
    with pytest.warns(SlowPathWarning, match="they need float32 or less, not torch.float64"):
        ops.power_attention(q, q, q)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ops.power_attention(q, q, q)
        ops.linear_attention(q, q, q)


def test_a_missing_library_is_said(nothing_said, monkeypatch):
    monkeypatch.setattr(native.library, "_LIBRARY", None)
    monkeypatch.setattr(native.library, "step", None)
    monkeypatch.setattr(native.library, "any_nan", None)
    x = torch.zeros(1, 4, 8)
    with pytest.warns(SlowPathWarning, match="built where a C"):
        ops.linear_scan(x, x)


def test_a_quadratic_sum_in_place_of_chunks_is_said(nothing_said):
    q = torch.zeros(1, 4, 1, 64)
    with pytest.warns(SlowPathWarning, match=r"order=4 and 64 channels has no recurrent state: its time is quadratic"):
        ops.power_attention(q, q, q, order=4, form="chunked")


@pytest.mark.parametrize("how", ["native", "asked for", "no kernel", "faster in torch", "meta", "compiled"])
def test_what_is_no_fall_is_not_said(how, nothing_said):
    dtype = torch.float64 if how in ("asked for", "no kernel", "faster in torch", "compiled") else torch.float32
    q = torch.zeros(1, 4, 2, 8, dtype=dtype, device="meta" if how == "meta" else "cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error", SlowPathWarning)
        if how == "meta":
            assert backends.reason_for_torch("auto", q, torch.float32) is not None
        elif how == "faster in torch":
            ops.softmax_attention(q, q, q)
        elif how == "compiled":
            torch.compile(lambda q: ops.power_attention(q, q, q, form="parallel")[0], backend="eager", fullgraph=True)(q)
        else:
            options = {"asked for": {"backend": "torch"}, "no kernel": {"order": 3}}.get(how, {})
            ops.power_attention(q, q, q, **options)


def test_a_plain_decoding_step_asks_nobody(monkeypatch):
    """The step of second order is decided before: its speed must not depend on who watches."""
    q = torch.randn(1, 40, 2, 8)
    _, state = ops.power_attention(q, q, q, fold_at=8, fold_every=4)
    new = q[:, :1]
    _, state = ops.power_attention(new, new, new, state=state, fold_at=8, fold_every=4)
    calls = []
    monkeypatch.setattr("maclaurin.ops.power.reason_for_torch", lambda *a, **k: calls.append("asked"))
    monkeypatch.setattr("maclaurin.ops.power.note", lambda *a: calls.append("noted"))
    ops.power_attention(new, new, new, state=state, fold_at=8, fold_every=4)
    assert calls == []


def test_the_warning_can_be_filtered_by_its_name():
    assert issubclass(ops.SlowPathWarning, UserWarning)
    assert maclaurin.ops.SlowPathWarning is SlowPathWarning
