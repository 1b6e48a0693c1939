"""Where a state has no digits left: its denominator is smaller than the rounding error of the terms that it sums.

For a kernel that is never negative an output is an average of values. The state's share of the denominator,
Σ_j w_j f(q·k_j) = φ(q)·Σ_j w_j φ(k_j), is a sum over features. Its terms of order n are as large as c_n |q|ⁿ Σ_j w_j |k_j|ⁿ
and cancel where q and the keys are nearly orthogonal. |k|ⁿ is itself a sum of monomials of order n, for even n those that
are squares, so Σ_j w_j |k_j|ⁿ stands in the state. Odd orders of the exponential's series lie below their even neighbours.
"""

# N heads of the batch, Q queries, K key channels, F monomials, O orders

from __future__ import annotations

import torch
from torch import Tensor

from maclaurin.ops.features import Kernel, squares

ROUNDING = 2  # machine epsilons of the largest terms, times the order: a monomial of order n is rounded n times


def above_rounding(
    read_NQ1: Tensor, q_NQK: Tensor, totals_NF: Tensor, kernel: Kernel, order_weights_NO: Tensor | None
) -> Tensor:
    """Which denominators (N,Q,1), read from the totals of the state in the basis of plain monomials, have digits.

    Dividing by the others would give values of any size. Where a head weighs an order by less than zero its outputs are
    no averages, and all that it reads is used.
    """
    square_NQ1 = q_NQK.square().sum(-1, keepdim=True)
    error_NQ1 = torch.zeros_like(read_NQ1)
    for position, index_E, weights_E in squares(kernel, q_NQK.shape[-1], totals_NF.dtype, totals_NF.device):
        order = kernel.orders[position]
        size_N = totals_NF[:, index_E] @ weights_E
        if order_weights_NO is not None:
            size_N = size_N * order_weights_NO[:, position]
        error_NQ1 = error_NQ1 + ROUNDING * order * size_N[:, None, None] * square_NQ1 ** (order // 2)
    used_NQ1 = read_NQ1 > torch.finfo(read_NQ1.dtype).eps * error_NQ1
    if order_weights_NO is None:
        return used_NQ1
    return used_NQ1 | (order_weights_NO < 0).any(1)[:, None, None]
