"""Separation: the two-row formula is the network, the references hold, and what should fail is said to fail."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from maclaurin.lab.experiments.separation import Setting, checks, probe, references, separation
from maclaurin.lab.experiments.separation.formulas import (
    limit,
    masses,
    normalised,
    probabilities,
    sees_magnitude,
    separable,
    tables,
    tied,
)
from maclaurin.lab.experiments.separation.growth import d_prime, lost_at, threshold
from maclaurin.lab.experiments.separation.networks import mismatches, score, sweep
from maclaurin.lab.mechanisms import NAMED, mechanism
from maclaurin.lab.result import Result
from maclaurin.mixers import available_mixers

BASE = Setting()
SOFTMAX, LINEAR = mechanism("softmax"), mechanism("linear")


def exact(name: str, setting: Setting) -> float:
    return probabilities(setting, *tables(mechanism(name), setting)).success


@pytest.mark.parametrize(
    "name", ["softmax", "linear", "elu", "2mamba", "taylor-3", "power-4", "hedgehog", "performer", "t2r"]
)
def test_the_two_row_formula_is_the_network(name: str) -> None:
    assert separable(mechanism(name)) and normalised(mechanism(name))
    for setting, needle in ((Setting(n=100, d=12, c=0.7, a1=2.0), 37), (Setting(n=150, a1=0.5, m=10), 149)):
        assert mismatches(mechanism(name), setting, 100, 3, needle) == 0
        assert mismatches(mechanism(name), replace(setting, cross=True), 100, 3, needle) == 0


def test_a_wrong_formula_would_be_noticed() -> None:
    """The network of another mechanism, or of another scale, disagrees in many cases."""
    setting = Setting(n=150)

    class Impostor:
        """Softmax in small networks, from which the formula takes its masses, and linear in large ones."""

        def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return (SOFTMAX if len(q) == 2 else LINEAR)(q, k, v)

    assert mismatches(Impostor(), setting, 100, 3, 0) > 20
    assert not separable(Impostor())


@pytest.mark.parametrize(
    ("a", "generic", "needle", "linear"),
    [
        (1.2, 0.79940, 0.999988, 0.0021974),
        (0.7, 0.1119, 0.78809, 0.0016988),
        (0.1, 0.0019933, 0.0021355, 0.0010999),
        (0.01, 0.0010714, 0.0010722, 0.00101),
    ],
)
def test_masses_on_the_needle(a: float, generic: float, needle: float, linear: float) -> None:
    found = masses(SOFTMAX, 1000, a)
    assert found.generic == pytest.approx(generic, rel=4e-4)  # the digits of the reference
    assert found.needle == pytest.approx(needle, rel=4e-5)
    assert masses(LINEAR, 1000, a).needle == pytest.approx(linear, rel=5e-5)
    assert masses(LINEAR, 1000, a).generic == pytest.approx((1 + a) / (1000 + a), rel=1e-12)


def test_masses_hold_to_a_millionth() -> None:
    assert all(claim.held for claim in checks.needle_masses(SOFTMAX, LINEAR))
    assert not all(claim.held for claim in checks.needle_masses(mechanism("taylor-4"), LINEAR))


@pytest.mark.parametrize("one", references.sweeps(BASE), ids=lambda one: one.key)
def test_references_of_the_sweeps(one: references.Sweep) -> None:
    for attention, expected in ((SOFTMAX, one.softmax), (LINEAR, one.linear)):
        found = sweep(attention, replace(BASE, **one.around), one.values, 500, 0)
        assert [point.exact.success for point in found if point.exact] == pytest.approx(expected, abs=references.TOLERANCE)
        assert checks.draws(found).held


def test_references_do_not_hold_for_another_mechanism() -> None:
    one = references.sweeps(BASE)[0]
    found = {one.key: (sweep(mechanism("taylor-2"), BASE, one.values, 100, 0), sweep(LINEAR, BASE, one.values, 100, 0))}
    strong, weak = checks.swept([one], found, ("taylor-2", "linear"))
    assert strong.held is False and weak.held is True


def test_probabilities_of_the_limit() -> None:
    """Heads needed, false alarms and their Hoeffding bound, as derived by hand."""
    q1 = {(1.2, 0.8): 1 / 4, (0.7, 0.8): 1 / 4, (1.2, 0.5): 3 / 8, (2.0, 0.8): 1 / 2}
    for (a1, c), share in q1.items():
        assert limit(Setting(m=1, a1=a1, c=c)).true_positive == pytest.approx(share)
    alarms = {12: 0.670, 32: 0.0509, 42: 0.022, 52: 0.0031}
    for d, share in alarms.items():
        setting = Setting(n=20 * (d - 2), d=d)
        assert limit(setting).false_positive == pytest.approx(share, abs=6e-4)
        single = limit(replace(setting, m=1)).false_positive
        assert single <= 0.5 * math.exp(-(d - 2) * (0.1 / setting.b) ** 2 / 2)
    assert limit(Setting(n=2000, d=102)).false_positive < 1e-5
    assert limit(Setting(c=0.6)).false_positive == pytest.approx(0.480, abs=1e-3)
    assert limit(Setting(c=0.7)).false_positive == pytest.approx(0.1425, abs=1e-4)


def test_ties_are_flagged() -> None:
    flagged = {d: tied(Setting(n=20 * (d - 2), d=d)) for d in (12, 22, 32, 42, 52)}
    assert flagged == {12: False, 22: True, 32: False, 42: True, 52: False}
    assert tied(Setting(c=0.5)) and not tied(Setting(c=0.6))
    report = probe(SOFTMAX, Setting(n=400, d=22), networks=10)
    assert any("tie" in note for note in report.notes)


@pytest.mark.parametrize("name", ["softmax", "linear", "taylor-2", "2mamba"])
def test_thresholds_and_their_growth(name: str) -> None:
    reference = references.THRESHOLDS["power-2" if name == "2mamba" else name]
    for n in (1e3, 1e6):
        assert threshold(mechanism(name), Setting(n=n)) == pytest.approx(reference[n], rel=0.02)
    far = [threshold(mechanism(name), Setting(n=n)) or math.nan for n in (1e22, 1e24)]
    assert math.log(far[1] / far[0]) / math.log(100) == pytest.approx(checks.expected_growth(name), abs=0.01)


def test_success_at_the_threshold_is_a_half() -> None:
    a1 = threshold(LINEAR, BASE)
    assert a1 is not None
    assert exact("linear", replace(BASE, a1=0.99 * a1)) < 0.5 <= exact("linear", replace(BASE, a1=1.01 * a1))


def test_noise() -> None:
    for name, expected in references.D_PRIMES.items():
        found = [d_prime(mechanism(name), Setting(n=n), 0.1) for n in (1e2, 1e3, 1e4, 1e5)]
        assert found == pytest.approx(expected, rel=0.03)
    assert lost_at(LINEAR, BASE, 0.1) == pytest.approx(6000, rel=0.05)
    assert lost_at(SOFTMAX, BASE, 0.1) is None


def test_a_readout_set_by_hand_separates_under_linear_attention() -> None:
    low, high = checks.hand_set(LINEAR, BASE)
    assert low == pytest.approx(0.00003, abs=5e-6) and high == pytest.approx(0.0069, abs=5e-5)
    assert all(claim.held for claim in checks.limits(LINEAR))
    # with the same needle in both data sets no readout can
    low, high = checks.hand_set(LINEAR, replace(BASE, a0=1.2))
    assert low == high


def test_what_is_not_asked() -> None:
    for name in ("qk-norm", "cosine"):
        report = probe(mechanism(name), BASE, networks=50)
        assert report.verdict == "does not apply" and not sees_magnitude(mechanism(name))
    performer = probe(mechanism("performer"), BASE, networks=50)
    assert performer.inverted and performer.score.success == 0
    assert not probe(SOFTMAX, BASE, networks=50).inverted

    def unnormalised(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return q @ (k.T @ v)

    report = probe(unnormalised, BASE, networks=50)
    assert report.verdict == "does not apply" and "sum to one" in report.notes[0]


def test_verdicts() -> None:
    assert score(SOFTMAX, BASE, 200, 0).verdict == "separates"
    assert score(LINEAR, BASE, 200, 0).verdict == "blind"
    assert score(SOFTMAX, replace(BASE, c=0.2), 200, 0).verdict == "noisy"
    assert score(SOFTMAX, replace(BASE, m=1), 200, 0).verdict == "weak"


def test_weights_of_all_keys_at_once_are_written_out() -> None:
    report = probe(mechanism("inline"), Setting(n=100), networks=50)
    assert report.score.exact is None and report.growth is None and not separable(mechanism("inline"))


def test_the_scale_hides_the_effect() -> None:
    for (scale, a1), expected in references.SCALES.items():
        assert exact("softmax", Setting(scale=scale, a1=a1)) == pytest.approx(expected, abs=references.TOLERANCE)


@pytest.mark.parametrize("name", ["gla", "mlstm", "s6", "mamba2s", "fox", "sofmax"])
def test_what_is_no_mechanism_says_why(name: str) -> None:
    with pytest.raises(ValueError, match=name if name not in ("mlstm", "fox") else "causal only"):
        mechanism(name)


def test_mixers_are_mechanisms() -> None:
    names = ("softmax", "linear", "2mamba", "taylor", "hedgehog", "performer", "luna", "inline", *NAMED)
    assert [mechanism(name).name for name in names] == list(names)
    assert set(names) - set(NAMED) <= set(available_mixers())


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="multiple of d - 2 = 50, so that columns repeat, got 1001"):
        separation(n=1001)
    with pytest.raises(ValueError, match="c must lie between"):
        separation(c=1.5)


def held(result: Result, key: str) -> list[bool | None]:
    return [claim.held for claim in result.claims if claim.key == key]


@pytest.mark.slow
def test_the_whole_experiment_and_a_false_one() -> None:
    result = separation(quick=True, mechanisms=("softmax", "linear", "taylor-2", "2mamba", "qk-norm"))
    assert result.held
    assert "2mamba" in result.table() and len(result.plot()) == 10
    hidden = separation(quick=True, mechanisms=("softmax",), scale=0.125)
    assert held(hidden, "gate") == [False, True]
    swapped = separation(quick=True, mechanisms=("softmax",), strong="taylor-2")
    assert not swapped.held
