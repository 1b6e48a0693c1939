"""Every causal op, in any form, backend, precision and environment, against the formula of reference.py in float64."""

# N documents, T time of the longest one

from __future__ import annotations

import dataclasses
import inspect
import math
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fuzz import hostile
from fuzz.case import RIGHT, Draw, Failure
from fuzz.conditioning import allowance
from fuzz.documents import draw_lengths, in_pieces, poisoned
from fuzz.environment import environment, restrided
from fuzz.judge import judge
from maclaurin import ops
from maclaurin.ops import State, reference
from tests.ops import helpers
from tests.ops.helpers import Batch, Op, Sizes

DTYPES = (torch.float32, torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)
LAYOUTS = ("attention_mask", "cu_seqlens", "lengths")
FORMS = ("auto", "parallel", "chunked", "recurrent")
CHUNKS = (1, 2, 5, 16, 63, 64, 100, 256)
LENGTHS = (1, 2, 3, 7, 16, 17, 31, 63, 64, 65, 127, 128, 129, 200, 257)
CHANNELS = (1, 2, 3, 5, 8, 13, 16, 17, 32, 33, 64)
MOST_WORK = 3e5  # numbers in the largest tensor that the reference makes


def case(draw: Draw) -> str:
    op = draw_op(draw)
    dtype = draw.one("dtype", DTYPES)
    sizes = draw_sizes(draw, op)
    batch = op.draw(sizes)
    numbers = hostile.change(draw, op, batch)
    batch = batch.to(dtype)
    lengths = draw_lengths(draw, sizes.B, sizes.T)
    with_gradients = numbers == "plain" and draw.chance(0.3)
    check_documents(draw, op, batch, lengths, dtype, with_gradients)
    if draw.chance(0.3) and max(lengths) > 1:
        check_nothing_reaches_the_past(draw, op, batch, lengths, dtype)
    return RIGHT


def draw_op(draw: Draw) -> Op:
    """One of the tests' ops, one whose options nobody wrote down, an mLSTM, or a convolution with its activation."""
    kinds = (_listed, _listed, _listed, _any_orders, _any_orders, _any_softmax, _any_delta, _any_mlstm, _any_conv)
    drawn = draw.choice(kinds)(draw)
    draw.note("op", drawn.name)
    draw.note("options", drawn.options)
    return drawn


def _listed(draw: Draw) -> Op:
    return draw.choice(helpers.ALL)


def _any_mlstm(draw: Draw) -> Op:
    gate, normalize = draw.choice((("exp", True), ("sigmoid", True), ("sigmoid", False)))
    return Op(
        f"mlstm-{gate}",
        _mlstm_inputs,
        ops.mlstm,
        _reference_mlstm,
        {"input_gate_kind": gate, "normalize": normalize},
    )


def _any_conv(draw: Draw) -> Op:
    op = helpers.conv("conv", draw.randint(1, 5), bias=draw.chance(0.5))
    if draw.chance(0.5):
        return op
    return dataclasses.replace(op, name="conv-silu", options={"activation": "silu"}, oracle=_reference_silu_conv)


def _any_orders(draw: Draw) -> Op:
    """Outputs are divided by sums of weights only where these have one sign: elsewhere no precision is enough."""
    if draw.chance(0.7):
        order: Any = draw.choice((2, 2, 2, 2, 1, 3, 4, 5, 6))  # 2 has kernels of its own
        even = order % 2 == 0
    else:
        order = tuple(sorted(draw.sample(range(6), draw.randint(2, 4)))) if draw.chance(0.8) else (draw.randint(1, 5),)
        even = order == (0, 1, 2) or all(n % 2 == 0 for n in order)
    positive = not even and draw.chance(0.5)
    normalize = (even or positive) and draw.chance(0.7)
    weighted = not isinstance(order, int) and draw.chance(0.3)
    decay = draw.choice((None, "kv", "q"))
    return helpers.power(
        f"power-{order if isinstance(order, int) else 'series'}",
        order,
        decay,
        positive=positive,
        weighted=weighted,
        normalize=normalize,
    )


def _any_softmax(draw: Draw) -> Op:
    options: dict[str, Any] = {"window": draw.choice((None, 1, 2, 7, 64, 100))}
    options["numerator"] = draw.choice(("exp", "exp", "relu"))
    options["divisor"] = draw.choice(("sum", "sum", "floored-sum", "count", "none"))
    options["score_cap"] = draw.choice((None, None, 0.0, 0.7, 5.0))
    return helpers.softmax("softmax-any", draw.choice((None, "kv", "q")), **options)


def _any_delta(draw: Draw) -> Op:
    order = draw.choice((1, 1, 1, 2, 2, 3))
    decay = draw.choice((None, "kv", "q", "channel", "q-channel") if order == 1 else (None, "kv", "q"))
    return helpers.delta("delta-any", order, decay)


def _mlstm_inputs(s: Sizes) -> Batch:
    tokens = helpers.attention_inputs()(s).tokens
    generator = torch.Generator().manual_seed(s.seed + 1)
    for name, centre, width in (("input_gate", 0.0, 3.0), ("forget_gate", 3.0, 1.0)):
        tokens[name] = centre + width * torch.randn(s.B, s.T, s.G, generator=generator, dtype=torch.float64)
    return Batch(tokens)


def _reference_mlstm(q: Tensor, k: Tensor, v: Tensor, input_gate: Tensor, forget_gate: Tensor, **options: Any) -> Tensor:
    return reference.mlstm(q, k, v, input_gate, forget_gate, **options)


def _reference_silu_conv(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "silu") -> Tensor:
    return F.silu(reference.short_conv(x, weight, bias))


def draw_sizes(draw: Draw, op: Op) -> Sizes:
    """Any shape whose reference stays small: one token, one channel, shared heads, blocks and one more or less."""
    T = draw.choice(LENGTHS) if draw.chance(0.6) else draw.randint(1, 40)
    sizes = Sizes(
        B=draw.choice((1, 1, 2, 3)),
        T=T,
        G=draw.choice((1, 2, 2, 3)),
        R=draw.choice((1, 1, 2, 3)),
        K=draw.choice(CHANNELS),
        V=draw.choice(CHANNELS),
        seed=draw.randrange(2**31),
    )
    while work(op, sizes) > MOST_WORK:
        name = max(("T", "K", "V"), key=lambda name: getattr(sizes, name))
        sizes = dataclasses.replace(sizes, **{name: getattr(sizes, name) // 2})
    return draw.note("sizes", sizes)


def work(op: Op, s: Sizes) -> float:
    """Numbers in the largest tensor of the reference or of a recurrent state."""
    heads = s.B * s.G * s.R
    order = hostile.highest_order(op)
    features = math.comb(s.K + order - 1, order)
    if op.function in (ops.linear_scan, ops.selective_scan, ops.short_conv):
        return s.B * s.G * s.K * s.V * s.T**2
    if op.function is ops.delta_rule:
        return heads * features * s.T * (s.V + 10)
    if op.name.startswith("linear-channel"):
        return heads * s.K * s.T**2
    return max(heads * s.T**2, heads * features * (s.T + s.V))


def check_documents(draw: Draw, op: Op, batch: Batch, lengths: list[int], dtype: torch.dtype, with_gradients: bool) -> None:
    """Outputs of all documents, and gradients by every input through any number of states."""

    def results(outputs: list[Tensor], leaves: dict[str, Tensor]) -> dict[str, Tensor]:
        y = torch.cat([y.flatten() for y in outputs])
        found = {"outputs": y.detach()}
        if with_gradients:
            loss = helpers.projections([y])
            found |= {f"gradient of {name}": x for name, x in helpers.gradients(loss, leaves).items()}
        return found

    def formula(inputs: Any) -> dict[str, Tensor]:
        leaves = {name: x.detach().requires_grad_(with_gradients) for name, x in inputs.items()}
        return results(whole_documents(op, rebuilt(batch, leaves), lengths), leaves)

    if with_gradients:
        batch = batch.leaves()
    draw.note("gradients", with_gradients)
    with nullcontext() if with_gradients else torch.no_grad():
        outputs = in_pieces(
            draw, batch.tokens, lengths, caller(draw, op, batch.parameters), LAYOUTS, differentiable=with_gradients
        )
    for y in outputs:
        if y.numel() and y.dtype != dtype:
            raise Failure(f"outputs are {y.dtype}, inputs {dtype}")
    exact = formula({name: x.detach().double() for name, x in batch.all().items()})
    judge(results(outputs, batch.all()), exact, dtype, formula, batch.all(), also=partial(allowance, op, batch, dtype))


def whole_documents(op: Op, batch: Batch, lengths: list[int]) -> list[Tensor]:
    """What reference.py says of each document alone."""
    if len(set(lengths)) == 1:
        return list(op.reference(batch).unbind(0))
    alone = (batch.rows(slice(n, n + 1)).between(0, length) for n, length in enumerate(lengths))
    return [op.reference(document)[0] if document.length else torch.zeros(0) for document in alone]


def rebuilt(batch: Batch, inputs: dict[str, Tensor]) -> Batch:
    return Batch({name: inputs[name] for name in batch.tokens}, {name: inputs[name] for name in batch.parameters})


def caller(draw: Draw, op: Op, parameters: dict[str, Tensor]) -> Any:
    """A call in drawn form, backend, chunks, strides and environment."""
    fold = draw.note("fold", (draw.choice((1, 5, 16, 64, 130)), draw.choice((1, 2, 3, 8, 32))))
    backends = ("auto", "torch", "native") if "backend" in inspect.signature(op.function).parameters else ("auto",)

    def call(tokens: dict[str, Tensor], layout: dict[str, Any], state: State | None) -> tuple[Tensor, State | None]:
        options = {"form": draw.one("form", FORMS), **layout}
        backend = draw.one("backend", backends)
        longest = next(iter(tokens.values())).shape[1]
        chunk = draw.note("chunk", max(draw.choice(CHUNKS), longest // 16))  # hundreds of chunks show no more than some
        given = Batch({name: restrided(draw, x) for name, x in tokens.items()}, parameters)
        with environment(draw):
            if backend != "auto":
                try:
                    return op(given, chunk, fold, state=state, backend=backend, **options)
                except ValueError as error:
                    if backend not in str(error):
                        raise
            return op(given, chunk, fold, state=state, **options)

    return call


def check_nothing_reaches_the_past(draw: Draw, op: Op, batch: Batch, lengths: list[int], dtype: torch.dtype) -> None:
    tokens, poison = poisoned(draw, batch.tokens, lengths)
    with torch.no_grad():
        outputs = in_pieces(draw, tokens, lengths, caller(draw, op, batch.parameters), LAYOUTS)

    def formula(inputs: Any) -> dict[str, Tensor]:
        return poison.past(whole_documents(op, rebuilt(batch, inputs), lengths))

    exact = formula({name: x.double() for name, x in batch.all().items()})
    judge(poison.past(outputs), exact, dtype, formula, batch.all(), also=partial(allowance, op, batch, dtype))
