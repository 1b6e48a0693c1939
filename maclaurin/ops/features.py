"""The symmetric feature map: φ(x)·φ(y) = Σ_n c_n (x·y)ⁿ with as few entries as there are distinct monomials.

Order n has C(d+n-1, n) monomials x_{i1}…x_{in}, i1 <= … <= in, in lexicographic order (for n = 2: the rows of the upper
triangle). Each stands for `multiplicity` equal terms of (x·y)ⁿ, whose root goes on both sides (√2 off the diagonal).

The monomials that start with x_p are x_p times a *suffix* of those of order n-1, so an expansion is d products of
contiguous blocks. On a CPU that runs 4 to 20 times faster than gathering the factors by index, except for a handful of
tokens, where d calls cost more than the gather.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, wraps
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from maclaurin.ops.transforms import is_transformed, outside_transforms, twice_differentiable

R = TypeVar("R")

GATHER_BELOW = 8  # tokens per head
HIGHEST_ORDER = 170  # whose factorial float64 holds


def monomial_count(dim: int, order: int) -> int:
    return math.comb(dim + order - 1, order)


def multiplicity(dim: int, order: int) -> Tensor:
    """How many ordered index tuples give each monomial, float64, in the order of the features."""
    counts = [float(math.factorial(order))]
    for monomials in _growing(dim, order):
        counts = [counts[parent] / run for parent, run in monomials]  # a run of m equal indices divides by m!, step by step
    return torch.tensor(counts, dtype=torch.float64, device="cpu")


def power_of_norm(dim: int, order: int) -> list[float]:
    """For an even order, the weights of its monomials in |x|^order = (Σ x_i²)^(order/2): zero but for squares."""
    counts, runs = [float(math.factorial(order // 2))], [0]
    for monomials in _growing(dim, order):
        # an index that comes an odd number of times makes no square, and m pairs of it divide by m!
        kept = [0.0 if run == 1 and runs[parent] % 2 else counts[parent] for parent, run in monomials]
        counts = [count if run % 2 else count / (run / 2) for count, (_, run) in zip(kept, monomials, strict=True)]
        runs = [run for _, run in monomials]
    return [0.0 if run % 2 else count for count, run in zip(counts, runs, strict=True)]


def _growing(dim: int, order: int) -> Iterator[list[tuple[int, int]]]:
    """The monomials of orders 1, 2, … in lexical order: which of one order less they continue, by what run of equal indices.

    Behind each of those there are stands every index from the last one on. In plain numbers, so that a graph which is
    traced or exported holds the result and not the way to it.
    """
    ends = [(0, 0)]  # the last index, and how often it stands there
    for _ in range(order):
        grown = [
            (parent, last, run + 1 if last == before else 1)
            for parent, (before, run) in enumerate(ends)
            for last in range(before, dim)
        ]
        ends = [(last, run) for _, last, run in grown]
        yield [(parent, run) for parent, _, run in grown]


@dataclass(frozen=True)
class Kernel:
    """A polynomial in the score: one power, or orders of the exponential's Taylor series.

    `Kernel.of(2)` is x², `Kernel.of((0, 1, 2))` is 1 + x + x²/2.
    """

    orders: tuple[int, ...]
    coefficients: tuple[float, ...]

    @staticmethod
    def of(order: int | Iterable[int]) -> Kernel:
        if type(order) is int and 1 <= order <= HIGHEST_ORDER:
            return Kernel((order,), (1.0,))
        taylor = isinstance(order, Iterable)
        orders = tuple(islice(order, HIGHEST_ORDER + 2)) if isinstance(order, Iterable) else (order,)
        valid = orders and all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= HIGHEST_ORDER for n in orders)
        if not valid or list(orders) != sorted(set(orders)) or orders == (0,):
            raise ValueError(
                "order must be a whole number >= 1, or an increasing sequence of whole numbers >= 0 "
                f"for those terms of the Taylor series, none above {HIGHEST_ORDER}, got {order!r:.80}"
            )
        return Kernel(orders, tuple(1 / math.factorial(n) if taylor else 1.0 for n in orders))

    def __str__(self) -> str:
        return f"order={self.orders[0] if self == Kernel.of(self.orders[-1]) else self.orders}"

    def __call__(self, score: Tensor, weights: Tensor | None = None) -> Tensor:
        return self.value(score, weights)

    def value(self, score: Tensor, weights: Tensor | None = None) -> Tensor:
        """f(score), or Σ weights[n]·c_n·scoreⁿ with weights (orders, …) that broadcast against the score.

        By a name, because PyTorch 2.9 cannot compile the call of an object that is made in the graph.
        """
        return self._sum(score, weights, list(zip(self.orders, self.coefficients, strict=True)))

    def derivative(self, score: Tensor, weights: Tensor | None = None) -> Tensor:
        return self._sum(score, weights, [(n - 1, n * c) for n, c in zip(self.orders, self.coefficients, strict=True)])

    @staticmethod
    def _sum(score: Tensor, weights: Tensor | None, terms: list[tuple[int, float]]) -> Tensor:
        """Horner's rule over the gaps between the orders, so that 80 terms stay finite and cheap."""
        total: Tensor | float = 0.0
        for position in reversed(range(len(terms))):
            power, coefficient = terms[position]
            if power < 0:
                break
            # a single power stays a number until it meets the score: adding it to a matrix of zeros would cost two passes
            total = total + (coefficient if weights is None else coefficient * weights[position])
            gap = power - max(terms[position - 1][0], 0) if position else power
            for _ in range(gap):
                total = total * score
        return total if isinstance(total, Tensor) and total.shape == score.shape else total + torch.zeros_like(score)

    @property
    def squared(self) -> bool:
        """x² itself, not the term x²/2 of the series."""
        return self.orders == (2,) and self.coefficients == (1.0,)

    @property
    def even(self) -> bool:
        return all(n % 2 == 0 for n in self.orders)

    @property
    def never_negative(self) -> bool:
        """Even orders alone, or the exponential's series up to an even order, which has no real root."""
        highest = self.orders[-1]
        return self.even or (highest % 2 == 0 and self.orders == tuple(range(highest + 1)))

    def feature_counts(self, dim: int) -> list[int]:
        return [monomial_count(dim, n) for n in self.orders]

    def feature_count(self, dim: int) -> int:
        return sum(self.feature_counts(dim))

    def feature_weights(self, dim: int, like: Tensor) -> Tensor:
        """c_n · multiplicity for every monomial, (F,), in the dtype and on the device of `like`."""
        return _feature_weights(self, dim, like.dtype, like.device)

    def monomial_weights(self, k_NSK: Tensor, order_weights_NO: Tensor | None) -> Tensor:
        """The same as (F,1), or (N,F,1) where every head weighs the orders in its own way."""
        return self._by_head(self.feature_weights(k_NSK.shape[-1], k_NSK), order_weights_NO, k_NSK.shape[-1])

    def query_weights(self, k_NSK: Tensor, order_weights_NO: Tensor | None) -> Tensor:
        """What turns the monomials of a query into its features φ: the root, and the weights of the orders."""
        return self._by_head(self.feature_weights(k_NSK.shape[-1], k_NSK).sqrt(), order_weights_NO, k_NSK.shape[-1])

    def _by_head(self, weights_F: Tensor, order_weights_NO: Tensor | None, dim: int) -> Tensor:
        if order_weights_NO is None:
            return weights_F[:, None]
        counts = torch.tensor(self.feature_counts(dim), dtype=torch.long, device=weights_F.device)
        return (weights_F * order_weights_NO.repeat_interleave(counts, dim=1, output_size=weights_F.shape[0]))[..., None]

    def features(self, x: Tensor) -> Tensor:
        """φ(x): (..., d) -> (..., F)."""
        rows = x.reshape(-1, x.shape[-1])
        expanded = monomials(rows.T.unsqueeze(0), self.orders)[0].T
        return (expanded * self.feature_weights(x.shape[-1], expanded).sqrt()).reshape(*x.shape[:-1], -1)


def remembered(make: Callable[..., R]) -> Callable[..., R]:
    """lru_cache for tensors. Those of inference mode could not be used outside of it, nor those of any other mode."""
    kept = lru_cache(maxsize=32)(make)

    @wraps(make)
    def found(*key: Hashable) -> R:
        if torch.compiler.is_compiling() or _get_current_dispatch_mode() is not None:
            return make(*key)
        with torch.inference_mode(False) if torch.is_inference_mode_enabled() else outside_transforms():
            return kept(*key)

    return found


@remembered
def _feature_weights(kernel: Kernel, dim: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    parts = [c * multiplicity(dim, n) for n, c in zip(kernel.orders, kernel.coefficients, strict=True)]
    return torch.cat(parts).to(dtype=dtype, device=device)


@remembered
def squares(kernel: Kernel, dim: int, dtype: torch.dtype, device: torch.device) -> list[tuple[int, Tensor, Tensor]]:
    """For each even order n above 0: its position, which features are squares, and their weights in c_n |x|ⁿ."""
    found, start = [], 0
    for position, (n, c) in enumerate(zip(kernel.orders, kernel.coefficients, strict=True)):
        if n > 0 and n % 2 == 0:
            weights = {start + index: c * weight for index, weight in enumerate(power_of_norm(dim, n)) if weight}
            index_E = torch.tensor(list(weights), dtype=torch.long, device=device)
            weights_E = torch.tensor(list(weights.values()), dtype=torch.float64, device="cpu")
            found.append((position, index_E, weights_E.to(dtype=dtype, device=device)))
        start += monomial_count(dim, n)
    return found


def symmetric_power(x: Tensor, order: int = 2) -> Tensor:
    """φ(x) with φ(x)·φ(y) = (x·y)^order: (..., d) -> (..., C(d+order-1, order)).

    For order 2 the entry of (p, r), p <= r, stands at p·d - p(p-1)/2 + (r-p) and is x_p x_r, times √2 where p < r.
    """
    return Kernel.of(order).features(x)


# N heads of the batch, K channels, F monomials, R rows (tokens)


class _Monomials(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_NKR: Tensor, orders: tuple[int, ...]) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x_NKR)
        ctx.orders = orders
        return expand(x_NKR, orders)

    @staticmethod
    def backward(ctx, grad_NFR: Tensor) -> tuple[Tensor | None, None]:  # type: ignore[no-untyped-def]
        (x_NKR,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            (again,) = twice_differentiable(_products, (x_NKR,), (grad_NFR,), ctx.orders)
            return again, None
        return contract(x_NKR, grad_NFR, ctx.orders), None


def monomials(x_NKR: Tensor, orders: tuple[int, ...]) -> Tensor:
    """All monomials of the given orders, differentiable: (N,K,R) -> (N,F,R)."""
    if is_transformed():
        return _products(x_NKR, orders)[0]
    if torch.compiler.is_compiling() or not x_NKR.is_cpu:
        return gathered(x_NKR.transpose(1, 2), orders).transpose(1, 2)
    if not torch.is_grad_enabled():
        return expand(x_NKR, orders)
    result: Tensor = _Monomials.apply(x_NKR, orders)
    return result


def _products(x_NKR: Tensor, orders: tuple[int, ...]) -> tuple[Tensor]:
    """`expand` in ordinary operators, out of place."""
    made_NFR = {0: torch.ones_like(x_NKR[:, :1]), 1: x_NKR}
    for order in range(2, max(orders) + 1):
        lower_NFR = made_NFR[order - 1]
        blocks = [x_NKR[:, p : p + 1] * lower_NFR[:, suffix] for p, _, suffix in _blocks(x_NKR.shape[1], order)]
        made_NFR[order] = torch.cat(blocks, dim=1)
    return (torch.cat([made_NFR[order] for order in orders], dim=1),)


def expand(x_NKR: Tensor, orders: tuple[int, ...]) -> Tensor:
    """The forward of `monomials`. Feature-major, so that every product is over long contiguous rows."""
    if orders == (1,):
        return x_NKR
    N, K, R = x_NKR.shape
    out_NFR = x_NKR.new_empty(N, sum(monomial_count(K, n) for n in orders), R)
    start = 0
    for order in orders:
        count = monomial_count(K, order)
        _expand_order(x_NKR, order, out_NFR[:, start : start + count])
        start += count
    return out_NFR


def contract(x_NKR: Tensor, grad_NFR: Tensor, orders: tuple[int, ...]) -> Tensor:
    """The backward of `monomials`: the gradient by x from the gradient by the monomials."""
    if orders == (1,):
        return grad_NFR
    grad_x_NKR = torch.zeros_like(x_NKR)
    start = 0
    for order in orders:
        count = monomial_count(x_NKR.shape[1], order)
        _contract_order(x_NKR, order, grad_NFR[:, start : start + count], grad_x_NKR)
        start += count
    return grad_x_NKR


def gathered(x: Tensor, orders: tuple[int, ...]) -> Tensor:
    """The same by index, in ordinary operators: (..., K) -> (..., F). Few launches, for what is not a CPU."""
    made = {0: torch.ones_like(x[..., :1]), 1: x}
    for order in range(2, max(orders) + 1):
        first_F, rest_F = _factors(x.shape[-1], order, x.device)
        made[order] = x.index_select(-1, first_F) * made[order - 1].index_select(-1, rest_F)
    return made[orders[0]] if len(orders) == 1 else torch.cat([made[order] for order in orders], dim=-1)


def _blocks(dim: int, order: int) -> Iterator[tuple[int, slice, slice]]:
    """For each p: where its monomials stand, and the suffix of order-1 that x_p multiplies."""
    lower = monomial_count(dim, order - 1)
    start = 0
    for p in range(dim):
        size = monomial_count(dim - p, order - 1)
        yield p, slice(start, start + size), slice(lower - size, lower)
        start += size


@remembered
def _factors(dim: int, order: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """For each monomial: its first index, and which monomial of order-1 the rest is."""
    blocks = list(_blocks(dim, order))
    first = [p for p, block, _ in blocks for _ in range(block.start, block.stop)]
    rest = [place for _, _, suffix in blocks for place in range(suffix.start, suffix.stop)]
    first_F, rest_F = torch.tensor([first, rest], dtype=torch.long, device=device)
    return first_F, rest_F


def _expand_order(x_NKR: Tensor, order: int, out_NFR: Tensor) -> None:
    if order == 0:
        out_NFR.fill_(1)
    elif order == 1:
        out_NFR.copy_(x_NKR)
    else:
        lower_NFR = expand(x_NKR, (order - 1,))
        if x_NKR.shape[2] < GATHER_BELOW or not x_NKR.is_cpu:
            first_F, rest_F = _factors(x_NKR.shape[1], order, x_NKR.device)
            torch.mul(x_NKR.index_select(1, first_F), lower_NFR.index_select(1, rest_F), out=out_NFR)
            return
        for p, block, suffix in _blocks(x_NKR.shape[1], order):
            torch.mul(x_NKR[:, p : p + 1], lower_NFR[:, suffix], out=out_NFR[:, block])


def _contract_order(x_NKR: Tensor, order: int, grad_NFR: Tensor, grad_x_NKR: Tensor) -> None:
    if order == 0:
        return
    if order == 1:
        grad_x_NKR += grad_NFR
        return
    lower_NFR = expand(x_NKR, (order - 1,))
    grad_lower_NFR = grad_x_NKR if order == 2 else torch.zeros_like(lower_NFR)
    for p, block, suffix in _blocks(x_NKR.shape[1], order):
        grad_x_NKR[:, p] += (grad_NFR[:, block] * lower_NFR[:, suffix]).sum(1)
        grad_lower_NFR[:, suffix].addcmul_(grad_NFR[:, block], x_NKR[:, p : p + 1])
    if order > 2:
        _contract_order(x_NKR, order - 1, grad_lower_NFR, grad_x_NKR)
