"""What a recurrent state of features loses: it rounds (|q||k|)^p, while the weight is (q·k)^p, which may be far less.

Where queries are nearly orthogonal to all keys, what it gives has no correct digits left and is not used (docs/maths.md).
"""

# B batch, T time, H heads, V value channels

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from fuzz.judge import AS_PLAIN, compute_dtype
from maclaurin import ops
from maclaurin.mixers import Mixer
from maclaurin.mixers.mechanisms import Power
from maclaurin.ops.arithmetic import default_scale
from maclaurin.ops.features import Kernel
from tests.ops.helpers import Batch, Op

MOST_OF_GRADIENTS = 300  # beyond this amplification a gradient, in which it occurs squared, is not checked


def allowance(op: Op, batch: Batch, dtype: torch.dtype, name: str) -> float:
    """How far outputs, or gradients, may be off for this reason, in absolute terms."""
    if op.options.get("window") == 1 and op.options.get("divisor") == "sum" and name in ("gradient of q", "gradient of k"):
        return math.inf  # the weight of the only key cancels: what is left of its gradient is rounding, over the weight
    if op.function is not ops.power_attention or not op.options.get("normalize", True):
        return 0.0
    if not Kernel.of(op.options["order"]).never_negative:
        return 0.0
    if name == "gradient of q" and batch.tokens["q"].shape[-1] == 1 and isinstance(op.options["order"], int):
        return math.inf  # a query of one channel is a factor of all its weights: it cancels, and so does its gradient
    batch = batch.map(lambda x: x.detach().double())
    amplified_BTH = amplification(op, batch)
    if name.startswith("gradient"):
        return math.inf if amplified_BTH.max() > MOST_OF_GRADIENTS else 0.0
    return _off(amplified_BTH, batch.tokens["v"], dtype)


def allowance_of_mixer(mixer: Mixer, documents: list[Tensor], dtype: torch.dtype) -> float:
    """The same for the outputs (T, d_model) of a mixer in float64, whose mechanism is such a power."""
    mechanism = getattr(mixer, "mechanism", None)
    power = getattr(mechanism, "far", mechanism)
    if not isinstance(power, Power) or not power.normalize or not Kernel.of(power.order).never_negative:
        return 0.0
    off = []
    for x_TD in documents:
        p = mixer.project(x_TD[None])
        q, k = power.mapped(p.q, p.k)
        options: dict[str, Any] = {"features": "identity", "maps": None, "normalize": False}
        plain = dataclasses.replace(power, scale=default_scale(power.scale, q), **options)
        weights_BHT, largest_BHT = (
            plain.weights(queries, keys, p.log_decay).sum(-1)
            for queries, keys in ((q, k), (q.norm(dim=-1, keepdim=True), k.norm(dim=-1, keepdim=True)))
        )
        off.append(_off((largest_BHT / weights_BHT).nan_to_num(nan=1.0, posinf=1e300), p.v, dtype))
    return math.hypot(*off) * torch.linalg.matrix_norm(mixer.out_proj.weight, 2).item()


def _off(amplified: Tensor, v: Tensor, dtype: torch.dtype) -> float:
    """An average of other values is off by at most twice the largest."""
    share = (AS_PLAIN * torch.finfo(compute_dtype(dtype)).eps * amplified).clamp(max=2)
    return share.norm().item() * v.abs().max().item() * math.sqrt(v.shape[3])


def amplification(op: Op, batch: Batch) -> Tensor:
    """Σ_s f(|q_t||k_s|)·decay over Σ_s f(q_t·k_s)·decay, for every query."""
    K = batch.tokens["q"].shape[3]
    ones = torch.ones_like(batch.tokens["v"][..., :1])
    options = {**op.options, "normalize": False, "scale": op.options.get("scale") or K**-0.5}
    lengths = {name: batch.tokens[name].norm(dim=-1, keepdim=True) for name in ("q", "k")}
    weights, largest = (op.oracle(**{**batch.all(), **tokens, "v": ones}, **options)[..., 0] for tokens in ({}, lengths))
    return (largest / weights).nan_to_num(nan=1.0, posinf=1e300)
