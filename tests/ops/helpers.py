"""Every causal op behind one face, so that a law is written once and holds for all of them."""

# B batch, T time, H heads, G key-value heads, R = H/G, K key channels, V value channels

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from maclaurin import ops
from maclaurin.ops import reference

FORMS = ("parallel", "chunked", "recurrent")


@dataclass(frozen=True)
class Sizes:
    B: int = 2
    T: int = 11
    G: int = 2
    R: int = 2
    K: int = 5
    V: int = 3
    seed: int = 0


def sizes(**fixed: Any) -> st.SearchStrategy[Sizes]:
    """Small shapes: one token, one channel, one head, shared heads, odd and even, K above and below V."""
    drawn = {
        "B": st.integers(1, 3),
        "T": st.integers(1, 19),
        "G": st.integers(1, 2),
        "R": st.integers(1, 3),
        "K": st.integers(1, 7),
        "V": st.integers(1, 7),
        "seed": st.integers(0, 2**16),
    }
    return st.builds(Sizes, **{**drawn, **{name: st.just(value) for name, value in fixed.items()}})


@dataclass(frozen=True)
class Batch:
    """The inputs of one call: tensors along time (B, T, ...), and parameters that all tokens share."""

    tokens: dict[str, Tensor]
    parameters: dict[str, Tensor] = dataclasses.field(default_factory=dict)

    @property
    def length(self) -> int:
        return next(iter(self.tokens.values())).shape[1]

    def all(self) -> dict[str, Tensor]:
        return {**self.tokens, **self.parameters}

    def map(self, change: Callable[[Tensor], Tensor], parameters: bool = True) -> Batch:
        kept = {name: change(x) for name, x in self.parameters.items()} if parameters else self.parameters
        return Batch({name: change(x) for name, x in self.tokens.items()}, kept)

    def to(self, dtype: torch.dtype) -> Batch:
        return self.map(lambda x: x.to(dtype))

    def leaves(self) -> Batch:
        return self.map(lambda x: x.detach().clone().requires_grad_())

    def between(self, start: int | None, end: int | None) -> Batch:
        return self.map(lambda x: x[:, start:end], parameters=False)

    def rows(self, index: Any) -> Batch:
        return self.map(lambda x: x[index], parameters=False)


@dataclass(frozen=True)
class Op:
    """A mechanism: how to draw inputs for it in float64, how to call it, and what it must equal."""

    name: str
    draw: Callable[[Sizes], Batch]
    function: Callable[..., tuple[Tensor, ops.State | None]]
    oracle: Callable[..., Tensor]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    oracle_options: dict[str, Any] | None = None
    folds: bool = False  # whether it takes fold_at and fold_every
    chunks: bool = True  # whether it takes chunk_size

    def __call__(self, batch: Batch, chunk: int = 4, fold: tuple[int, int] = (6, 3), **options: Any) -> Any:
        if self.chunks:
            options.setdefault("chunk_size", chunk)
        if self.folds:
            options.setdefault("fold_at", fold[0])
            options.setdefault("fold_every", fold[1])
        return self.function(**batch.all(), **self.options, **options)

    def reference(self, batch: Batch) -> Tensor:
        options = self.options if self.oracle_options is None else self.oracle_options
        return self.oracle(**batch.all(), **options)


def attention_inputs(decay: str | None = None, positive: bool = False, orders: int = 0) -> Callable[[Sizes], Batch]:
    """`decay` is None, "kv" (one a key-value head), "q" (one a query head), or "channel"."""

    def draw(s: Sizes) -> Batch:
        generator = torch.Generator().manual_seed(s.seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        H = s.G * s.R
        q, k, v = normal(s.B, s.T, H, s.K), normal(s.B, s.T, s.G, s.K), normal(s.B, s.T, s.G, s.V)
        if positive:
            # weights of one sign: an odd power of signed scores can sum to almost zero, where no precision is enough
            q, k = q.abs() + 0.1, k.abs() + 0.1
        tokens = {"q": q, "k": k, "v": v}
        if decay is not None:
            shape = {"kv": (s.G,), "q": (H,), "channel": (s.G, s.K), "q-channel": (H, s.K)}[decay]
            tokens["log_decay"] = -normal(s.B, s.T, *shape).abs()
        return Batch(tokens, {"order_weights": 0.5 + normal(H, orders).abs()} if orders else {})

    return draw


def delta_inputs(decay: str | None = None) -> Callable[[Sizes], Batch]:
    """Keys of unit length, β between 0 and 2."""
    plain = attention_inputs(decay)

    def draw(s: Sizes) -> Batch:
        tokens = plain(s).tokens
        tokens["k"] = torch.nn.functional.normalize(tokens["k"], dim=-1)
        generator = torch.Generator().manual_seed(s.seed + 1)
        tokens["beta"] = 2 * torch.rand(s.B, s.T, s.G, generator=generator, dtype=torch.float64)
        return Batch(tokens)

    return draw


def conv_inputs(width: int, bias: bool) -> Callable[[Sizes], Batch]:
    def draw(s: Sizes) -> Batch:
        generator = torch.Generator().manual_seed(s.seed)
        channels = s.G * s.K
        parameters = {"weight": torch.randn(channels, width, generator=generator, dtype=torch.float64)}
        if bias:
            parameters["bias"] = torch.randn(channels, generator=generator, dtype=torch.float64)
        return Batch({"x": torch.randn(s.B, s.T, channels, generator=generator, dtype=torch.float64)}, parameters)

    return draw


def scan_inputs(s: Sizes) -> Batch:
    generator = torch.Generator().manual_seed(s.seed)
    x, a = (torch.randn(s.B, s.T, s.G * s.K, generator=generator, dtype=torch.float64) for _ in range(2))
    return Batch({"x": x, "log_decay": -a.abs()})


def selective_inputs(s: Sizes) -> Batch:
    generator = torch.Generator().manual_seed(s.seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    C = s.G * s.K
    tokens = {
        "x": normal(s.B, s.T, C),
        "dt": normal(s.B, s.T, C).abs(),
        "b": normal(s.B, s.T, s.V),
        "c": normal(s.B, s.T, s.V),
    }
    return Batch(tokens, {"rate": normal(C, s.V).abs()})


def _reference_power(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None = None, **options: Any) -> Tensor:
    weights = options.pop("order_weights", None)
    return reference.power_attention(q, k, v, log_decay, order_weights_HN=weights, **options)


def _reference_softmax(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None = None, **options: Any) -> Tensor:
    return reference.softmax_attention(q, k, v, log_decay, **options)


def _reference_linear(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None = None, **options: Any) -> Tensor:
    return reference.linear_attention(q, k, v, log_decay, **options)


def _reference_inline(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return reference.inline_attention(q, k, v, **options)


def _reference_conv(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return reference.short_conv(x, weight, bias)


def _reference_scan(x: Tensor, log_decay: Tensor) -> Tensor:
    return reference.linear_scan(x, log_decay)


def _reference_selective(x: Tensor, dt: Tensor, b: Tensor, c: Tensor, rate: Tensor) -> Tensor:
    return reference.selective_scan(x, dt, rate, b, c)


def power(
    name: str, order: Any, decay: str | None = None, *, positive: bool = False, weighted: bool = False, **options: Any
) -> Op:
    draw = attention_inputs(decay, positive, orders=len(order) if weighted else 0)
    return Op(name, draw, ops.power_attention, _reference_power, {"order": order, **options}, folds=True)


def linear(name: str, decay: str | None, **options: Any) -> Op:
    draw = attention_inputs(decay, positive=options.get("normalize", True))
    return Op(name, draw, ops.linear_attention, _reference_linear, options)


def softmax(name: str, decay: str | None = None, **options: Any) -> Op:
    return Op(name, attention_inputs(decay), ops.softmax_attention, _reference_softmax, options)


def _reference_delta(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor | None = None, **options: Any
) -> Tensor:
    return reference.delta_rule(q, k, v, beta, log_decay, **options)


def delta(name: str, order: int, decay: str | None = None, **options: Any) -> Op:
    return Op(name, delta_inputs(decay), ops.delta_rule, _reference_delta, {"order": order, **options})


def inline(name: str, **options: Any) -> Op:
    return Op(name, attention_inputs(), ops.inline_attention, _reference_inline, options)


def conv(name: str, width: int, bias: bool = True) -> Op:
    return Op(name, conv_inputs(width, bias), ops.short_conv, _reference_conv, chunks=False)


ALL = [
    power("power-2", 2),
    power("power-2-decay", 2, "kv"),
    power("power-2-decay-per-query-head", 2, "q"),
    power("power-2-sums", 2, "kv", normalize=False, scale=0.7),
    power("power-1", 1, "kv", normalize=False),
    power("power-3", 3, "kv", normalize=False),
    power("power-3-normalised", 3, "kv", positive=True),
    power("power-4", 4, None),
    power("taylor-2", (0, 1, 2), "kv"),
    power("taylor-2-weighted", (0, 1, 2), "kv", weighted=True),
    power("taylor-gaps", (1, 4), "kv", normalize=False),
    power("taylor-5", (0, 1, 2, 3, 4, 5), "kv", positive=True, scale=0.3),
    linear("linear", None),
    linear("linear-decay", "kv"),
    linear("linear-decay-sums", "q", normalize=False),
    linear("linear-channel", "channel"),
    linear("linear-channel-sums", "channel", normalize=False),
    linear("linear-channel-per-query-head", "q-channel"),
    softmax("softmax"),
    softmax("softmax-decay", "kv"),
    softmax("softmax-decay-per-query-head", "q"),
    softmax("softmax-window", window=3),
    softmax("softmax-window-decay", "kv", window=4),
    softmax("softmax-window-1", window=1),
    softmax("softmax-floored-sum", "kv", divisor="floored-sum"),
    softmax("softmax-count", "kv", divisor="count"),
    softmax("softmax-none", divisor="none", window=5),
    softmax("softmax-cap", "kv", score_cap=0.4),
    softmax("softmax-relu", "kv", numerator="relu"),
    softmax("softmax-relu-count", numerator="relu", divisor="count"),
    inline("inline"),
    inline("inline-scale", scale=2.0),
    Op("scan", scan_inputs, ops.linear_scan, _reference_scan),
    Op("selective", selective_inputs, ops.selective_scan, _reference_selective),
    conv("conv-4", 4),
    conv("conv-1", 1, bias=False),
    conv("conv-2", 2, bias=False),
    delta("delta", 1),
    delta("delta-decay", 1, "kv"),
    delta("delta-decay-per-query-head", 1, "q", scale=1.0),
    delta("delta-channel", 1, "channel"),
    delta("delta-channel-per-query-head", 1, "q-channel"),
    delta("delta-2", 2, scale=1.0),
    delta("delta-2-decay", 2, "kv"),
]
BY_NAME = {op.name: op for op in ALL}
# one of each kind of state and code path, for laws that take longer
FEW = [
    BY_NAME[name]
    for name in (
        "power-2-decay",
        "power-2-decay-per-query-head",
        "power-3",
        "taylor-2-weighted",
        "linear-decay",
        "linear-channel",
        "softmax",
        "softmax-window-decay",
        "softmax-count",
        "inline",
        "scan",
        "selective",
        "conv-4",
        "delta-decay",
        "delta-channel",
        "delta-2-decay",
    )
]


def every(chosen: list[Op]) -> Any:
    import pytest

    return pytest.mark.parametrize("op", chosen, ids=[op.name for op in chosen])


def distance(actual: Tensor, expected: Tensor) -> float:
    """‖actual - expected‖ / ‖expected‖, and the plain distance where what is expected is zero."""
    expected = expected.double()
    error = (actual.double() - expected).norm().item()
    size = expected.norm().item()
    return error / size if size > 0 else error


def assert_close(actual: Tensor, expected: Tensor, tolerance: float, what: str = "") -> None:
    assert actual.shape == expected.shape, f"{what}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    error = distance(actual, expected)
    # not(<=) rather than >, so that NaN fails
    assert not math.isnan(error) and error <= tolerance, f"{what}: off by {error:.2e}, allowed {tolerance:.0e}"


def assert_same_state(actual: ops.State, expected: ops.State, tolerance: float = 1e-10) -> None:
    assert type(actual) is type(expected)
    assert actual.tensors().keys() == expected.tensors().keys()
    for name, tensor in expected.tensors().items():
        assert actual.tensors()[name].dtype == tensor.dtype, name
        assert_close(actual.tensors()[name], tensor, tolerance, f"state.{name}")


def projections(tensors: list[Tensor], seed: int = 7) -> Tensor:
    """A random weighted sum of everything: a loss that feels each number in its own way."""
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros((), dtype=torch.float64)
    for tensor in tensors:
        if tensor.is_floating_point():
            total = total + (tensor * torch.randn(tensor.shape, generator=generator, dtype=torch.float64)).sum()
    return total


def gradients(loss: Tensor, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if grad is None else grad
        for (name, leaf), grad in zip(leaves.items(), found, strict=True)
    }


def assert_same_gradients(actual: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-8) -> None:
    assert actual.keys() == expected.keys()
    # to the tolerance, or to a thousandth of it beside all gradients together: one that is zero but for rounding (that
    # of q, if K = 1 and outputs are normalised) must not be divided by itself
    whole = sum(grad.norm().item() for grad in expected.values())
    for name, grad in expected.items():
        error = (actual[name] - grad).norm().item() / max(grad.norm().item(), 1e-3 * whole, 1e-300)
        assert not math.isnan(error) and error <= tolerance, f"gradient of {name} off by {error:.2e}"


def state_of(op: Op, batch: Batch, **options: Any) -> ops.State:
    _, state = op(batch, **options)
    assert state is not None
    return state
