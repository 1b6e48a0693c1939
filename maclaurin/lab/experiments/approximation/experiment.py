"""The experiment: how close linear attention comes to softmax (MetaLA), and what its features can be (LUNA)."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from maclaurin.lab.claims import Claim
from maclaurin.lab.experiments.approximation import luna, metala, states
from maclaurin.lab.result import Curve, Grid, Plot, Result


def approximation(
    *, quick: bool = False, seed: int = 0, key_dim: int = 6, draws: int | None = None, channels: int | None = None
) -> Result:
    """How close linear attention can come to softmax, and with how large a state: MetaLA's and LUNA's statements.

    key_dim: key channels of the map whose rank is measured. draws: of random projections, for errors against their number.
    channels: of the stick-breaking construction for 16 tokens; a channel a token unless given, and too few with less.
    """
    draws = (64 if quick else 256) if draws is None else draws
    most = 4096 if quick else 16384
    generator = torch.Generator().manual_seed(seed)
    floor, by_states = states.error_by_states(generator)
    performer, pair = luna.performer_is_a_case(generator, repeats=draws)
    fourier = luna.fourier_features_are_a_case(generator, draws=max(1, draws // 16))
    split, by_hidden = luna.error_splits(generator, draws=max(1, draws // 16), most=most)
    cost, seconds = luna.cost_is_linear(seed=seed)
    sizes = (32, 128, 512) if quick else (32, 128, 512, 1024)
    gap, by_samples = luna.generalisation_gap(generator, seed=seed, draws=4 if quick else 8, sizes=sizes)
    made: list[Claim] = [
        *metala.forms_agree(generator),
        *metala.row_sums(generator),
        *metala.stick_breaking(generator, channels=channels),
        *metala.capacity(generator, K=key_dim, bound=key_dim),
        *floor,
        *metala.dynamic_memory(generator),
        *metala.unbounded_keys(),
        *metala.augmentation_starts_as_nothing(generator, seed=seed),
        *metala.augmentation_leaves_the_memory(generator, seed=seed),
        *metala.hand_over(generator, seed=seed),
        *metala.gla_with_another_key(generator, seed=seed),
        *metala.quotients_overflow(generator),
        *luna.kernels_are_positive(generator, seed=seed),
        *luna.outputs_are_averages(generator, seed=seed),
        *luna.forms_agree(generator, seed=seed),
        *performer,
        *fourier,
        *luna.fitted_networks(generator),
        *split,
        *luna.rank_is_live_features(generator, seed=seed),
        *cost,
        *gap,
        *luna.start(seed=seed),
    ]
    return Result(
        "approximation",
        "How close linear attention comes to softmax",
        {"key_dim": key_dim, "draws": draws, "projections up to": most, "channels": channels or 16, "seed": seed},
        made,
        [
            Grid(
                "Softmax map of 256 tokens, 4 key channels: relative error of the block between its halves",
                *_table(by_states),
            ),
            Grid(
                "Processor time of LUNA, one head of 32 channels", ("T", "seconds"), [list(pair) for pair in seconds.items()]
            ),
        ],
        [
            _plot(
                "states",
                "What n states leave of a softmax map of 256 tokens: at best, the series, random features.",
                "states n",
                by_states,
                dashed=("best of rank n",),
            ),
            _plot(
                "features",
                "LUNA's error by projections: fitted networks against the Gaussian kernel, Performer on one pair.",
                "projections m",
                {
                    **by_hidden,
                    "Performer": {m: measured for m, (measured, _) in pair.items()},
                    "predicted": {m: predicted for m, (_, predicted) in pair.items()},
                },
                dashed=("predicted",),
            ),
            _plot(
                "gap",
                "What one layer of LUNA gains on n random signs.",
                "n",
                {"gain": by_samples, "n^(-1/2)": _root(by_samples)},
                dashed=("n^(-1/2)",),
            ),
        ],
        NOTES,
    )


NOTES = (
    "Stick-breaking knows the row it builds and needs a channel a token: a map can be held, not that it can be learnt.",
    "Approximating exp(q·k) is not what LUNA is trained for; its special cases only show what its class contains.",
    "The generalisation bound's constants were not found: only its slope is compared, on random signs and one small layer.",
    "Published figures of LUNA's and MetaLA's trained models are not reproduced here.",
)


def _table(curves: Mapping[str, Mapping[int, float]]) -> tuple[tuple[str, ...], list[list[str | float | int | None]]]:
    sizes = sorted({size for curve in curves.values() for size in curve})
    return ("n", *curves), [[size, *(curve.get(size) for curve in curves.values())] for size in sizes]


def _plot(
    key: str, caption: str, x_title: str, curves: Mapping[str, Mapping[int, float]], dashed: tuple[str, ...] = ()
) -> Plot:
    lines = [Curve(name, list(curve), list(curve.values()), dashed=name in dashed) for name, curve in curves.items()]
    return Plot(key, caption, x_title, "error" if key != "gap" else "gain", lines, log_x=True, log_y=True)


def _root(curve: Mapping[int, float]) -> dict[int, float]:
    """Through its first point."""
    first = min(curve)
    return {n: curve[first] * (n / first) ** -0.5 for n in curve}
