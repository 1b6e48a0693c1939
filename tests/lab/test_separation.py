"""Separation: the two-row formula is the network, the references hold, and what should fail is said to fail."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from maclaurin.lab.experiments.separation import SCALES, Setting, checks, probe, separation
from maclaurin.lab.experiments.separation.checks import NOISE_LENGTHS, at_length, d_prime, lost_at, threshold
from maclaurin.lab.experiments.separation.networks import (
    limit,
    masses,
    mismatches,
    normalised,
    probabilities,
    score,
    sees_magnitude,
    separable,
    tables,
    tied,
)
from maclaurin.lab.mechanisms import NAMED, mechanism
from maclaurin.lab.result import Result
from maclaurin.mixers import available_mixers

BASE = Setting()
SOFTMAX, LINEAR = mechanism("softmax"), mechanism("linear")

# What a first run gave, around BASE. Shares are those of 1000 networks per point; where sums of signs tie with the
# threshold, rounding decides, and a share holds for one machine.
SHARE = 0.03  # the distance that two such runs may have
SWEEPS = {  # softmax, linear
    "a1": ([0, 0, 0.018, 0.185, 0.959, 0.995, *[0.996] * 5], [0] * 9 + [0.003, 0.010]),
    "a0": ([0.996, 0.996, 0.996, 0.980, 0.037, 0.001, 0, 0], [0] * 8),
    "c": ([0.005, 0.03, 0.115, 0.174, 0.538, 0.856, 0.996, 1.0], [0] * 8),
    "m": ([0.252, 0.425, 0.751, 0.945, 0.986, 0.996, 0.996, 0.991, 0.979, 0.934], [0] * 10),
    "d": ([0.005, 0.021, 0.326, 0.800, 0.940, 0.988, 0.996, 1.0], [0] * 8),
    "n": ([0.996] * 8, [0.387, 0.024, 0.010, 0.003, 0, 0, 0, 0]),
    "n, a1=.7": ([0.996] * 7, [0.010, *[0] * 6]),
    "m, c=.5": ([0.903, 1.0, 1.0, 0.998], [0] * 4),
}
THRESHOLDS: dict[str, dict[float, float]] = {  # a1* by n
    "softmax": {1e2: 0.405, 1e3: 0.471, 1e4: 0.507, 1e5: 0.531, 1e6: 0.549},
    "linear": {1e2: 1.96, 1e3: 7.22, 1e4: 23.95, 1e5: 76.9, 1e6: 244},
    "elu": {1e2: 2.29, 1e3: 8.39, 1e4: 27.5, 1e5: 87.4, 1e6: 275},
    "taylor-2": {1e2: 1.25, 1e3: 3.31, 1e4: 7.81, 1e5: 17.5, 1e6: 38.5},
    "2mamba": {1e3: 3.24, 1e6: 38.5},
    "power-4": {1e3: 1.48, 1e6: 8.2},
    "power-8": {1e3: 0.73, 1e6: 2.5},
    "power-16": {1e3: 0.37, 1e6: 1.0},
}
D_PRIMES = {  # at NOISE_LENGTHS, with noise 0.1
    "softmax": (36.2, 44.6, 51.5, 57.6),
    "linear": (5.56, 2.18, 0.80, 0.28),
    "taylor-2": (10.6, 4.5, 1.7, 0.60),
    "power-8": (36.2, 44.4, 49.8, 44.6),
}


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


@pytest.mark.parametrize("one", checks.sweeps(BASE), ids=lambda one: one.key)
def test_shares_of_the_sweeps_are_those_of_the_first_run(one: checks.Sweep) -> None:
    for attention, expected in zip((SOFTMAX, LINEAR), SWEEPS[one.key], strict=True):
        found = one.scores(attention, BASE, 500, 0)
        assert [point.exact_success for point in found] == pytest.approx(expected, abs=SHARE)
        assert checks.draws(found).held


def test_shares_of_another_mechanism_are_not() -> None:
    found = checks.sweeps(BASE)[0].scores(mechanism("taylor-2"), BASE, 100, 0)
    assert [point.exact_success for point in found] != pytest.approx(SWEEPS["a1"][0], abs=SHARE)


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


@pytest.mark.parametrize("name", THRESHOLDS)
def test_thresholds_and_their_growth(name: str) -> None:
    """Those of the first run are the bisection of drawn networks, whose success goes up in steps; two per cent is a step."""
    for n, expected in THRESHOLDS[name].items():
        assert threshold(mechanism(name), at_length(BASE, n)) == pytest.approx(expected, rel=0.02)
    far = [threshold(mechanism(name), Setting(n=n)) or math.nan for n in (1e22, 1e24)]
    assert math.log(far[1] / far[0]) / math.log(100) == pytest.approx(checks.expected_growth(name), abs=0.01)


def test_success_at_the_threshold_is_a_half() -> None:
    a1 = threshold(LINEAR, BASE)
    assert a1 is not None
    assert exact("linear", replace(BASE, a1=0.99 * a1)) < 0.5 <= exact("linear", replace(BASE, a1=1.01 * a1))


def test_noise() -> None:
    for name, expected in D_PRIMES.items():
        found = [d_prime(mechanism(name), at_length(BASE, n), 0.1) for n in NOISE_LENGTHS]
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
    found = [exact("softmax", Setting(scale=scale, a1=a1)) for scale, a1 in SCALES]
    assert found == pytest.approx([0.19, 0.993, 0.0, 0.99, 0.003, 0.993], abs=SHARE)


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
