"""What the C++ kernels compute, asked of the ops themselves: each call is tried on a few zeros."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from maclaurin import ops
from maclaurin.ops.backends import watching

Call = Callable[..., Any]

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
T, HEADS, CHANNELS = 8, 1, 2
FORMS = ("parallel", "chunked", "recurrent")
FORMS_OF_WHOLE = FORMS[:2]  # where every token sees every token, there is no next token


def what_is_native() -> dict[str, dict[str, str]]:
    """By op and kind of call: the dtypes of inputs and the forms that run natively under backend="auto", or "torch"."""
    return {
        op: {what: _said(call, FORMS_OF_WHOLE if op.startswith("bidirectional") else FORMS) for what, call in calls.items()}
        for op, calls in CALLS.items()
    }


def _said(call: Call, forms: tuple[str, ...]) -> str:
    kinds: dict[tuple[str, ...], list[str]] = {}
    for dtype in DTYPES:
        if found := tuple(form for form in forms if not _reasons_for_torch(call, dtype, form)):
            kinds.setdefault(found, []).append(str(dtype).removeprefix("torch."))
    if not kinds:
        return f"torch: {_reasons_for_torch(call, DTYPES[0], forms[-1])[0]}"
    return "; ".join(f"native for {', '.join(dtypes)}: {', '.join(found)}" for found, dtypes in kinds.items())


def _reasons_for_torch(call: Call, dtype: torch.dtype, form: str) -> list[str]:
    """Of a sequence, or with form="recurrent" one token, as in decoding."""
    tokens = 1 if form == "recurrent" else T
    with torch.no_grad(), watching() as choices:
        call(_Made(dtype, tokens), form="auto" if form == "recurrent" else form)
    return [choice.reason for choice in choices if choice.reason]


class _Made:
    """Inputs of the right shapes."""

    def __init__(self, dtype: torch.dtype, tokens: int) -> None:
        self.dtype, self.tokens = dtype, tokens

    def __call__(self, *last: int) -> Tensor:
        return torch.zeros(1, self.tokens, *last, dtype=self.dtype, device="cpu")

    def parameter(self, *shape: int) -> Tensor:
        return torch.zeros(*shape, dtype=self.dtype, device="cpu")


def _attention(op: Call, make: _Made, *, form: str, decay: str | None = None, **options: Any) -> None:
    q, k, v = (make(HEADS, CHANNELS) for _ in range(3))
    log_decay = {None: None, "head": (HEADS,), "channel": (HEADS, CHANNELS)}[decay]
    given = {} if log_decay is None else {"log_decay": make(*log_decay)}
    op(q, k, v, **given, form=form, **options)


def _delta(make: _Made, *, form: str, **options: Any) -> None:
    _attention(partial(ops.delta_rule, beta=make(HEADS)), make, form=form, **options)


def _mlstm(make: _Made, *, form: str) -> None:
    q, k, v = (make(HEADS, CHANNELS) for _ in range(3))
    ops.mlstm(q, k, v, make(HEADS), make(HEADS), form=form)


def _conv(make: _Made, *, form: str) -> None:
    ops.short_conv(make(CHANNELS), make.parameter(CHANNELS, 4), form=form)


def _scan(make: _Made, *, form: str) -> None:
    ops.linear_scan(make(CHANNELS), make(CHANNELS), form=form)


def _gated(make: _Made, *, form: str) -> None:
    ops.gated_scan(make(CHANNELS), make(3 * CHANNELS), make(CHANNELS), form=form)


def _selective(make: _Made, *, form: str) -> None:
    x, dt, b, c = (make(CHANNELS) for _ in range(4))
    ops.selective_scan(x, dt, make.parameter(CHANNELS, CHANNELS), b, c, form=form)


_power: Call = partial(_attention, ops.power_attention)
_linear: Call = partial(_attention, ops.linear_attention)
_softmax: Call = partial(_attention, ops.softmax_attention)
_whole: Call = partial(_attention, ops.bidirectional_power)
ORDERS: tuple[Any, ...] = (1, 2, 3, 4, (1, 2), (0, 1, 2), (0, 1, 2, 3))

CALLS: dict[str, dict[str, Call]] = {
    "power_attention": {
        **{f"order {order}": partial(_power, order=order) for order in ORDERS},
        "order 2 with decay": partial(_power, decay="head"),
    },
    "linear_attention": {
        "without decay": _linear,
        "decay per head": partial(_linear, decay="head"),
        "decay per channel": partial(_linear, decay="channel"),
    },
    "softmax_attention": {
        "without decay": _softmax,
        "with decay": partial(_softmax, decay="head"),
        "with a window": partial(_softmax, decay="head", window=64),
    },
    "bidirectional_power": {
        **{f"order {order}": partial(_whole, order=order) for order in ORDERS},
        "order 2 with decay": partial(_whole, decay="head"),
    },
    "bidirectional_linear": {
        "without decay": partial(_attention, ops.bidirectional_linear),
        "decay per head": partial(_attention, ops.bidirectional_linear, decay="head"),
    },
    "inline_attention": {"causal": partial(_attention, ops.inline_attention)},
    "mlstm": {"exponential gate": _mlstm},
    "delta_rule": {
        **{f"order {order}": partial(_delta, order=order) for order in (1, 2, 3)},
        "decay per channel": partial(_delta, decay="channel"),
    },
    "short_conv": {"4 taps": _conv},
    "linear_scan": {"decay per channel": _scan},
    "gated_scan": {"gate per channel": _gated},
    "selective_scan": {"state per channel": _selective},
}
