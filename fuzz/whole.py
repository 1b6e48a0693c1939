"""Ops over whole sequences, and those without a sequence, against their formulas."""

# B batch, T time, H heads, G key-value heads, K key channels, V value channels

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fuzz.case import RIGHT, Draw, Failure
from fuzz.environment import environment, restrided
from fuzz.judge import judge
from maclaurin import ops
from maclaurin.ops import reference
from maclaurin.ops.features import Kernel
from tests.ops import helpers
from tests.ops.helpers import Sizes
from tests.ops.test_bidirectional import attend, matrix_of_decays, scores

DTYPES = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)
FORMS = ("auto", "parallel", "chunked", "recurrent")
CHANNELS = (1, 2, 3, 5, 8, 16, 17)


@dataclass(frozen=True)
class Question:
    """Inputs by name, in float64; the op; and the formula that it must equal."""

    inputs: dict[str, Tensor]
    op: Callable[..., Tensor]
    formula: Callable[..., Tensor]


def case(draw: Draw) -> str:
    ask = draw.choice((softmax, power, linear, inline, rotary, rotate, scalar_mlp, symmetric_power))
    draw.note("op", ask.__name__)
    dtype = draw.one("dtype", DTYPES)
    question = ask(draw)
    inputs = {name: x.to(dtype) for name, x in question.inputs.items()}
    given = {name: restrided(draw, x.clone()) for name, x in inputs.items()}
    with torch.no_grad(), environment(draw):
        y = question.op(**given)
    if y.dtype not in (dtype, torch.promote_types(dtype, torch.float32)):
        raise Failure(f"outputs are {y.dtype}, inputs {dtype}")

    def formula(tensors: Any) -> dict[str, Tensor]:
        return {"outputs": question.formula(**tensors)}

    judge({"outputs": y}, formula({name: x.double() for name, x in inputs.items()}), dtype, formula, inputs)
    return RIGHT


def normal(draw: Draw, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(draw.randrange(2**31))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def rotary(draw: Draw) -> Question:
    B, T, H, K = (draw.randint(1, n) for n in (3, 40, 9, 8))
    turns: dict[str, Any] = {"theta": draw.choice((10.0, 1e4, 1e6)), "interleaved": draw.chance(0.5)}
    positions = (normal(draw, *draw.choice(((B, T), (T,)))).abs() * draw.choice((10, 10**6))).long()
    return Question(
        {"x": normal(draw, B, T, H, 2 * K)},
        lambda x: ops.rotary(x, positions, **turns),
        lambda x: reference.rotary(x, positions.expand(B, T), **turns),
    )


def rotate(draw: Draw) -> Question:
    B, T, G, R, K = (draw.randint(1, n) for n in (3, 40, 3, 3, 8))
    interleaved = draw.chance(0.5)

    def formula(x: Tensor, angles: Tensor) -> Tensor:
        turn = torch.polar(torch.ones_like(angles), angles).repeat_interleave(R, 2)
        if interleaved:
            return torch.view_as_real(torch.view_as_complex(x.contiguous().unflatten(-1, (-1, 2))) * turn).flatten(-2)
        turned = torch.complex(*x.chunk(2, dim=-1)) * turn
        return torch.cat([turned.real, turned.imag], dim=-1)

    inputs = {"x": normal(draw, B, T, G * R, 2 * K), "angles": normal(draw, draw.choice((1, B)), T, G, K)}
    return Question(inputs, lambda x, angles: ops.rotate(x, angles, interleaved=interleaved), formula)


def scalar_mlp(draw: Draw) -> Question:
    N, L = draw.randint(1, 40), draw.randint(1, 5)
    shapes = {"weight_in": (N,), "bias_in": (N,), "weight_out": (N, L), "bias_out": (L,)}
    inputs = {"u": normal(draw, *(draw.randint(1, 9) for _ in range(draw.randint(1, 3))))}
    inputs |= {name: normal(draw, *shape) for name, shape in shapes.items()}
    return Question(inputs, ops.scalar_mlp, lambda **x: reference.scalar_mlp(*x.values()))


def symmetric_power(draw: Draw) -> Question:
    order = draw.randint(1, 4)
    inputs = {"x": normal(draw, draw.randint(1, 3), draw.randint(1, 40), draw.randint(1, 8))}
    return Question(inputs, lambda x: ops.symmetric_power(x, order), lambda x: reference.symmetric_power(x, order))


def softmax(draw: Draw) -> Question:
    return _rows(draw, ops.bidirectional_softmax, lambda q, k, v: attend(scores(q, k).softmax(2), v, normalize=False))


def inline(draw: Draw) -> Question:
    return _rows(draw, ops.bidirectional_inline, lambda q, k, v: reference.inline_attention(q, k, v, causal=False))


def power(draw: Draw) -> Question:
    order = draw.choice((1, 2, 4, (0, 1, 2)))
    normalize, decay = draw.chance(0.6), draw.choice((None, "kv"))
    # a recurrent state is not used where queries are nearly orthogonal to all keys (docs/maths.md)
    positive = normalize and order != (0, 1, 2)

    def matrix(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None = None) -> Tensor:
        weight = Kernel.of(order)(scores(q, k))
        if log_decay is not None:
            weight = weight * matrix_of_decays(log_decay).repeat_interleave(q.shape[2] // k.shape[2], 3)
        return attend(weight, v, normalize)

    options = {"order": order, "normalize": normalize, "form": draw.one("form", FORMS)}
    return _rows(draw, ops.bidirectional_power, matrix, decay, positive=positive, options=options)


def linear(draw: Draw) -> Question:
    normalize, decay = draw.chance(0.6), draw.choice((None, "kv", "channel"))

    def matrix(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None = None) -> Tensor:
        R, weight = q.shape[2] // k.shape[2], scores(q, k)
        if decay == "kv":
            weight = weight * matrix_of_decays(log_decay).repeat_interleave(R, 3)
        elif log_decay is not None:
            decays = matrix_of_decays(log_decay.repeat_interleave(R, 2))
            weight = torch.einsum("bthk,bshk,btshk->btsh", q, k.repeat_interleave(R, 2), decays) * q.shape[3] ** -0.5
        return attend(weight, v, normalize)

    options = {"normalize": normalize, "form": draw.one("form", FORMS)}
    return _rows(draw, ops.bidirectional_linear, matrix, decay, positive=normalize, options=options)


def _rows(
    draw: Draw,
    op: Callable[..., Tensor],
    matrix: Callable[..., Tensor],
    decay: str | None = None,
    *,
    positive: bool = False,
    options: dict[str, Any] | None = None,
) -> Question:
    """Sequences of any length, with NaN as padding on the right, against the matrix of each sequence alone."""
    B, T = draw.randint(1, 3), draw.choice((1, 2, 3, 17, 31, 40))
    heads, channels = (draw.randint(1, 2), draw.randint(1, 3)), (draw.choice(CHANNELS), draw.choice(CHANNELS))
    sizes = draw.note("sizes", Sizes(B, T, *heads, *channels, seed=draw.randrange(2**31)))
    lengths = draw.note("lengths", [T, *(draw.randint(0, T) for _ in range(B - 1))])
    padding = {"lengths": torch.tensor(lengths)} if min(lengths) < T else {}

    def padded(**tensors: Tensor) -> Tensor:
        for n, length in enumerate(lengths):
            for x in tensors.values():
                x[n, length:] = torch.nan
        return op(**tensors, **(options or {}), **padding)

    def formula(**tensors: Tensor) -> Tensor:
        y = torch.zeros(B, T, *tensors["q"].shape[2:3], *tensors["v"].shape[3:], dtype=tensors["q"].dtype)
        for n, length in enumerate(lengths):
            if length:
                y[n, :length] = matrix(**{name: x[n : n + 1, :length] for name, x in tensors.items()})[0]
        return y

    return Question(helpers.attention_inputs(decay, positive)(sizes).tokens, padded, formula)
