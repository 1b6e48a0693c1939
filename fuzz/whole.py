"""Ops over whole sequences, and those without a sequence, against their formulas."""

# B batch, T time, H heads, G key-value heads, K key channels, V value channels

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fuzz.case import RIGHT, Draw, Failure
from fuzz.judge import judge
from fuzz.surroundings import restrided, surroundings
from maclaurin import ops
from maclaurin.ops import reference
from maclaurin.ops.features import Kernel
from tests.ops import helpers
from tests.ops.helpers import Sizes
from tests.ops.test_bidirectional import attend, matrix_of_decays, scores

DTYPES = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)
FORMS = ("auto", "parallel", "chunked", "recurrent")
CHANNELS = (1, 2, 3, 5, 8, 16, 17)


def case(draw: Draw) -> str:
    kind = draw.one("op", ("softmax", "power", "linear", "inline", "rotary", "rotate", "scalar_mlp", "symmetric_power"))
    dtype = draw.one("dtype", DTYPES)
    generator = torch.Generator().manual_seed(draw.randrange(2**31))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    if kind in ("softmax", "power", "linear", "inline"):
        return _whole_sequences(draw, kind, dtype)
    B, T, G, R, K = (draw.randint(1, n) for n in (3, 40, 3, 3, 8))
    if kind == "rotary":
        turns = {"theta": draw.choice((10.0, 1e4, 1e6)), "interleaved": draw.chance(0.5)}
        positions = torch.randint(0, draw.choice((40, 10**6)), draw.choice(((B, T), (T,))), generator=generator)
        formula = lambda x: reference.rotary(x, positions.expand(B, T), **turns)  # noqa: E731
        return _compare(draw, dtype, {"x": normal(B, T, G, 2 * K)}, lambda x: ops.rotary(x, positions, **turns), formula)
    if kind == "rotate":
        interleaved = draw.chance(0.5)
        inputs = {"x": normal(B, T, G * R, 2 * K), "angles": normal(draw.choice((1, B)), T, G, K)}
        return _compare(
            draw, dtype, inputs, lambda x, angles: ops.rotate(x, angles, interleaved=interleaved), _turned(interleaved)
        )
    if kind == "scalar_mlp":
        N, L = draw.randint(1, 40), draw.randint(1, 5)
        names = ("u", "weight_in", "bias_in", "weight_out", "bias_out")
        tensors = (
            normal(*(draw.randint(1, 9) for _ in range(draw.randint(1, 3)))),
            normal(N),
            normal(N),
            normal(N, L),
            normal(L),
        )
        inputs = dict(zip(names, tensors, strict=True))
        return _compare(draw, dtype, inputs, ops.scalar_mlp, lambda **x: reference.scalar_mlp(*x.values()))
    order = draw.randint(1, 4)
    return _compare(
        draw,
        dtype,
        {"x": normal(B, T, K)},
        lambda x: ops.symmetric_power(x, order),
        lambda x: reference.symmetric_power(x, order),
    )


def _turned(interleaved: bool) -> Any:
    def formula(x: Tensor, angles: Tensor) -> Tensor:
        turn = torch.polar(torch.ones_like(angles), angles).repeat_interleave(x.shape[2] // angles.shape[2], 2)
        if interleaved:
            return torch.view_as_real(torch.view_as_complex(x.contiguous().unflatten(-1, (-1, 2))) * turn).flatten(-2)
        turned = torch.complex(*x.chunk(2, dim=-1)) * turn
        return torch.cat([turned.real, turned.imag], dim=-1)

    return formula


def _whole_sequences(draw: Draw, kind: str, dtype: torch.dtype) -> str:
    """Rows of any length, padded with NaN on the right, against the matrix of each row alone."""
    B, T = draw.randint(1, 3), draw.choice((1, 2, 3, 17, 31, 40))
    sizes = Sizes(
        B, T, draw.randint(1, 2), draw.randint(1, 3), draw.choice(CHANNELS), draw.choice(CHANNELS), draw.randrange(2**31)
    )
    decay = draw.choice({"power": (None, "kv"), "linear": (None, "kv", "channel")}.get(kind, (None,)))
    order = draw.choice((1, 2, 4, (0, 1, 2))) if kind == "power" else 1
    even = order not in (1,)
    normalize = draw.chance(0.6)
    inputs = helpers.attention_inputs(decay, positive=normalize and not even)(sizes).tokens
    options: dict[str, Any] = (
        {} if kind in ("softmax", "inline") else {"normalize": normalize, "form": draw.one("form", FORMS)}
    )
    if kind == "power":
        options["order"] = order
    lengths = [T, *(draw.randint(0, T) for _ in range(B - 1))]
    padding = {"lengths": torch.tensor(lengths)} if min(lengths) < T else {}

    def call(**tensors: Tensor) -> Tensor:
        for row, length in enumerate(lengths):
            for x in tensors.values():
                x[row, length:] = torch.nan
        return getattr(ops, f"bidirectional_{kind}")(**tensors, **options, **padding)

    def formula(**tensors: Tensor) -> Tensor:
        rows = [
            torch.nn.functional.pad(
                _matrix(kind, order, normalize, {name: x[row : row + 1, :length] for name, x in tensors.items()}),
                (0, 0, 0, 0, 0, T - length),
            )
            for row, length in enumerate(lengths)
        ]
        return torch.cat(rows)

    return _compare(draw, dtype, inputs, call, formula)


def _matrix(kind: str, order: Any, normalize: bool, x: dict[str, Tensor]) -> Tensor:
    q, k, v, a = x["q"], x["k"], x["v"], x.get("log_decay")
    if kind == "inline":
        return reference.inline_attention(q, k, v, causal=False) if q.shape[1] else q.new_zeros(1, 0, q.shape[2], v.shape[3])
    heads = q.shape[2] // k.shape[2]
    if kind == "softmax":
        weight, normalize = scores(q, k).softmax(2), False
    elif a is not None and a.dim() == 4:
        decays = matrix_of_decays(a.repeat_interleave(heads, 2))
        weight = torch.einsum("bthk,bshk,btshk->btsh", q, k.repeat_interleave(heads, 2), decays) * q.shape[3] ** -0.5
    else:
        weight = Kernel.of(order)(scores(q, k))
        if a is not None:
            weight = weight * matrix_of_decays(a).repeat_interleave(heads, 3)
    return attend(weight, v, normalize)


def _compare(draw: Draw, dtype: torch.dtype, inputs: dict[str, Tensor], call: Any, formula: Any) -> str:
    inputs = {name: x.to(dtype) for name, x in inputs.items()}
    given = {name: restrided(draw, x.clone()) for name, x in inputs.items()}
    with torch.no_grad(), surroundings(draw):
        y = call(**given)
    if y.dtype not in (dtype, torch.promote_types(dtype, torch.float32)):
        raise Failure(f"outputs are {y.dtype}, inputs {dtype}")

    def named(tensors: Any) -> dict[str, Tensor]:
        return {"outputs": formula(**tensors)}

    judge({"outputs": y}, named({name: x.double() for name, x in inputs.items()}), dtype, named, inputs)
    return RIGHT
