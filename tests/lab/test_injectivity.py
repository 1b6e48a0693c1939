"""Injectivity: collisions are found where they are, and only there."""

from __future__ import annotations

import pytest
import torch

from maclaurin.lab.experiments.injectivity import (
    NEGATIVE,
    TOLERANCE,
    TOLERANCES,
    Confusion,
    claims_of,
    confusion,
    heads_output,
    told_apart,
)
from maclaurin.lab.experiments.injectivity.collisions import Draw, all_checks, first_order, rank_condition
from maclaurin.lab.traces import Traced
from maclaurin.mixers import build_mixer, weights
from maclaurin.mixers.projected import ProjectedMixer
from maclaurin.ops.arithmetic import repeat_heads


def draw(**changed: object) -> Draw:
    return Draw.of(50, 8, 0, **{"ties": False, "inline_scale": None} | changed)


@pytest.mark.parametrize("seed", range(12))
def test_all_checks_hold(seed: int) -> None:
    """At every seed: what varies between draws is claimed of their median."""
    failed = [claim for claim in all_checks(Draw.of(50, 8, seed, ties=False, inline_scale=None)) if not claim.held]
    assert not failed


def test_a_channel_that_is_the_same_in_all_keys_is_noticed() -> None:
    held = {claim.key: claim.held for claim in rank_condition(draw(ties=True))}
    assert held == {"I5 tied": True, "I5": False, "I6 rank": False, "I6": False}


def test_inline_is_first_order_of_softmax_at_one_scale_only() -> None:
    assert not any(claim.held for claim in first_order(draw(inline_scale=1.0)))


def test_a_scale_that_is_too_small_breaks_the_bound() -> None:
    held = {claim.key: claim.held for claim in rank_condition(draw(inline_scale=0.01))}
    assert held["I6 rank"] and not held["I6"]


def test_which_mixers_confuse_which_queries() -> None:
    """Dividing by a sum, or norming the output, loses a query's length; an even power its sign; softmax nothing."""
    ray, sign, other = "a ray, q and 3q", "a sign, q and −q", "another, q and q'"
    confused = {"linear": {ray, NEGATIVE}, "2mamba": {ray, sign, NEGATIVE}, "gla": {ray, NEGATIVE}, "softmax": set()}
    for name, expected in confused.items():
        changes = told_apart(name)
        assert changes is not None
        assert {pair for pair, change in changes.items() if change < 1e-5} == expected
        assert changes[other] > 0.1
    assert told_apart("rglru") is None


OPTIONS = {
    "softmax": {},
    "linear": {},
    "inline": {"local_residual": False},
    "taylor": {},
    "2mamba": {},
    "2mamba-e": {},
    "hedgehog": {},
    "sliding-window": {"window": 5},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_written_out_weights_are_the_mixers(name: str) -> None:
    torch.manual_seed(0)
    mixer = build_mixer(name, 16, 4, num_kv_heads=2, **OPTIONS[name]).double()
    assert isinstance(mixer, ProjectedMixer)
    x = torch.randn(2, 12, 16, dtype=torch.float64)
    with torch.no_grad():
        p = mixer.project(x)
        expected = torch.einsum("bhts,bshv->bthv", weights.of_mixer(mixer, p), repeat_heads(p.v, 4)).flatten(2)
        found = heads_output(mixer, x, mixer.qkv_proj(x))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_weights_of_an_output_behind_a_delta_rule_are_refused() -> None:
    mixer = build_mixer("delta", 16, 2)
    assert isinstance(mixer, ProjectedMixer)
    with pytest.raises(ValueError, match="Delta has no weights"):
        weights.of_mixer(mixer, mixer.project(torch.randn(1, 4, 16)))


@pytest.mark.parametrize(("name", "low", "high"), [("softmax", 0.0, 0.0), ("linear", 0.9, 1.0)])
def test_confusion_counts_queries_on_a_ray(name: str, low: float, high: float) -> None:
    """Tokens that differ in length only: linear attention confuses all of them, softmax none."""
    torch.manual_seed(0)
    mixer = build_mixer(name, 8, 1, causal=False, **({"rotary": "none"} if name == "softmax" else {}))
    with torch.no_grad():
        mixer.qkv_proj.weight.abs_()
    x = torch.linspace(1, 5, 10)[None, :, None] * torch.rand(8)
    found = confusion(Traced(name, mixer, lambda: mixer(x)[0], (2, 5), 10, [name]))
    assert found.of == 45 and low <= found.pairs / found.of <= high
    assert found.shares[TOLERANCES.index(TOLERANCE)] == pytest.approx(found.pairs / found.of)
    assert found.shares == sorted(found.shares)


@pytest.mark.parametrize(
    ("pairs", "held"),
    [
        ({"softmax": 0.0, "linear": 50.0, "inline": 1.0}, [True, True, True]),
        ({"softmax": 50.0, "linear": 50.0, "inline": 50.0}, [False, True, False]),
        ({"softmax": 0.0, "linear": 0.0, "inline": 0.0}, [True, False, None]),
    ],
)
def test_the_counts_decide(pairs: dict[str, float], held: list[bool | None]) -> None:
    found = [Confusion(name, count, 100.0, [], []) for name, count in pairs.items()]
    assert [claim.held for claim in claims_of(found, None)] == held
    assert [claim.held for claim in claims_of(found, "a folder")] == [None]
