"""Every mixer as a linear time-varying system (DSF): Λ, B, C, D, its kernel, its eigenvalues and its rank."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from maclaurin.lab import claims
from maclaurin.lab.experiments.draws import normal
from maclaurin.lab.experiments.dynamics import checks
from maclaurin.lab.experiments.dynamics.convert import ORDER, drawn, form_error, to_dsf
from maclaurin.lab.experiments.dynamics.system import System
from maclaurin.lab.result import Curve, Grid, Matrix, Part, Plot, Result
from maclaurin.mixers import available_mixers

__all__ = ["System", "dynamics", "form_error", "to_dsf"]

EXACT = 1e-10  # of float64, relative: sums over a hundred tokens, and quotients of them, lose a few digits
WINDOW = 8  # of the sliding window: its default is longer than the sequence
BETWEEN_ZERO_AND_ONE = ("s6", "ssd", "qlstm", "rglru")
DRAWN = ("softmax", "linear", "2mamba", "normalized", "mamba2", "delta", "s6")
EDGES = [(2 * index - 1) / 20 for index in range(22)]  # 1 is the middle of a bin
CENTRES = [(low + high) / 2 for low, high in pairwise(EDGES)]
MODULI = "Moduli of the eigenvalues of Λ_t, all tokens and heads, in bins of 0.1 around 0, 0.1, …, 2; some lie beyond."
MOMENTS = tuple(f"|λ| {kind}" for kind in ("min", "median", "max", "> 1"))
COLUMNS = ("mixer", "Λ", "states per channel", "states", "error", *MOMENTS, "block rank")
NOTES = (
    "Parameters are those of the initialisation, zeros drawn from N(0, 1), on random tokens: a trained model has others.",
    "Matrices depend on the tokens: the system says how values are carried, not how queries, keys and gates are made.",
    "Softmax, 2mamba-e, fox and gated-softmax have no finite state; theirs is the series up to `order`, with its error.",
    f"The window of sliding-window is {WINDOW}. The block rank is that of the map between the halves, of the first head.",
)


def dynamics(
    *,
    quick: bool = False,
    seed: int = 0,
    mixer: str | None = None,
    d_model: int = 16,
    num_heads: int = 4,
    length: int = 32,
    order: int = ORDER,
    draws: int | None = None,
    printed: bool = False,
) -> Result:
    """Every mixer as a linear time-varying system h = Λh + Bu, y = Ch + Du (DSF): form, eigenvalues, rank.

    mixer: one of the registry, with its map and all of its eigenvalues; all mixers and DSF's statements unless given.
    d_model, num_heads, length: the size of the mixers and of the sequence. order: where the series of softmax is cut off.
    draws: random draws for the share of eigenvalues above 1. printed: B as DSF's equation (15b) prints it, which is wrong.
    """
    names = available_mixers() if mixer is None else [mixer]
    draws = (100 if quick else 1000) if draws is None else draws
    generator = torch.Generator().manual_seed(seed)
    x = normal(1, length, d_model, generator=generator)
    members = {name: _member(name, d_model, num_heads, seed, x, order) for name in names}
    made = [claim for claim, _, _ in members.values()]
    systems = {name: system for name, (_, system, _) in members.items() if system is not None}
    rows = [row for _, system, row in members.values() if system is not None]
    plots: list[Plot | Matrix] = []
    if systems:
        shown = {name: system.histogram(EDGES) for name, system in systems.items() if mixer or name in DRAWN}
        curves = [Curve(name, CENTRES, shares) for name, shares in shown.items()]
        plots.append(Plot("eigenvalues", MODULI, "modulus of an eigenvalue", "share", curves))
    if mixer is None:
        statements = _statements(generator, seed, systems, draws, printed)
        made += statements.claims
        plots += statements.plots
    elif systems:
        caption = "The map of head 0: how much of u_s is in y_t."
        plots.append(Matrix("map-head-0", caption, "s", "t", systems[mixer].weights()[0].tolist()))
    size = {"d_model": d_model, "num_heads": num_heads, "length": length, "order": order, "draws": draws, "seed": seed}
    settings = {"mixers": mixer or "all"} | size | ({"printed": True} if printed else {})
    grids = [Grid(f"Systems on one sequence of {length} tokens", COLUMNS, rows)] if rows else []
    return Result("dynamics", "Mixers as linear time-varying systems", settings, made, grids, plots, NOTES)


def _member(
    name: str, d_model: int, num_heads: int, seed: int, x: Tensor, order: int
) -> tuple[claims.Claim, System | None, list[Any]]:
    mixer = drawn(name, d_model, num_heads, seed, **({"window": WINDOW} if name == "sliding-window" else {}))
    text = f"{name} as h = Λh + Bu, y = Ch + Du: error against the mixer, relative"
    try:
        system = to_dsf(mixer, x, order=order)
    except ValueError as refusal:
        return claims.not_applicable(f"form {name}", text, str(refusal)), None, []
    error = form_error(system, mixer, x)
    claim = claims.at_most(f"form {name}", text, error, EXACT)
    if system.order is not None:
        orders = [*range(2, order, 2), order]
        errors = [*(form_error(to_dsf(mixer, x, order=cut), mixer, x) for cut in orders[:-1]), error]
        falls = all(later < earlier for earlier, later in pairwise(errors))
        text = f"{name} with its series cut at order {', '.join(map(str, orders))}: the error against the mixer falls"
        claim = claims.true(f"form {name}", text, " ".join(f"{value:.1e}" for value in errors), falls, "falls")
    moduli = system.eigenvalues().abs()
    sizes = (system.states, system.inputs[0].numel() * system.states)
    spread = (moduli.min(), moduli.median(), moduli.max(), (moduli > 1 + 1e-12).double().mean())
    kind, figures = "diagonal" if system.diagonal else "full", [figure.item() for figure in spread]
    return claim, system, [name, kind, *sizes, f"{error:.1e}", *figures, system.block_rank()[0]]


def _statements(generator: torch.Generator, seed: int, systems: dict[str, System], draws: int, printed: bool) -> Part:
    series = checks.truncated_series(generator)
    made = [
        *checks.recurrence_is_attention(generator, as_printed=printed),
        *checks.selective_scan_is_its_system(generator),
        *checks.softplus_is_a_reversed_sigmoid(generator),
        *series.claims,
        *checks.rank_of_kernels(generator),
        *checks.rank_of_blocks(generator),
        *checks.more_states(generator),
        *checks.eigenvalues_above_one(generator, draws=draws),
        *checks.eigenvalues_of_recurrences({name: systems[name] for name in BETWEEN_ZERO_AND_ONE}),
        *checks.normalised_attention(generator, seed=seed),
        *checks.one_query(generator),
    ]
    return Part(made, plots=series.plots)
