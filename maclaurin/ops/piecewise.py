"""A ReLU network of one number, evaluated as what it is: a piecewise linear function with one knot per hidden unit.

    f(u) = c + Σ_i A_i relu(w_i u + b_i) = slope_j u + intercept_j,   j = how many of the knots −b_i/w_i lie below u

Written out, N hidden numbers would be made for every u and kept for the backward. Here a table of N + 1 rows is made from
the weights by cumulative sums, and each u looks up its row, in a kernel where there is one: the cost hardly depends on N.
The gradient of the weights is that of the table, summed by row; the place of a knot has none, because f is continuous there.
"""

# n numbers u, N hidden units, L outputs, M = N + 1 rows of the table, P = 2L

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from maclaurin.ops import native
from maclaurin.ops.arithmetic import without_autocast
from maclaurin.ops.backends import reason_for_torch
from maclaurin.ops.decay import widest
from maclaurin.ops.one_operator import is_unrolled, one_operator
from maclaurin.ops.transforms import is_transformed, twice_differentiable

BLOCK = 2**16  # numbers that a CPU looks up at a time, so that what is made for them stays in the cache
DIRECT_UP_TO = 2  # numbers per hidden unit: for so few, as in decoding, the sum itself is quicker than the table


@without_autocast
def scalar_mlp(
    u: Tensor, weight_in: Tensor, bias_in: Tensor, weight_out: Tensor, bias_out: Tensor, *, relu: bool = False
) -> Tensor:
    """f(u), u (...) -> (..., L), for weight_in and bias_in (N,), weight_out (N, L), bias_out (L,); float32 at least.

    relu: a last ReLU behind f.
    """
    evaluate = _as_operator if u.dim() > 1 and is_unrolled(u) else _evaluate
    y: Tensor = evaluate(u, weight_in, bias_in, weight_out, bias_out, relu)
    return y


def _evaluate(u: Tensor, weight_in: Tensor, bias_in: Tensor, weight_out: Tensor, bias_out: Tensor, relu: bool) -> Tensor:
    weights = (weight_in, bias_in, weight_out, bias_out)
    dtype = torch.promote_types(u.dtype, torch.float32)
    u_n = u.to(dtype).flatten()
    if u_n.numel() <= DIRECT_UP_TO * weights[0].numel():
        w_N, b_N, A_NL, c_L = (weight.to(dtype) for weight in weights)
        y_nL = torch.addmm(c_L, torch.relu(u_n[:, None] * w_N + b_N), A_NL)
    else:
        table = tuple(part.to(dtype) for part in _table(*(weight.to(widest(u.device)) for weight in weights)))
        if reason_for_torch("auto", u, dtype) is None:
            knots_N, slope_ML, intercept_ML = table
            y: Tensor = native.call("piecewise", u_n, *_whole_search(knots_N, slope_ML, intercept_ML), relu)
            return y.view(*u.shape, bias_out.shape[0])
        look_up = _looked_up if is_transformed() else _Lookup.apply
        y_nL = look_up(u_n, *table)
    return (y_nL.relu() if relu else y_nL).view(*u.shape, bias_out.shape[0])


def _whole_search(knots_N: Tensor, slope_ML: Tensor, intercept_ML: Tensor) -> tuple[Tensor, Tensor]:
    """Knots for a search in whole vectors, filled up with infinite ones, and the table in rows (slopes, intercepts)."""
    more = -knots_N.shape[0] % native.piecewise.SEARCHED
    table_MP = torch.cat([slope_ML, intercept_ML], dim=1)
    return pad(knots_N, (0, more), value=torch.inf), pad(table_MP, (0, 0, 0, more))


_as_operator = one_operator(
    "scalar_mlp(Tensor u, Tensor weight_in, Tensor bias_in, Tensor weight_out, Tensor bias_out, bool relu) -> Tensor",
    fake=lambda u, *rest: u.new_empty(*u.shape, rest[3].shape[0], dtype=torch.promote_types(u.dtype, torch.float32)),
)(_evaluate)


def _table(w_N: Tensor, b_N: Tensor, A_NL: Tensor, c_L: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The sorted knots, and slopes and intercepts between them: those far below, and what changes at each knot."""
    with torch.no_grad():
        knots_N, order = (-b_N / w_N).masked_fill(w_N == 0, torch.inf).sort()  # without a slope there is no knot
        constant_N = (w_N == 0) & (b_N > 0)
        ends_N = ((w_N < 0) | constant_N)[order].to(w_N.dtype)
        begins_N = (w_N > 0)[order].to(w_N.dtype)
    terms_NP = torch.cat([A_NL * w_N[:, None], A_NL * b_N[:, None]], dim=1)[order]
    far_below_P = ends_N @ terms_NP + pad(c_L, (c_L.shape[0], 0))
    changes_NP = terms_NP * (begins_N - ends_N)[:, None]
    slope_ML, intercept_ML = (pad(changes_NP.cumsum(0), (0, 0, 1, 0)) + far_below_P).chunk(2, dim=1)
    return knots_N, slope_ML.contiguous(), intercept_ML.contiguous()


class _Lookup(torch.autograd.Function):
    """y = slope[j]·u + intercept[j], block by block. Kept for the backward: u and the rows j."""

    @staticmethod
    def forward(ctx: Any, u_n: Tensor, knots_N: Tensor, slope_ML: Tensor, intercept_ML: Tensor) -> Tensor:
        y_nL = u_n.new_empty(u_n.shape[0], slope_ML.shape[1])
        row_n = torch.empty(u_n.shape, dtype=torch.int32, device=u_n.device)
        for u, row, y in zip(*_blocks(u_n, row_n, y_nL), strict=True):
            row.copy_(_knots_below(u, knots_N))
            torch.addcmul(intercept_ML.index_select(0, row), slope_ML.index_select(0, row), u[:, None], out=y)
        ctx.save_for_backward(u_n, row_n, slope_ML, intercept_ML)
        return y_nL

    @staticmethod
    def backward(ctx: Any, dy_nL: Tensor) -> tuple[Tensor | None, None, Tensor | None, Tensor | None]:
        u_n, row_n, slope_ML, intercept_ML = ctx.saved_tensors
        if torch.is_grad_enabled():
            inputs = (u_n, slope_ML, intercept_ML)
            du, dslope, dintercept = twice_differentiable(_at_rows, inputs, (dy_nL,), row_n)
            return du, None, dslope, dintercept
        du_n, dslope_ML, dintercept_ML = (torch.zeros_like(x) for x in (u_n, slope_ML, slope_ML))
        for u, row, dy, du in zip(*_blocks(u_n, row_n, dy_nL, du_n), strict=True):
            row = row.long()  # torch adds rows by int32 an order of magnitude more slowly
            torch.sum(slope_ML.index_select(0, row).mul_(dy), 1, out=du)
            dintercept_ML.index_add_(0, row, dy)
            dslope_ML.index_add_(0, row, dy * u[:, None])
        return du_n, None, dslope_ML, dintercept_ML


def _looked_up(u_n: Tensor, knots_N: Tensor, slope_ML: Tensor, intercept_ML: Tensor) -> Tensor:
    """`_Lookup` in ordinary operators."""
    (y_nL,) = _at_rows(u_n, slope_ML, intercept_ML, torch.searchsorted(knots_N, u_n.detach()))
    return y_nL


def _at_rows(u_n: Tensor, slope_ML: Tensor, intercept_ML: Tensor, row_n: Tensor) -> tuple[Tensor]:
    return (torch.addcmul(intercept_ML[row_n], slope_ML[row_n], u_n[:, None]),)


def _blocks(*tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """Pieces of each that are taken together: all at once where a launch costs more than a cache saves."""
    return [x.split(BLOCK) if x.is_cpu else (x,) for x in tensors]


def _knots_below(u: Tensor, knots_N: Tensor) -> Tensor:
    """How many of the sorted knots lie below each u. On a CPU by a binary search without branches, which is faster."""
    if not u.is_cpu:
        return torch.searchsorted(knots_N, u, out_int32=True)
    step = 2 ** (knots_N.shape[0].bit_length() - 1)
    knots = pad(knots_N, (0, 2 * step - 1 - knots_N.shape[0]), value=torch.inf)
    below = torch.zeros_like(u, dtype=torch.int32)
    while step:
        below.add_(u > knots.index_select(0, below + (step - 1)), alpha=step)
        step //= 2
    return below
