"""The doctor can fail: one number of one output that is a little off, in any kernel, is found and named."""

import ctypes
import json

import pytest
import torch

from maclaurin.cli import main
from maclaurin.machine import doctor, kernels
from maclaurin.machine.doctor import WRONG, verdict
from maclaurin.machine.kernels import CASES, Finding, examine_native, examine_torch
from maclaurin.machine.natives import what_is_native
from maclaurin.ops import native
from maclaurin.ops.native.library import KERNELS, Strided

needs_native = pytest.mark.skipif(not native.available(), reason="the native backend was not built")

OPS_OF = {  # which ops run a kernel
    "quadratic": {"power_attention", "softmax_attention"},
    "chunked": {"power_attention", "bidirectional_power"},
    "linear": {"linear_attention", "bidirectional_linear", "inline_attention", "mlstm"},
    "delta": {"delta_rule"},
    "conv": {"short_conv"},
    "scan": {"linear_scan"},
    "gated": {"gated_scan"},
    "selective": {"selective_scan"},
    "piecewise": {"scalar_mlp"},
    "turn": {"rotate"},
    "mean_filter": {"mean_filter"},
}
OUTPUTS = {
    "forward": ("y", "total", "new_state"),
    "backward": (
        "dq",
        "dk",
        "dv",
        "dbeta",
        "dlog_decay",
        "dstate",
        "dx",
        "dweight",
        "dbias",
        "dbefore",
        "ddt",
        "db",
        "dc",
        "drate",
        "du",
        "dgates",
        "dg",
        "dtable",
        "dfirst",
        "dfirst_bias",
        "dsecond",
        "dsecond_bias",
    ),
}

PLACES = [
    (kernel, name)
    for struct, names in KERNELS.items()
    for kernel in names
    for name in OUTPUTS[kernel.rpartition("_")[2]]
    if name in {field for field, _ in struct._fields_} and not (kernel.startswith("quadratic") and "state" in name)
]


def wrong(kernel, field, monkeypatch):
    """The first number of an output is off by one percent, or where it is small by a hundredth."""
    right = getattr(native.library._LIBRARY, f"maclaurin_{kernel}")

    def changed(reference):
        status = right(reference)
        place = getattr(reference._obj, field)
        address = place.data if isinstance(place, Strided) else place
        if address:
            number = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
            number[0] += 0.01 + 0.01 * abs(number[0])
        return status

    monkeypatch.setattr(native.library._LIBRARY, f"maclaurin_{kernel}", changed)


def first_wrong(op_names):
    """Of the cases of some ops: there are minutes of them for all places."""
    chosen = tuple(case for case in CASES if case.op in op_names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "CASES", chosen)
        return next((x for x in examine_native() if x.wrong), None)


@needs_native
@pytest.mark.parametrize(("kernel", "field"), PLACES, ids=[f"{kernel}-{field}" for kernel, field in PLACES])
def test_a_wrong_number_is_found_in_every_output_of_every_kernel(kernel, field, monkeypatch):
    wrong(kernel, field, monkeypatch)
    ops = OPS_OF[kernel.rpartition("_")[0]]
    found = first_wrong(ops)
    assert found is not None and found.op in ops
    assert "is off by" in found.wrong


@needs_native
def test_a_wrong_decoding_step_is_found(monkeypatch):
    right = native.library.step

    def changed(buffer, token):
        status = right(buffer, token)
        address = int.from_bytes(token[40:48], "little")  # S, then q, k, v, log_decay, y
        ctypes.cast(address, ctypes.POINTER(ctypes.c_float))[0] *= 1.01
        return status

    monkeypatch.setattr(native.library, "step", changed)
    found = first_wrong({"power_attention"})
    assert found is not None and "form steps" in found.what


@needs_native
def test_an_overlooked_nan_is_found(monkeypatch):
    right = native.library.any_nan
    monkeypatch.setattr(native.library, "any_nan", lambda address, count: right(address, count - 1))
    assert next(examine_native()).wrong == "a NaN at place 66 of 67 is not found"


@needs_native
def test_a_kernel_that_does_not_run_is_not_taken_for_right(monkeypatch):
    monkeypatch.setattr("maclaurin.ops.native.plain_step", lambda *_: None)
    found = first_wrong({"power_attention"})
    assert found is not None and found.wrong == "power_attention did not take its plain step"


def test_a_wrong_backward_of_torch_is_found(monkeypatch):
    from maclaurin.ops import scan

    right = scan._Scan.backward
    monkeypatch.setattr(
        scan._Scan, "backward", staticmethod(lambda ctx, dh: (1.01 * right(ctx, dh)[0], *right(ctx, dh)[1:]))
    )
    monkeypatch.setattr(kernels, "CASES", tuple(case for case in CASES if case.op == "linear_scan"))
    assert "gradient of x is off by" in next(x.wrong for x in examine_torch() if x.wrong)


@pytest.fixture
def quick(monkeypatch):
    """Few cases, and no trial of bfloat16 in processes of their own."""
    monkeypatch.setattr(kernels, "CASES", tuple(case for case in CASES if case.op == "short_conv")[:1])
    monkeypatch.setattr(doctor, "bf16_verdict", lambda: "ok")


@needs_native
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_wrong_kernel_is_said_and_the_exit_code_is_1(options, quick, monkeypatch, capsys):
    wrong("conv_forward", "y", monkeypatch)
    with pytest.raises(SystemExit) as end:
        main(["doctor", *options])
    printed = capsys.readouterr()
    assert end.value.code == 1
    assert "WRONG: short_conv, 4 taps, silu, form parallel, 13 tokens: y is off by" in printed.err
    assert "native short_conv" in printed.out and WRONG in printed.out and "versions" in printed.out


@needs_native
def test_a_right_machine_exits_0_with_nothing_wrong(quick, capsys):
    with pytest.raises(SystemExit) as end:
        main(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert end.value.code == 0 and report["wrong"] == []
    assert report["checks"]["native short_conv"].startswith("ok")
    assert native.isa() in report["backends"]["native"]
    assert "installed" in report["backends"]["triton"] or report["backends"]["triton"].startswith("ready")
    assert "crossover.json" in report["backends"]["lengths at which forms change"]


@needs_native
def test_every_case_runs_and_every_kernel_is_run(monkeypatch):
    """A kernel that is added has to be checked: its name must be among those that the cases call."""
    called = set()
    for names in KERNELS.values():
        for name in names:
            right = getattr(native.library._LIBRARY, f"maclaurin_{name}")
            noted = lambda reference, name=name, right=right: called.add(name) or right(reference)  # noqa: E731
            monkeypatch.setattr(native.library._LIBRARY, f"maclaurin_{name}", noted)
    findings = list(examine_native())
    assert called == {name for names in KERNELS.values() for name in names}
    assert [x for x in findings if x.wrong] == []


@needs_native
def test_what_is_native_is_what_the_ops_decide():
    listed = what_is_native()
    assert listed["power_attention"]["order 2"] == "native for float32, bfloat16, float16: parallel, chunked, recurrent"
    assert listed["power_attention"]["order 3"].startswith("torch: the kernels need order=2")
    assert listed["delta_rule"]["order 2"] == "native for float32, bfloat16, float16: parallel, chunked, recurrent"
    assert listed["delta_rule"]["order 3"] == "torch: the kernels need order 1 or 2"
    with native.using_backend("torch"):
        assert {text for calls in what_is_native().values() for text in calls.values()} <= {
            "torch: MACLAURIN_BACKEND=torch",
            "torch: whole sequences of first order have no kernel but that of a decay",
        }


def test_a_verdict_names_the_first_wrong_form_and_how_many():
    findings = [
        Finding("op", "form a", None, 0.5),
        Finding("op", "form b", "y is off by 1", 0.0),
        Finding("op", "c", "w", 0),
    ]
    assert verdict(findings, "of it") == "WRONG: form b: y is off by 1 (2 of 3 checks); do not train here"
    assert verdict(findings[:1], "of it") == "ok (1 check, at most 50% of it)"


@pytest.mark.slow
@needs_native
def test_the_mutants_of_the_fuzzer_are_found(tmp_path):
    """Kernels with one line changed, compiled and loaded in a process of their own."""
    import subprocess
    import sys

    from fuzz.mutants import MUTANTS, Kernel, compiled

    code = (
        "import sys, maclaurin as m; m.__path__.insert(0, sys.argv.pop()); from maclaurin.cli import main; main(['doctor'])"
    )
    for number, mutant in enumerate(x for x in MUTANTS if isinstance(x, Kernel)):
        folder = compiled(mutant, tmp_path / str(number))
        done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True)
        assert done.returncode == 1, mutant.what
        assert done.stderr.startswith("WRONG: "), mutant.what


def test_threads_are_as_before():
    before = torch.get_num_threads()
    next(iter(examine_native()), None) if native.available() else None
    assert torch.get_num_threads() == before
