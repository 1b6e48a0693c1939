"""States that lie: one that an op or a mixer made, with fields changed by hand or in its file, or the state of another.

What does not fit is refused in a sentence before a kernel reads it. What still fits gives numbers, and never a crash.
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fuzz.case import REFUSED, RIGHT, Draw, Failure, check_sentence
from fuzz.environment import environment
from fuzz.ops import FORMS, draw_op
from fuzz.options import draw_mixer
from maclaurin.ops import State
from tests.ops.helpers import Sizes

CHANNELS = (1, 2, 3, 8, 16)
Call = Callable[[State | None], tuple[Tensor, State | None]]


def case(draw: Draw) -> str:
    made = draw_owner(draw)
    if made is None:
        return REFUSED
    first, then = made
    with torch.no_grad():
        _, state = first(None)
        assert state is not None
        if draw.chance(0.2):
            liar, fits = foreign(draw, state), False
        else:
            liar, fits = changed(draw, state)
        if liar is None:
            return RIGHT
        try:
            if "number" not in draw.chosen.values() and draw.chance(0.3):  # a file holds tensors alone
                liar = by_file(liar)
            with environment(draw):
                y, after = then(liar)
        except (ValueError, TypeError) as error:
            check_sentence(error)
            return REFUSED
    if not fits:
        raise Failure(f"a {type(liar).__name__} that does not fit was accepted")
    y.sum().item()
    if after is not None:
        after.clone()
    return RIGHT


def draw_owner(draw: Draw) -> tuple[Call, Call] | None:
    """A call that makes a state, and one that continues it with as many sequences."""
    if draw.chance(0.5):
        return _op_owner(draw)
    mixer = draw_mixer(draw, draw.choice((torch.float32, torch.float32, torch.float64, torch.bfloat16)))
    if mixer is None or not mixer.causal:
        return None
    batch = draw.choice((1, 2, 3))
    dtype = next(mixer.parameters()).dtype
    x, later = (torch.randn(batch, draw.choice((1, 1, 5, 20, 70)), mixer.d_model, dtype=dtype) for _ in range(2))
    forms = [draw.choice(FORMS) for _ in range(2)]
    return (lambda state: mixer(x, state, form=forms[0])), (lambda state: mixer(later, state, form=forms[1]))


def _op_owner(draw: Draw) -> tuple[Call, Call]:
    op = draw_op(draw)
    dtype = draw.choice((torch.float32, torch.float32, torch.float64, torch.bfloat16))
    shape = {"B": draw.choice((1, 2, 3)), "G": draw.choice((1, 2)), "R": draw.choice((1, 2))}
    shape |= {name: draw.choice(CHANNELS[:3] if op.options.get("order", 1) not in (1, 2) else CHANNELS) for name in "KV"}
    lengths = [draw.choice((1, 1, 5, 20, 70)) for _ in range(2)]
    batches = [op.draw(Sizes(T=T, seed=seed, **shape)).to(dtype) for seed, T in enumerate(lengths)]
    batches[1] = dataclasses.replace(batches[1], parameters=batches[0].parameters)
    fold = (draw.randint(1, 30), draw.randint(1, 10))
    forms = [draw.choice(FORMS) for _ in range(2)]
    draw.note("lengths", lengths)
    first, then = (
        lambda state, batch=batch, form=form: op(batch, 16, fold, state=state, form=form)
        for batch, form in zip(batches, forms, strict=True)
    )
    return first, then


def changed(draw: Draw, state: State) -> tuple[State, bool]:
    """The state with one to three of its tensors changed, and whether it may still fit."""
    places = _places(state)
    fits, misfits = True, []
    for owner, name in draw.sample(places, min(len(places), draw.choice((1, 1, 1, 2, 3)))):
        tensor = getattr(_at(state, owner), name)
        way = draw.one(".".join((*owner, name)), ("shape", "shape", "shape", "dtype", "none", "number", "values"))
        value, still_fits = _lie(draw, way, tensor)
        if not still_fits and not (isinstance(value, Tensor) and value.shape == tensor.shape):
            fits = False
            misfits.append((owner, name, tensor, value))
        state = _with(state, owner, name, value)
    return state, fits or _another_cache(misfits)


def _another_cache(misfits: list[tuple[tuple[str, ...], str, Tensor, Any]]) -> bool:
    """Whether what changed is the keys and values of one KV cache, and both to the same number of tokens."""
    if sorted(name for _, name, _, _ in misfits) != ["keys", "values"] or len({owner for owner, *_ in misfits}) != 1:
        return False
    pairs = [(old, new) for _, _, old, new in misfits if isinstance(new, Tensor) and new.dim() == 4]
    alike = all(new.shape[:1] + new.shape[2:] == old.shape[:1] + old.shape[2:] for old, new in pairs)
    return len(pairs) == 2 and alike and len({new.shape[1] for _, new in pairs}) == 1


def _places(state: State, owner: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], str]]:
    """Every tensor of a state and of the states in it, as (the fields that lead there, its name)."""
    found = []
    for field in dataclasses.fields(state):
        value = getattr(state, field.name)
        if isinstance(value, State):
            found += _places(value, (*owner, field.name))
        elif isinstance(value, Tensor):
            found.append((owner, field.name))
    return found


def _at(state: State, owner: tuple[str, ...]) -> Any:
    for name in owner:
        state = getattr(state, name)
    return state


def _with(state: State, owner: tuple[str, ...], name: str, value: Any) -> State:
    if not owner:
        return dataclasses.replace(state, **{name: value})
    inner = getattr(state, owner[0])
    return dataclasses.replace(state, **{owner[0]: _with(inner, owner[1:], name, value)})


def _lie(draw: Draw, way: str, x: Tensor) -> tuple[Any, bool]:
    """Another value of a field, and whether the state may still be a right one."""
    if way == "none":
        return None, True  # some parts may be absent
    if way == "number":
        return draw.choice((3, "recurrent", [1.0], {})), False
    if way == "dtype":
        return x.to(draw.choice((torch.float16, torch.float64, torch.int32, torch.bool, torch.complex64))), True
    if way == "values":
        if x.is_floating_point():
            return torch.full_like(x, draw.choice((math.nan, math.inf, -torch.finfo(x.dtype).max, 0.0))), True
        limits = torch.iinfo(x.dtype)
        return torch.full_like(x, draw.choice((-1, 0, 7, limits.min, limits.max))), True
    return _reshaped(draw, x), False


def _reshaped(draw: Draw, x: Tensor) -> Tensor:
    """More, fewer or no entries along one dimension, or dimensions more or less."""
    if x.dim() == 0 or draw.chance(0.2):
        return draw.choice((x[None], x.flatten(), x[..., None]))
    dim = draw.randrange(x.dim())
    size = draw.choice((0, 1, x.shape[dim] - 1, x.shape[dim] + 1, 2 * x.shape[dim], x.shape[dim] + 64))
    if x.shape[dim] == 0:
        return x.new_zeros([max(size, 0) if d == dim else n for d, n in enumerate(x.shape)])
    return x.index_select(dim, torch.arange(size) % x.shape[dim])


def foreign(draw: Draw, own: State) -> State | None:
    """The state of another op or mixer; None where nobody could tell it from the right one."""
    made = draw_owner(draw)
    if made is None:
        return None
    _, state = made[0](None)
    assert state is not None
    draw.note("foreign", type(state).__name__)
    return None if _described(state) == _described(own) else state


def _described(state: State) -> Any:
    """All that a state shows of where it comes from: classes and shapes, but not how many tokens it keeps."""
    fields = []
    for field in dataclasses.fields(state):
        value = getattr(state, field.name)
        if isinstance(value, State):
            value = _described(value)
        elif isinstance(value, Tensor):
            kept = field.name in ("keys", "values", "log_decay")
            value = (value.shape[0], *value.shape[2:]) if kept else tuple(value.shape)
        fields.append((field.name, value))
    return type(state).__name__, tuple(fields)


def by_file(state: State) -> State:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        path = Path(folder) / "state.safetensors"
        state.save(path)
        return State.load(path)
