"""Rotation: each claim holds as it is stated, and does not where its condition is broken."""

from __future__ import annotations

import math

import pytest

from maclaurin.lab.experiments.draws import slope
from maclaurin.lab.experiments.rotation import as_rope, complex_form, cyclic, group_claims, parity, relative_phase, rotation
from maclaurin.lab.experiments.rotation.fourier import attention_errors, kernel_errors, recurrence, ripple_part


def test_all_claims_hold_and_the_result_is_drawn() -> None:
    result = rotation(quick=True, draws=100)
    assert [claim.key for claim in result.claims if claim.held is False] == []
    assert {plot.key for plot in result.plots} == {"features", "ripple"} and "seed 0" in result.plot()[0].caption


def test_decays_that_do_not_come_in_pairs_are_no_complex_recurrence() -> None:
    assert complex_form(0).held
    assert not complex_form(0, tied=False).held


def test_only_relative_phases_matter_with_tied_decays() -> None:
    assert all(claim.held for claim in relative_phase(3))


def test_another_speed_is_not_rope() -> None:
    held = {claim.key: claim.held for claim in as_rope(0, speed=1.01)}
    assert held == {"rope": False, "norm": True}


def test_the_hidden_recurrence_needs_its_rotation() -> None:
    assert recurrence(1) < 1e-12
    assert recurrence(1, turn=0.9) > 1e-2


def test_random_features_err_as_their_variance_says() -> None:
    measured, predicted = kernel_errors(5, (64, 1024), 400)
    assert measured == pytest.approx(predicted, rel=0.2)
    assert slope((256, 4096), attention_errors(5, (256, 4096))) == pytest.approx(-0.5, abs=0.2)


def test_parity_needs_turns_of_pi() -> None:
    assert parity(1, 300) == (pytest.approx(0, abs=1e-12), 0.0)
    held = {claim.key: claim.held for claim in group_claims(1, 300, turn=3.0)}
    assert not held["parity"] and not held["parity signs"] and held["Z3"]


def test_sums_modulo_seven() -> None:
    assert cyclic(2, 7, 200) < 1e-9


def test_ripples_need_the_right_decays() -> None:
    wrong = {claim.key: claim.held for claim in ripple_part((0.97, 0.97, 1.0, 1.0)).claims}
    assert not any(wrong.values())


@pytest.mark.parametrize("arguments", [{"speed": 0.0}, {"length": 1}])
def test_bad_arguments_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        rotation(**arguments)


def test_a_wrong_turn_makes_the_result_say_so() -> None:
    result = rotation(quick=True, draws=20, turn=math.pi / 2, length=50)
    assert not result.held
