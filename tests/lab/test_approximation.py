"""MetaLA's and LUNA's statements hold where they are true, and are reported as not held where they are made false."""

from __future__ import annotations

import pytest
import torch
from torch import Generator

from maclaurin.lab.experiments.approximation import luna, metala


def generator(seed: int = 0) -> Generator:
    return torch.Generator().manual_seed(seed)


def verdicts(made) -> dict[str, bool | None]:
    return {claim.key: claim.held for claim in made}


CHEAP = {
    "sums": lambda: metala.row_sums(generator()),
    "sticks": lambda: metala.stick_breaking(generator()),
    "capacity": lambda: metala.capacity(generator()),
    "memory": lambda: metala.dynamic_state(generator()),
    "keys": metala.unbounded_keys,
    "start": lambda: metala.augmentation_starts_as_nothing(generator(), seed=0),
    "augmentation": lambda: metala.augmentation_leaves_the_state(generator(), seed=0),
    "gla": lambda: metala.gla_with_another_key(generator(), seed=0),
    "overflow": lambda: metala.quotients_overflow(generator()),
    "positive": lambda: luna.kernels_are_positive(generator(), seed=0),
    "averages": lambda: luna.outputs_are_averages(generator(), seed=0),
    "performer": lambda: luna.performer_is_a_case(generator(), repeats=64)[0],
    "fourier": lambda: luna.fourier_features_are_a_case(generator(), draws=4),
    "fit": lambda: luna.fitted_networks(generator()),
    "split": lambda: luna.error_splits(generator(), draws=4, most=1024)[0],
    "rank": lambda: luna.rank_is_live_features(generator(), seed=0),
    "new": lambda: luna.start(seed=0),
    "states": lambda: metala.error_by_states(generator())[0],
}


@pytest.mark.parametrize("name", CHEAP)
def test_the_statements_hold(name):
    made = CHEAP[name]()
    assert made
    assert all(claim.held for claim in made), made


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_they_hold_for_other_draws(seed):
    """None of them by the luck of one seed."""
    made = [
        *metala.stick_breaking(generator(seed)),
        *metala.augmentation_starts_as_nothing(generator(seed), seed=seed),
        *metala.gla_with_another_key(generator(seed), seed=seed),
        *luna.kernels_are_positive(generator(seed), seed=seed),
        *luna.fourier_features_are_a_case(generator(seed), draws=8),
        *luna.fitted_networks(generator(seed)),
        *luna.rank_is_live_features(generator(seed), seed=seed),
    ]
    assert all(claim.held for claim in made), made


FALSE = {
    "too few channels": (lambda: metala.stick_breaking(generator(), channels=12), ["M3", "M3 logs"]),
    "a rank below the channels": (lambda: metala.capacity(generator(), K=7, bound=6), ["M4"]),
    "a fixed decay": (lambda: metala.dynamic_state(generator(), decay="fixed"), ["M5"]),
    "no decay": (lambda: metala.dynamic_state(generator(), decay="none"), ["M5"]),
    "an augmentation": (lambda: metala.augmentation_starts_as_nothing(generator(), seed=0, weight=1.0), ["M7"]),
    "a key of its own": (lambda: metala.gla_with_another_key(generator(), seed=0, own_key=True), ["M10"]),
    "a slow decay": (lambda: metala.quotients_overflow(generator(), log_alpha=-0.01), ["M11"]),
    "an indefinite kernel": (lambda: luna.kernels_are_positive(generator(), seed=0, sign=-1.0), ["L1 ReLU", "L1 signed"]),
    "signed features": (lambda: luna.outputs_are_averages(generator(), seed=0, nonneg=False), ["L2 averages"]),
    "another function": (
        lambda: luna.performer_is_a_case(generator(), repeats=4, psi=torch.cosh)[0],
        ["L4", "L4 m=1024", "L4 m=4096", "L4 m=16384"],
    ),
    "no sine": (
        lambda: luna.fourier_features_are_a_case(generator(), draws=1, waves=(torch.cos, torch.cos)),
        ["L5 m=64", "L5 m=256", "L5 m=1024", "L5 m=4096"],
    ),
    "few hidden units": (lambda: luna.fitted_networks(generator(), hidden=8), ["L6 fit"]),
    "few points": (lambda: luna.rank_is_live_features(generator(), seed=0, points=50), ["L8"]),
}


@pytest.mark.parametrize("name", FALSE)
def test_what_is_false_is_reported(name):
    run, expected = FALSE[name]
    held = verdicts(run())
    assert [key for key in held if held[key] is False] == expected


def test_cost_of_softmax_is_not_linear(monkeypatch):
    """Processor time of a quadratic mixer, with a clock that counts what it does."""
    ticks = iter(float(length) ** 2 for length in (1024, 2048, 4096, 8192, 16384) for _ in range(3))
    elapsed = [0.0, False]

    def clock() -> float:
        if elapsed[1]:
            elapsed[0] += next(ticks)
        elapsed[1] = not elapsed[1]
        return elapsed[0]

    monkeypatch.setattr(luna.time, "process_time", clock)
    held = verdicts(luna.cost_is_linear(seed=0)[0])
    assert held == {"L9 time": False, "L9 state": True}


@pytest.mark.slow
def test_cost_of_luna_is_linear_and_of_softmax_not():
    assert all(claim.held for claim in luna.cost_is_linear(seed=0)[0])
    assert verdicts(luna.cost_is_linear(seed=0, name="softmax")[0]) == {"L9 time": False, "L9 state": False}


@pytest.mark.slow
@pytest.mark.parametrize("learnable", [False, True])
def test_only_random_signs_are_unlearnt_with_more_of_them(learnable):
    (claim,), _ = luna.generalisation_gap(generator(), seed=0, draws=4, sizes=(32, 512), learnable=learnable)
    assert claim.held is not learnable


def test_a_state_of_n_numbers_has_a_floor():
    _, curves = metala.error_by_states(generator(), T=64, seeds=2)
    best = list(curves["best of rank n"].values())
    assert best == sorted(best, reverse=True)
    assert all(curves["series"][n] >= best for n, best in curves["best of rank n"].items() if n in curves["series"])
