"""Whether numbers are right: as near to float64 as plain PyTorch at that precision, or as rounded inputs leave it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fuzz.case import Failure

# what passes without a further look, relative to the whole
FLOOR = {torch.float64: 1e-9, torch.float32: 2e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}
AS_PLAIN = 8  # times what plain PyTorch loses
AS_ROUNDED = 16  # times what rounding the inputs once changes, where all of it cancels
ROUNDINGS = 3
NOTHING = 1e-2  # of all tensors together: one that is zero but for rounding is not divided by itself

Named = Mapping[str, Tensor]
Formula = Callable[[Named], Named]


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def judge(
    got: Named,
    exact: Named,
    dtype: torch.dtype,
    formula: Formula,
    inputs: Named,
    *,
    slack: float = 1.0,
    rounding: torch.dtype | None = None,
    also: Callable[[str], float] = lambda name: 0.0,
) -> None:
    """Every tensor of `got`, computed in `dtype`, against `exact` = formula(inputs) in float64.

    slack: a factor of all that is allowed. rounding: the dtype that is rounded to on the way, if not that of sums.
    also: what is allowed beside it, by the name of the tensor.

    Where the exact numbers are not finite, or too large for the dtype, or plain PyTorch's are not finite, nothing is
    checked.
    """
    whole = math.sqrt(sum(x.double().square().sum().item() for x in exact.values()))
    for name, expected in exact.items():
        if got[name].shape != expected.shape:
            raise Failure(f"{name} has shape {tuple(got[name].shape)}, expected {tuple(expected.shape)}")
    suspects = [name for name in exact if not _near(got[name], exact[name], slack * FLOOR[dtype], NOTHING * whole)]
    if not suspects or not all(expected.to(dtype).isfinite().all() for expected in exact.values()):
        return
    plain = _plain(formula, {name: x.to(compute_dtype(dtype)) for name, x in inputs.items()})
    if not all(x.to(dtype).isfinite().all() for x in plain.values()):
        return
    rounded = [formula(_rounded(inputs, rounding or compute_dtype(dtype), seed)) for seed in range(ROUNDINGS)]
    for name in suspects:
        expected = exact[name]
        lost = AS_PLAIN * _distance(plain[name].to(dtype), expected)
        lost += AS_ROUNDED * max(_distance(other[name], expected) for other in rounded)
        allowed = slack * (lost + FLOOR[dtype] * max(expected.norm().item(), NOTHING * whole)) + also(name)
        off = _distance(got[name], expected)
        if not off <= allowed:  # NaN is not right either
            size = expected.norm().item()
            raise Failure(f"{name} off by {off:.3g} where {allowed:.3g} is allowed, of a size of {size:.3g}")


def _plain(formula: Formula, inputs: Named) -> Named:
    """Numbers too small to have all their digits are zero, as they are in the kernels."""
    torch.set_flush_denormal(True)
    try:
        return formula(inputs)
    finally:
        torch.set_flush_denormal(False)


def _near(got: Tensor, expected: Tensor, tolerance: float, least: float) -> bool:
    return _distance(got, expected) <= tolerance * max(expected.norm().item(), least)


def _distance(a: Tensor, b: Tensor) -> float:
    return (a.double() - b.double()).norm().item()


def _rounded(inputs: Named, dtype: torch.dtype, seed: int) -> Named:
    """Inputs in float64, each number off by about a rounding of the dtype."""
    generator = torch.Generator().manual_seed(seed)
    eps = torch.finfo(dtype).eps

    def change(x: Tensor) -> Tensor:
        noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        changed = x.double() * (1 + eps * noise)
        return changed.where(x.isfinite(), x.double()).detach().requires_grad_(x.requires_grad)

    return {name: change(x) for name, x in inputs.items()}
