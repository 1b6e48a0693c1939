"""Every registered mixer with any options: documents in pieces come out as they do alone, whole and in float64."""

# N documents, T time of the longest one

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from fuzz.case import REFUSED, RIGHT, Draw, Failure
from fuzz.conditioning import allowance_of_mixer
from fuzz.documents import draw_lengths, in_pieces, poisoned
from fuzz.environment import environment, restrided
from fuzz.judge import judge
from fuzz.options import draw_mixer
from maclaurin.mixers import Mixer
from maclaurin.ops import State

DTYPES = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)
LAYOUTS = ("attention_mask", "cu_seqlens")
FORMS = ("auto", "parallel", "chunked", "recurrent")
LENGTHS = (1, 2, 5, 9, 17, 33, 40, 65, 130)
# a mixer is a chain of roundings: projections, gates, norms, of which each may be of numbers that cancel
SLACK = {torch.float64: 2.0, torch.float32: 2.0, torch.bfloat16: 6.0, torch.float16: 6.0}


def case(draw: Draw) -> str:
    dtype = draw.one("dtype", DTYPES)
    mixer = draw_mixer(draw, dtype)
    if mixer is None:
        return REFUSED
    N, T = draw.choice((1, 1, 2, 3)), draw.choice(LENGTHS)
    x = torch.randn(N, T, mixer.d_model, generator=torch.Generator().manual_seed(draw.randrange(2**31)), dtype=torch.float64)
    # float16 ends at 65504, and below 6e-5 it has fewer digits
    x = (x * draw.one("size", (1.0, 1.0, 0.0) if dtype == torch.float16 else (1.0, 1.0, 1.0, 0.0, 1e-3, 30.0))).to(dtype)
    lengths = draw_lengths(draw, N, T)
    law = draw.choice((check_documents, check_documents, check_nothing_reaches_the_past, check_calls_repeat))
    draw.note("law", law.__name__)
    law(draw, mixer, x, lengths)
    return RIGHT


def check_documents(draw: Draw, mixer: Mixer, x: Tensor, lengths: list[int]) -> None:
    """Any form, layout, split and neighbour."""
    _judge(mixer, x, lengths, {"outputs": _flat(_outputs(draw, mixer, x, lengths))}, lambda y: {"outputs": _flat(y)})


def check_nothing_reaches_the_past(draw: Draw, mixer: Mixer, x: Tensor, lengths: list[int]) -> None:
    if not mixer.causal or max(lengths) < 2:
        return
    tokens, poison = poisoned(draw, {"x": x}, lengths)
    _judge(mixer, x, lengths, poison.past(_outputs(draw, mixer, tokens["x"], lengths)), poison.past)


def check_calls_repeat(draw: Draw, mixer: Mixer, x: Tensor, lengths: list[int]) -> None:
    """Bit by bit, the state included; and the state is as large as it says."""
    form = draw.one("form", FORMS)
    with torch.no_grad(), environment(draw):
        (first, state), (second, again) = (mixer(x, form=form) for _ in range(2))
    if not torch.equal(first.nan_to_num(), second.nan_to_num()):
        raise Failure("the same call gave other numbers")
    if state is None or again is None:
        return
    for name, tensor in state.tensors().items():
        if not torch.equal(tensor.nan_to_num(), again.tensors()[name].nan_to_num()):
            raise Failure(f"the same call left another state: {name}")
    if state.nbytes != x.shape[0] * mixer.state_nbytes(x.shape[1]):
        raise Failure(f"a state of {state.nbytes} bytes, announced as {x.shape[0] * mixer.state_nbytes(x.shape[1])}")


def _outputs(draw: Draw, mixer: Mixer, x: Tensor, lengths: list[int]) -> list[Tensor]:
    def call(tokens: dict[str, Tensor], layout: dict[str, Any], state: State | None) -> tuple[Tensor, State | None]:
        form, given = draw.one("form", FORMS), restrided(draw, tokens["x"])
        with environment(draw):
            return mixer(given, state, form=form, **layout)

    with torch.no_grad():
        outputs = in_pieces(draw, {"x": x}, lengths, call, LAYOUTS, at_once=not mixer.causal)
    for y in outputs:
        if y.numel() and y.dtype != x.dtype:
            raise Failure(f"outputs are {y.dtype}, inputs {x.dtype}")
    return outputs


def _judge(mixer: Mixer, x: Tensor, lengths: list[int], got: dict[str, Tensor], wanted: Any) -> None:
    """Against the same mixer on each document alone, its weights and inputs widened to float64."""
    widened = copy.deepcopy(mixer).double()

    def formula(inputs: Any) -> dict[str, Tensor]:
        weights = {name: tensor for name, tensor in inputs.items() if name != "x"}
        module = widened.to(inputs["x"].dtype)
        outputs = []
        with torch.no_grad():
            for document, length in zip(inputs["x"], lengths, strict=True):
                alone = document[None, :length]
                options = {"form": "parallel", "return_state": False}
                outputs.append(functional_call(module, weights, (alone,), options)[0][0] if length else torch.zeros(0))
        return wanted(outputs)

    inputs = {"x": x, **dict(mixer.named_parameters())}
    exact = formula({name: tensor.double() for name, tensor in inputs.items()})

    def also(name: str) -> float:
        alone = [document[:length].double() for document, length in zip(x, lengths, strict=True) if length]
        with torch.no_grad():
            return allowance_of_mixer(widened.double(), alone, x.dtype)

    judge(got, exact, x.dtype, formula, inputs, slack=SLACK[x.dtype], rounding=x.dtype, also=also)


def _flat(outputs: list[Tensor]) -> Tensor:
    return torch.cat([y.flatten() for y in outputs])
