"""An operator refuses tensors that its kernel would read or write beside, whoever calls it."""

import ctypes

import pytest
import torch

from maclaurin.ops import native
from maclaurin.ops.native import library, operators

pytestmark = pytest.mark.skipif(not native.available(), reason="built without a C++ compiler")

SIZES = {
    "B": 2,
    "T": 5,
    "H": 4,
    "G": 2,
    "K": 3,
    "V": 6,
    "C": 7,
    "N": 2,
    "n": 9,
    "P": 16,
    "R": 17,
    "D": 10,
    "L": 5,
}  # and the width 4 of a convolution

ATTENTION = {"q": "BTHK", "k": "BTGK", "v": "BTGV", "log_decay": "BTG"}
LINEAR = {"q": "BTHK", "k": "BTGK", "v": "BTGV", "log_decay": "BTGK", "state": "BGKW"}
DELTA = {"q": "BTHK", "k": "BTGK", "v": "BTGV", "beta": "BTG", "log_decay": "BTG", "state": "BGFV"}
CONV = {"x": "BTC", "weight": "C4", "bias": "C", "before": "B3C"}
SCAN = {"log_decay": "BTC", "start": "BC"}
GATED = {"u": "BTC", "gates": "BTE", "g": "BTC", "start": "BC"}
SELECTIVE = {"x": "BTC", "dt": "BTC", "rate": "CN", "b": "BTN", "c": "BTN", "start": "BCN"}
TURN = {"x": "BTHD", "cos": "BTHL", "sin": "BTHL"}
PIECEWISE = {"u": "n", "knots": "P", "table": "RD"}
QKV = {"q": "BTHK", "k": "BTGK", "v": "BTGV"}
FILTER = {"x": "BTHP", "v": "BTHC", "first": "HPL", "first_bias": "HL", "second": "HLE", "second_bias": "HE"}
OUTPUTS = {"y": "BTHV", "total": "BTH"}

# the tensors of each operator, and the options behind them
OPERATORS = {
    "quadratic": (ATTENTION, (1.0, False, True, 0)),
    "quadratic_backward": ({"dy": "BTHV", **ATTENTION, **OUTPUTS}, (1.0, False, True, 0)),
    "chunked": ({**ATTENTION, "state": "BGFW"}, (1.0, True, 2, 5)),
    "chunked_backward": (
        {"dy": "BTHV", "dnew_state": "BGFW", **ATTENTION, "state": "BGFW", **OUTPUTS, "new_state": "BGFW"},
        (1.0, True, 2, 5),
    ),
    "squared": (ATTENTION, (1.0, True, 2)),
    "squared_backward": ({"dy": "BTHV", **ATTENTION, **OUTPUTS}, (1.0, True, 2)),
    "series": ({**ATTENTION, "state": "BGFW"}, (1.0, True, 2, 5, False)),
    "series_backward": (
        {"dy": "BTHV", "dnew_state": "BGFW", **ATTENTION, "state": "BGFW", **OUTPUTS, "new_state": "BGFW"},
        (1.0, True, 2, 5, False),
    ),
    "whole": (ATTENTION, (1.0, True)),
    "whole_backward": ({"dy": "BTHV", **ATTENTION, **OUTPUTS}, (1.0, True)),
    "linear": (LINEAR, (1.0, 1.0, True, 2, True)),
    "linear_backward": (
        {"dy": "BTHV", "dnew_state": "BGKW", **LINEAR, **OUTPUTS, "new_state": "BGKW"},
        (1.0, 1.0, True, 2, True),
    ),
    "delta": (DELTA, (1.0, 2, 2, True)),
    "delta_backward": (
        {"dy": "BTHV", "dnew_state": "BGFV", **DELTA, "error": "BTGV", "new_state": "BGFV"},
        (1.0, 2, 2, True),
    ),
    "short_conv": (CONV, (True,)),
    "short_conv_backward": ({"dy": "BTC", **CONV}, (True,)),
    "linear_scan": ({"x": "BTC", **SCAN}, ()),
    "linear_scan_backward": ({"dy": "BTC", "y": "BTC", **SCAN}, ()),
    "gated_scan": (GATED, ()),
    "gated_scan_backward": ({**GATED, "h": "BTC", "dy": "BTC", "dend": "BC"}, ()),
    "selective_scan": (SELECTIVE, ()),
    "selective_scan_backward": ({"dy": "BTC", "dnew_state": "BCN", **SELECTIVE}, ()),
    "piecewise": (PIECEWISE, (True,)),
    "piecewise_backward": ({"dy": "nL", **PIECEWISE}, (True,)),
    "turn": (TURN, (True, False)),
    "inline": (QKV, (1.0, 2, True)),
    "inline_backward": ({"dy": "BTHV", "dnew_state": "BGKW", **QKV, **OUTPUTS, "new_state": "BGKW"}, (1.0, 2, True)),
    "mean_filter": (FILTER, ()),
    "mean_filter_backward": ({"dy": "BTHC", "dsum": "BHP", **FILTER}, ()),
    "turned_back": ({"dq": "BTHD", "dk": "BTGD", "dv": "BTGV", "cos": "BT1L", "sin": "BT1L"}, (True,)),
}
FREE = {
    ("quadratic", "v", 3),
    ("squared", "v", 3),
    ("whole", "v", 3),
    ("short_conv", "x", 1),
    ("piecewise", "u", 0),
    ("inline", "v", 3),
    ("turned_back", "dq", 2),
    ("turned_back", "dk", 2),
    ("turned_back", "dv", 2),
    ("turned_back", "dv", 3),
}  # sizes that no other tensor of theirs knows

every_operator = pytest.mark.parametrize("name", OPERATORS)


def arguments(name, **changed):
    words, options = OPERATORS[name]
    sizes = {**SIZES, **changed}
    sizes |= {"F": sizes["K"] * (sizes["K"] + 1) // 2, "W": sizes["V"] + 1, "E": 3 * sizes["C"], "1": 1, "3": 3, "4": 4}
    return {argument: torch.rand([sizes[letter] for letter in word]) for argument, word in words.items()}, options


def through_the_dispatcher(name, tensors, options):
    found = getattr(torch.ops.maclaurin, name)(*tensors.values(), *options)
    return [found] if isinstance(found, torch.Tensor) else found


def past_the_dispatcher(name, tensors, options):
    return native.call(name, *tensors.values(), *options)


def assert_refused(name, tensors, options, error, match):
    for call in (through_the_dispatcher, past_the_dispatcher):
        with pytest.raises(error, match=match):
            call(name, tensors, options)


def test_no_operator_is_forgotten():
    assert set(OPERATORS) == set(operators._KERNELS)


@every_operator
def test_sizes_that_disagree_are_refused(name):
    given, options = arguments(name)
    through_the_dispatcher(name, given, options)
    for argument, tensor in given.items():
        for wrong in (tensor[0], tensor[None]):
            assert_refused(name, {**given, argument: wrong}, options, ValueError, f"^{argument} of maclaurin::{name} must")
        for dim, size in enumerate(tensor.shape):
            for other in (size - 1, size + 1):
                last_queries_alone = (
                    name in ("quadratic", "squared", "chunked", "series") and argument == "q" and dim == 1 and other < size
                )
                if last_queries_alone or (name, argument, dim) in FREE:
                    continue
                shape = (*tensor.shape[:dim], other, *tensor.shape[dim + 1 :])
                assert_refused(name, {**given, argument: torch.rand(shape)}, options, ValueError, f"maclaurin::{name} ")


@every_operator
def test_other_numbers_than_float32_are_refused(name):
    given, options = arguments(name)
    for argument, tensor in given.items():
        for dtype in (torch.float64, torch.bfloat16, torch.int32):
            wrong = {**given, argument: tensor.to(dtype)}
            assert_refused(name, wrong, options, TypeError, f"{argument} of maclaurin::{name} must be float32 on the CPU")


@every_operator
def test_a_tensor_elsewhere_is_refused(name):
    given, options = arguments(name)
    for argument, tensor in given.items():
        with pytest.raises(TypeError, match=f"{argument} of maclaurin::{name} must be float32 on the CPU"):
            past_the_dispatcher(name, {**given, argument: tensor.to("meta")}, options)


@every_operator
def test_nothing_is_computed_of_nothing(name):
    """A size of 0 is refused or gives outputs without numbers, or with those of no tokens."""
    for letter in SIZES:
        given, options = arguments(name, **{letter: 0})
        try:
            found = through_the_dispatcher(name, given, options)
        except ValueError:
            continue
        assert all(x.isfinite().all() for x in found), letter


@every_operator
def test_strides_make_no_difference(name):
    """Of any tensor, also of those that only a backward is given."""
    given, options = arguments(name)
    odd = {key: x.mT.contiguous().mT if x.dim() > 1 else x.repeat_interleave(2)[::2] for key, x in given.items()}
    got, expected = (through_the_dispatcher(name, tensors, options) for tensors in (odd, given))
    assert all(torch.equal(left, right) for left, right in zip(got, expected, strict=True))


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("chunked", 2, 0),
        ("chunked", 2, -1),
        ("chunked", 3, 6),
        ("chunked", 3, -1),
        ("chunked_backward", 2, 0),
        ("chunked_backward", 3, 6),
        ("chunked_backward", 3, 0),
        ("linear", 3, 0),
        ("linear_backward", 3, 0),
        ("linear_backward", 4, False),
        ("linear_backward", 2, False),
    ],
)
def test_options_that_do_not_fit_the_tensors_are_refused(name, place, value):
    given, options = arguments(name)
    options = (*options[:place], value, *options[place + 1 :])
    assert_refused(name, given, options, ValueError, f"maclaurin::{name} ")


def test_a_library_of_other_sources_is_refused(monkeypatch):
    monkeypatch.setattr(library, "KERNELS", {**library.KERNELS, ctypes.c_int64: ()})
    with pytest.raises(ImportError, match=r"libmaclaurin_native.so was built from other sources than this maclaurin"):
        library._load()
    monkeypatch.undo()
    assert library._load() is not None
