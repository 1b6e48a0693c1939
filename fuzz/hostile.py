"""Numbers that break careless code, written into the inputs of an op."""

from __future__ import annotations

import math

import torch

from fuzz.case import Draw
from maclaurin import ops
from tests.ops.helpers import Batch, Op

DECAYS = (0.0, -1e-7, -1e-3, -20.0, -80.0, -750.0, -1e4, -1e30, -math.inf)


def highest_order(op: Op) -> int:
    order = op.options.get("order", 1)
    return order if isinstance(order, int) else max(order)


def change(draw: Draw, op: Op, batch: Batch) -> str:
    """The name of what was done: mostly nothing."""
    ways = ["plain"] * 6 + ["zero tokens"]
    if "k" in batch.tokens:
        ways += ["equal keys", "tiny"]
        if op.function is not ops.delta_rule and op.options.get("divisor") not in ("count", "none", "floored-sum"):
            ways.append("huge")  # keys longer than 1 make the delta rule grow, and an exponential alone overflows
    if "log_decay" in batch.tokens and op.options.get("numerator") != "relu":
        # where all later scores are exactly zero, forms may differ in when they drop what has decayed (docs/maths.md)
        ways += ["one decay", "sudden decays", "sudden decays"]
    way = draw.one("numbers", ways)
    generator = torch.Generator().manual_seed(draw.randrange(2**31))
    some = torch.rand(batch.length, generator=generator) < draw.choice((0.05, 0.3, 1.0))
    if way == "zero tokens":
        name = draw.choice([name for name in batch.tokens if name not in ("input_gate", "forget_gate")])
        batch.tokens[name][:, some] = 0
    elif way == "equal keys":
        batch.tokens["k"][:, some] = batch.tokens["k"][:, :1].clone()
    elif way in ("tiny", "huge"):
        size = draw.choice((1e-10, 1e-6, 1e-3) if way == "tiny" else (30.0, 1e3, 1e5))
        if way == "tiny":
            size **= 1 / highest_order(op)  # weights of 1e-20, far below which float32 ends
        for name in draw.choice((("q",), ("k",), ("q", "k"))):
            batch.tokens[name] *= size
    elif way == "one decay":
        batch.tokens["log_decay"].fill_(draw.choice(DECAYS))
    elif way == "sudden decays":
        batch.tokens["log_decay"][:, some] = draw.choice(DECAYS)
    return way
