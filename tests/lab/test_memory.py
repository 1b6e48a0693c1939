"""Memory: counted bytes, crossovers and cost, and what the lab says if they are not as claimed."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from maclaurin.common.timing import Timing
from maclaurin.lab.experiments.memory import (
    Cost,
    byte_claims,
    cost_claims,
    crossover,
    crossover_claims,
    crossovers,
    memory,
    multiply_adds,
    predicted,
    states,
)
from maclaurin.mixers import build_mixer
from maclaurin.mixers.overview import crossover_length


def test_the_published_crossover() -> None:
    found = crossover(64, 1, 1, torch.float32)
    assert (found.measured, found.predicted) == (1058, 1058)
    assert predicted(64, 1, 1, 2) == 2114 and crossover(64, 1, 1, torch.bfloat16).measured == 2115


def test_a_growing_state_never_crosses() -> None:
    assert crossover_length(build_mixer("fox", 32, 2)) is None


def test_a_wrong_crossover_is_not_held() -> None:
    right = crossovers(64)
    assert all(claim.held for claim in crossover_claims(right, 64))
    wrong = [each._replace(measured=each.measured + 3) for each in right]
    held = {claim.key: claim.held for claim in crossover_claims(wrong, 64)}
    assert not held["1058"] and not held["formula"]


def test_multiply_adds_are_weights_and_state() -> None:
    mixer = build_mixer("softmax", 32, 4, num_kv_heads=2)
    weights = sum(parameter.numel() for parameter in mixer.parameters())
    state = states(mixer, [10, 20], 0)[20]
    # 20 keys and values of 2 heads of 8 channels, each read by 2 heads
    assert multiply_adds(mixer, state) == weights + 20 * 2 * 2 * 8 * 2
    linear = build_mixer("linear", 32, 4)
    weights = sum(parameter.numel() for parameter in linear.parameters())
    assert multiply_adds(linear, states(linear, [10], 0)[10]) == weights + 2 * 4 * 8 * 9


def cost(context: int, nbytes: int, ms: float) -> Cost:
    return Cost(context, nbytes, nbytes, 1, Timing(ms, ms, ms))


def test_a_state_that_grows_is_not_fixed() -> None:
    growing, fixed = [cost(100, 100, 1.0), cost(400, 400, 4.0)], [cost(100, 100, 1.0), cost(400, 100, 1.0)]
    assert all(claim.held for claim in cost_claims({"a": fixed, "b": growing}, {"a": 50, "b": None}))
    assert not any(claim.held for claim in cost_claims({"a": growing, "b": fixed}, {"a": 50, "b": None}))


def test_a_mixer_that_miscounts_is_named() -> None:
    right = {"a": [cost(100, 100, 1.0)]}
    (held,) = byte_claims(right)
    (not_held,) = byte_claims(right | {"b": [dataclasses.replace(right["a"][0], predicted_nbytes=99)]})
    assert held.held and not not_held.held and "b at 100" in not_held.measured


def test_the_experiment_on_a_few_mixers() -> None:
    result = memory(dim=8, heads=2, contexts=(64, 256), mixers=("softmax", "2mamba", "gla"), seconds=0.0)
    held = {claim.key: claim.held for claim in result.claims}
    assert held["bytes"] and held["1058"] and held["growing bytes"] and held["fixed bytes"]
    assert {plot.key for plot in result.plots} == {"bytes", "times", "multiply-adds"}


def test_bad_contexts_are_refused() -> None:
    with pytest.raises(ValueError, match="contexts must be"):
        memory(contexts=(5,))
