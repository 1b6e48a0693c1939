"""Every order of the series is a recurrent network, and their sum is the numerator of softmax.

    exp(q·k) = Σ_n (q·k)ⁿ/n!,   (q·k)ⁿ = q^⊗n · k^⊗n,   so order n reads a memory S_t = S_{t-1} + k_t^⊗n v_tᵀ of dⁿ rows.

Three ways to the same numbers: the memory with all dⁿ rows, as the paper has it; the op's memory, which holds each of the
C(d+n-1, n) different monomials once; and the T x T matrix of scores.
"""

# B = 1 batch, T tokens, H = 1 head, K key channels, V value channels

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from maclaurin.ops.features import monomial_count
from maclaurin.ops.power import power_attention
from maclaurin.ops.softmax import softmax_attention

Coefficient = Callable[[int], float]


def taylor_coefficient(order: int) -> float:
    return 1 / math.factorial(order)


def draw(tokens: int, dim: int, spread: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v (1, T, 1, d) in float64; scores have about the standard deviation `spread`."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, 1, tokens, 1, dim, generator=generator, dtype=torch.float64, device="cpu")
    return q * (spread / math.sqrt(dim)), k, v


def term(q: Tensor, k: Tensor, v: Tensor, order: int, form: str) -> Tensor:
    """Σ_s (q_t·k_s)ⁿ v_s for s <= t by the op; "recurrent" goes through its memory at every token."""
    if order == 0:  # every score to the power 0 is the only score of queries and keys that are 1
        q = k = torch.ones_like(q[..., :1])
        order = 1
    y, _ = power_attention(
        q,
        k,
        v,
        order=order,
        scale=1.0,
        normalize=False,
        form=form,
        backend="torch",
        return_state=form == "recurrent",  # the matrix needs no memory, which high orders could not have
        fold_at=1,
        fold_every=1,
    )
    return y


def tensor_network(q: Tensor, k: Tensor, v: Tensor, order: int) -> Tensor:
    """The same by the paper's network, whose memory has a row for each of the dⁿ products of n channels."""
    q_TF, k_TF = (_tensor_power(x[0, :, 0], order) for x in (q, k))
    memory_FV = torch.zeros(k_TF.shape[1], v.shape[3], dtype=v.dtype, device="cpu")
    outputs = []
    for q_F, k_F, v_V in zip(q_TF, k_TF, v[0, :, 0], strict=True):
        memory_FV = memory_FV + k_F[:, None] * v_V
        outputs.append(q_F @ memory_FV)
    return torch.stack(outputs)[None, :, None]


def _tensor_power(x_TK: Tensor, order: int) -> Tensor:
    power = torch.ones_like(x_TK[:, :1])
    for _ in range(order):
        power = (power[:, :, None] * x_TK[:, None]).flatten(1)
    return power


@dataclass(frozen=True)
class OrderCheck:
    """error: the largest distance between any two of the three ways, relative to the largest output."""

    order: int
    tensor_rows: int
    op_rows: int
    error: float


def check_order(order: int, tokens: int, dim: int, spread: float, seed: int) -> OrderCheck:
    q, k, v = draw(tokens, dim, spread, seed)
    matrix = term(q, k, v, order, "parallel")
    others = (term(q, k, v, order, "recurrent"), tensor_network(q, k, v, order))
    error = max(_distance(other, matrix) for other in others)
    return OrderCheck(order, dim**order, monomial_count(dim, order), error)


def check_sum(
    orders: int, tokens: int, dim: int, spread: float, seed: int, coefficient: Coefficient = taylor_coefficient
) -> tuple[float, float]:
    """Σ c_n·(network of order n), n = 0 … orders, against the numerator of softmax, and divided by its own sum against
    softmax: relative distances.
    """
    q, k, v = draw(tokens, dim, spread, seed)
    ones = torch.ones_like(v[..., :1])
    wide = torch.cat([v, ones], dim=-1)  # the last column sums the weights
    total = torch.zeros_like(wide)
    for order in range(orders + 1):
        total += coefficient(order) * term(q, k, wide, order, "parallel")
    scores = torch.einsum("bthk,bshk->bhts", q, k)
    numerator = torch.einsum("bhts,bshv->bthv", scores.exp().tril(), wide)
    softmax, _ = softmax_attention(q, k, v, scale=1.0, form="parallel", backend="torch")
    return _distance(total, numerator), _distance(total[..., :-1] / total[..., -1:], softmax)


def _distance(one: Tensor, other: Tensor) -> float:
    return ((one - other).abs().max() / other.abs().max()).item()
