"""How close linear attention comes to softmax: constructions and bounds of MetaLA, features of LUNA."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from maclaurin.lab.experiments.approximation import luna, metala
from maclaurin.lab.result import Curve, Grid, Plot, Result

Curves = Mapping[str, Mapping[int, float]]
AT_BEST = "What n states leave of a softmax map of 256 tokens: at best, the series, random features."
FITTED = "LUNA's error by projections: fitted networks against the Gaussian kernel, Performer on one pair."
NOTES = (
    "Stick-breaking knows the row it builds and needs a channel per token: a map can be held, not that it can be learnt.",
    "Approximating exp(q·k) is not what LUNA is trained for; its special cases only show what its class contains.",
    "The generalisation bound's constants were not found: only its slope is compared, on random signs and one small layer.",
    "Published figures of LUNA's and MetaLA's trained models are not reproduced here.",
)


def approximation(
    *, quick: bool = False, seed: int = 0, key_dim: int = 6, draws: int | None = None, channels: int | None = None
) -> Result:
    """How close linear attention can come to softmax, and with how large a state: MetaLA's and LUNA's statements.

    key_dim: key channels of the map whose rank is measured. draws: of random projections, for errors against their number.
    channels: of the stick-breaking construction for 16 tokens; a channel per token unless given, and too few with less.
    """
    draws = (64 if quick else 256) if draws is None else draws
    few, most = max(1, draws // 16), 4096 if quick else 16384
    generator = torch.Generator().manual_seed(seed)
    floor, by_states = metala.error_by_states(generator)
    performer, pair = luna.performer_is_a_case(generator, repeats=draws)
    fourier = luna.fourier_features_are_a_case(generator, draws=few)
    split, by_hidden = luna.error_splits(generator, draws=few, most=most)
    cost, seconds = luna.cost_is_linear(seed=seed)
    samples = (32, 128, 512) if quick else (32, 128, 512, 1024)
    gap, by_samples = luna.generalisation_gap(generator, seed=seed, draws=4 if quick else 8, sizes=samples)
    made = [
        *metala.row_sums(generator),
        *metala.stick_breaking(generator, channels=channels),
        *metala.capacity(generator, K=key_dim, bound=key_dim),
        *floor,
        *metala.dynamic_state(generator),
        *metala.unbounded_keys(),
        *metala.augmentation_starts_as_nothing(generator, seed=seed),
        *metala.augmentation_leaves_the_state(generator, seed=seed),
        *metala.gla_with_another_key(generator, seed=seed),
        *metala.quotients_overflow(generator),
        *luna.kernels_are_positive(generator, seed=seed),
        *luna.outputs_are_averages(generator, seed=seed),
        *performer,
        *fourier,
        *luna.fitted_networks(generator),
        *split,
        *luna.rank_is_live_features(generator, seed=seed),
        *cost,
        *gap,
        *luna.start(seed=seed),
    ]
    settings = {"key_dim": key_dim, "draws": draws, "projections up to": most, "channels": channels or 16, "seed": seed}
    states = "Softmax map of 256 tokens, 4 key channels: relative error of the block between its halves"
    sizes = sorted({size for curve in by_states.values() for size in curve})
    grids = [
        Grid(states, ("n", *by_states), [[size, *(curve.get(size) for curve in by_states.values())] for size in sizes]),
        Grid("Processor time of LUNA, one head of 32 channels", ("T", "seconds"), list(seconds.items())),
    ]
    measured, predicted = ({m: both[index] for m, both in pair.items()} for index in (0, 1))
    features = {**by_hidden, "Performer": measured, "predicted": predicted}
    first = min(by_samples)
    gain = {"gain": by_samples, "n^(-1/2)": {n: by_samples[first] * (n / first) ** -0.5 for n in by_samples}}
    plots = [
        _plot("states", AT_BEST, "states n", "error", by_states, "best of rank n"),
        _plot("features", FITTED, "projections m", "error", features, "predicted"),
        _plot("gap", "What one layer of LUNA gains on n random signs.", "n", "gain", gain, "n^(-1/2)"),
    ]
    return Result("approximation", "How close linear attention comes to softmax", settings, made, grids, plots, NOTES)


def _plot(key: str, caption: str, x_title: str, y_title: str, found: Curves, dashed: str) -> Plot:
    curves = [Curve.of(name, points, dashed=name == dashed) for name, points in found.items()]
    return Plot(key, caption, x_title, y_title, curves, log_x=True, log_y=True)
