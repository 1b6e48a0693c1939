"""What n states a channel leave of a softmax map: at best, with the series, with random features."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from maclaurin.lab import claims
from maclaurin.lab.claims import Claim
from maclaurin.lab.experiments.dynamics.checks import normal
from maclaurin.mixers.feature_maps import PerformerMap
from maclaurin.ops.features import Kernel

Curves = dict[str, dict[int, float]]  # name -> error by number of states


def error_by_states(generator: Generator, *, T: int = 256, K: int = 4, seeds: int = 5) -> tuple[list[Claim], Curves]:
    """Relative errors of the block of weights between the second half and the first, which tells what a state must carry.

    Nothing with n states comes nearer than the best matrix of rank n (Eckart, Young).
    """
    q, k = normal(T, K, generator=generator), normal(T, K, generator=generator)
    wanted = _block((q @ k.T * K**-0.5).exp())
    values = torch.linalg.svdvals(wanted).square()
    orders = range(1, 7)
    kernels = {order: Kernel.of(range(order + 1)) for order in orders}
    sizes = [kernel.feature_count(K) for kernel in kernels.values()]
    curves: Curves = {
        "best of rank n": {n: ((values[n:].sum() / values.sum()).sqrt()).item() for n in sizes if n < T // 2},
        # odd orders may divide by a sum that is not positive
        "series": {
            kernels[order].feature_count(K): _left(_series(kernels[order], q, k), wanted)
            for order in orders
            if order % 2 == 0
        },
        "Performer": {n: sum(_left(_performer(q, k, n, seed), wanted) for seed in range(seeds)) / seeds for n in sizes},
    }
    best = curves["best of rank n"]
    share = min(curves[name][n] / best[n] for name in ("series", "Performer") for n in curves[name] if n in best)
    text = "the smallest error of series and random features over that of the best matrix of the same rank"
    return [claims.at_least("M4 floor", text, share, 1.0)], curves


def _block(weights_TT: Tensor) -> Tensor:
    weights_TT = weights_TT.tril()
    half = weights_TT.shape[0] // 2
    return (weights_TT / weights_TT.sum(-1, keepdim=True))[half:, :half]


def _left(found: Tensor, wanted: Tensor) -> float:
    return ((found - wanted).norm() / wanted.norm()).item()


def _series(kernel: Kernel, q: Tensor, k: Tensor) -> Tensor:
    return _block(kernel.features(q * q.shape[1] ** -0.5) @ kernel.features(k).T)


def _performer(q: Tensor, k: Tensor, features: int, seed: int) -> Tensor:
    made = PerformerMap(q.shape[1], features, seed=seed).double()
    with torch.no_grad():
        return _block(made(q[None, :, None])[0, :, 0] @ made(k[None, :, None])[0, :, 0].T)
