"""Whether the C++ kernels compute what they should on this machine: every op that has some, all forms, all gradients.

What is right is the torch backend in float64, which is itself compared with `ops/reference.py`. What is allowed follows from
what the torch backend loses in float32 on the same numbers. Sequences are run in two pieces, so that states go in and out.
"""

# B batch, T time, H heads, G key-value heads, K key channels, V value channels, C channels, N state dimensions, W taps

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from maclaurin import ops
from maclaurin.ops import native, reference
from maclaurin.ops.arithmetic import safe_divide
from maclaurin.ops.backends import watching
from maclaurin.ops.native.nan import any_nan

Tensors = dict[str, Tensor]

EXACT = 1e-10  # of float64, relative: what torch may differ from the reference by
TIMES_TORCH = 4  # what torch loses in float32, as other orders of summation lose more or less by chance
ROUNDINGS = 16 * torch.finfo(torch.float32).eps  # where torch happens to lose next to nothing


@dataclass(frozen=True)
class Sizes:
    """A few tokens beside a whole block, and channels beside whole vectors."""

    B: int
    T: int
    G: int
    R: int
    K: int
    V: int
    chunk: int
    fold: tuple[int, int]  # fold_at, fold_every


SHORT = Sizes(B=2, T=13, G=2, R=2, K=5, V=3, chunk=4, fold=(6, 3))
LONG = Sizes(B=1, T=149, G=2, R=3, K=19, V=33, chunk=64, fold=(40, 17))  # past a block of each kernel
FORMS = {SHORT: ("parallel", "chunked", "recurrent", "steps"), LONG: ("parallel", "chunked")}
WHOLE = ("chunked",)  # where every token sees every token


@dataclass(frozen=True)
class Case:
    """One way to call an op. draw: its inputs in float64, (B,T,…) but for those of all tokens, named in `shared`.

    oracle: what it must be, from the same inputs in the same order.
    """

    op: str
    what: str
    draw: Callable[[Sizes], Tensors]
    oracle: Callable[..., Tensor]
    options: dict[str, Any] = field(default_factory=dict)
    shared: tuple[str, ...] = ()
    folds: bool = False
    chunks: bool = True
    causal: bool = True
    forms: bool = True

    def call(self, inputs: Tensors, state: Any, size: Sizes, form: str, backend: str) -> tuple[Tensor, Any]:
        function, options = getattr(ops, self.op), dict(self.options)
        if not self.causal:
            with native.using_backend(backend):
                return function(**inputs, **({"form": form} if self.forms else {}), **options), None
        if self.chunks:
            options["chunk_size"] = size.chunk
        if self.folds:
            options["fold_at"], options["fold_every"] = size.fold
        result: tuple[Tensor, Any] = function(**inputs, state=state, form=form, backend=backend, **options)
        return result


@dataclass(frozen=True)
class Finding:
    """wrong: a sentence, or None. share: the largest error as a share of what is allowed."""

    op: str
    what: str
    wrong: str | None
    share: float


def examine_torch() -> Iterator[Finding]:
    """The torch backend in float64, with the backward passes derived by hand, against autograd through the reference."""
    for case in CASES:
        drawn = case.draw(SHORT)
        for form in ("parallel", "chunked", "recurrent") if case.causal else WHOLE:
            inputs = {name: x.clone().requires_grad_() for name, x in drawn.items()}
            y, _ = case.call(inputs, None, SHORT, form, "torch")
            expected = case.oracle(*inputs.values())
            wrong, share = None, 0.0
            for name, got, right in (("y", y, expected), *_gradients(inputs, y, expected)):
                off = ((got - right).norm() / right.norm()).item()
                if not off <= EXACT:
                    wrong = f"{name} is off by {off:.0e} in float64"
                share = max(share, off / EXACT)
            yield Finding(case.op, f"{case.what}, form {form}", wrong, share)


def _gradients(inputs: Tensors, *results: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    found = [torch.autograd.grad(_projected([result]), list(inputs.values())) for result in results]
    for name, got, right in zip(inputs, *found, strict=True):
        yield f"gradient of {name}", got, right


def examine_native() -> Iterator[Finding]:
    """The C++ kernels in float32, with the threads that torch has, against the torch backend in float64."""
    threads = torch.get_num_threads()
    yield _nan_is_found()
    for case in CASES:
        for size in (SHORT, LONG):
            inputs = case.draw(size)
            for form in FORMS[size] if case.causal else WHOLE:
                name = f"{case.what}, form {form}, {size.T} tokens"
                torch.set_num_threads(1)  # torch's own would wait for work beside the few numbers here, at full speed
                exact, single = (_outputs(case, inputs, size, form, "torch", x) for x in (torch.float64, torch.float32))
                torch.set_num_threads(threads)
                try:
                    got = _outputs(case, inputs, size, form, "native", torch.float32)
                except _NotNativeError as error:
                    yield Finding(case.op, name, str(error), 0.0)
                else:
                    yield Finding(case.op, name, *_compared(got, single, exact))


def _compared(got: Tensors, single: Tensors, exact: Tensors) -> tuple[str | None, float]:
    """A gradient may be zero but for rounding, and is then judged beside all of them."""
    together = sum(x.norm().item() for name, x in exact.items() if name.startswith("gradient"))
    largest = 0.0
    for name, expected in exact.items():
        size = expected.norm().item()
        error, of_torch = ((x[name].double() - expected).norm().item() for x in (got, single))
        beside = 0.1 * together if name.startswith("gradient") else 0.0
        allowed = TIMES_TORCH * of_torch + ROUNDINGS * max(size, beside)
        if not error <= allowed:
            unit = max(size, beside, 1e-30)
            return f"{name} is off by {error / unit:.0e}, torch in float32 by {of_torch / unit:.0e}", 0.0
        largest = max(largest, error / allowed if allowed else 0.0)
    return None, largest


class _NotNativeError(Exception):
    """What should have been computed by a kernel was not: its check would check nothing."""


def _outputs(case: Case, drawn: Tensors, size: Sizes, form: str, backend: str, dtype: torch.dtype) -> Tensors:
    """y, the tensors of the last state, and, but for single steps, the gradients of all inputs."""
    if form == "steps":
        with torch.no_grad():
            return _steps(case, {name: x.to(dtype) for name, x in drawn.items()}, size, backend)
    inputs = {name: x.to(dtype).requires_grad_() for name, x in drawn.items()}
    bounds = (0, 2 * size.T // 3, size.T) if case.causal else (0, size.T)
    pieces, state = [], None
    with watching() as choices:
        for start, end in pairwise(bounds):
            part = {name: x if name in case.shared else x[:, start:end] for name, x in inputs.items()}
            y, state = case.call(part, state, size, form, backend)
            pieces.append(y)
    if any(choice.backend != backend for choice in choices):
        raise _NotNativeError(f"{case.op} did not run in its {backend} backend")
    found = {"y": torch.cat(pieces, dim=1)} | _numbers(state)
    loss = _projected(list(found.values()))
    gradients = torch.autograd.grad(loss, list(inputs.values()))
    return found | {f"gradient of {name}": x for name, x in zip(inputs, gradients, strict=True)}


def _steps(case: Case, inputs: Tensors, size: Sizes, backend: str) -> Tensors:
    """Token by token, as in decoding. The native step of second order is a function of its own, which "auto" takes."""
    pieces, state = [], None
    for t in range(size.T):
        part = {name: x if name in case.shared else x[:, t : t + 1] for name, x in inputs.items()}
        with native.using_backend(backend):
            y, state = case.call(part, state, size, "recurrent", "auto")
        pieces.append(y)
        plain = case.folds and "order" not in case.options
        if plain and backend == "native" and t > size.fold[0] and "source" not in state.__dict__:
            raise _NotNativeError(f"{case.op} did not take its plain step")
    return {"y": torch.cat(pieces, dim=1)} | _numbers(state)


def _numbers(state: Any) -> Tensors:
    tensors = {} if state is None else state.tensors()
    return {f"state.{name}": x for name, x in tensors.items() if x.is_floating_point() and x.numel()}


def _projected(tensors: list[Tensor]) -> Tensor:
    """A random weighted sum of everything, which feels each number in its own way."""
    normal = _normals(7)
    return torch.stack([(x.double() * normal(*x.shape)).sum() for x in tensors]).sum()


def _nan_is_found() -> Finding:
    """At every place of a length beside whole vectors; infinities are none."""
    x = torch.full((67,), torch.inf, dtype=torch.float32, device="cpu")
    wrong = "infinity is taken for NaN" if any_nan(x) else None
    for place in range(len(x)):
        x[place] = torch.nan
        if not any_nan(x):
            wrong = f"a NaN at place {place} of {len(x)} is not found"
        x[place] = -1.0
    return Finding("the look for a NaN", "float32", wrong, 0.0)


# --- what is drawn


def _normals(seed: int) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return partial(torch.randn, generator=generator, dtype=torch.float64, device="cpu")


def _attention(size: Sizes, *, decay: str | None = None, positive: bool = False) -> Tensors:
    """decay: "head" or "channel". positive: scores above 0, as sums of others may be too small for any precision."""
    normal, H = _normals(size.T), size.G * size.R
    q, k, v = (normal(size.B, size.T, *last) for last in ((H, size.K), (size.G, size.K), (size.G, size.V)))
    if positive:
        q, k = q.abs() + 0.1, k.abs() + 0.1
    tokens = {"q": q, "k": k, "v": v}
    if decay is not None:
        last = (size.G,) if decay == "head" else (size.G, size.K)
        tokens["log_decay"] = -0.3 * normal(size.B, size.T, *last).abs()
    # heads before time: kernels take any strides
    return {name: x.transpose(1, 2).contiguous().transpose(1, 2) for name, x in tokens.items()}


def _delta(size: Sizes, *, decay: str | None = None) -> Tensors:
    """Keys of unit length: with longer ones the rule itself may grow."""
    tokens, normal = _attention(size, decay=decay), _normals(size.T + 1)
    tokens["k"] = torch.nn.functional.normalize(tokens["k"], dim=-1)
    beta = normal(size.B, size.T, size.G).sigmoid()
    return {name: tokens[name] for name in ("q", "k", "v")} | {"beta": beta} | tokens


def _gates(size: Sizes) -> Tensors:
    normal = _normals(size.T + 1)
    gates = {name: normal(size.B, size.T, size.G) for name in ("input_gate", "forget_gate")}
    return _attention(size) | gates


def _convolution(size: Sizes, *, width: int, bias: bool) -> Tensors:
    normal, C = _normals(size.T), size.G * size.K
    drawn = {"x": normal(size.B, size.T, C), "weight": normal(C, width)}
    return drawn | ({"bias": normal(C)} if bias else {})


def _scan(size: Sizes) -> Tensors:
    normal, C = _normals(size.T), size.G * size.V
    return {"x": normal(size.B, size.T, C), "log_decay": -0.3 * normal(size.B, size.T, C).abs()}


def _gated(size: Sizes) -> Tensors:
    normal, C = _normals(size.T), size.G * size.V
    return {name: normal(size.B, size.T, channels) for name, channels in (("u", C), ("gates", 3 * C), ("g", C))}


def _selective(size: Sizes) -> Tensors:
    normal, C, N = _normals(size.T), size.G * size.V, size.K
    x, dt, b, c = (normal(size.B, size.T, last) for last in (C, C, N, N))
    return {"x": x, "dt": 0.3 * dt.abs(), "rate": normal(C, N).abs(), "b": b, "c": c}


def _network(size: Sizes) -> Tensors:
    """More numbers than the sum itself is quicker for."""
    normal, N, L = _normals(size.T), size.K, size.V
    drawn = {"u": normal(size.B, size.T, 4 * N), "weight_in": normal(N), "bias_in": normal(N)}
    return drawn | {"weight_out": normal(N, L), "bias_out": normal(L)}


def _filter(size: Sizes) -> Tensors:
    """Three taps from the means of as many inputs as there are key channels."""
    normal, H, hidden, outputs = _normals(size.T), size.G, size.K, 3 * size.V
    drawn = {"x_BTHI": normal(size.B, size.T, H, size.K), "v_BTHV": normal(size.B, size.T, H, size.V)}
    weights = (normal(H, size.K, hidden), normal(H, hidden), normal(H, hidden, outputs), normal(H, outputs))
    return drawn | dict(zip(_OF_FILTER, weights, strict=True))


def _angles(size: Sizes) -> Tensors:
    """Of pairs of channels, one for all heads."""
    normal = _normals(size.T)
    return {"x": normal(size.B, size.T, size.G, 2 * size.K), "angles": 3 * normal(size.B, size.T, 1, size.K)}


# --- what it must be


def _turned(x: Tensor, angles: Tensor, *, interleaved: bool = False) -> Tensor:
    """Pairs as complex numbers."""
    parts = x.unflatten(-1, (-1, 2)) if interleaved else x.unflatten(-1, (2, -1)).mT
    pairs = torch.view_as_complex(parts.contiguous())
    turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles))
    return (turned if interleaved else turned.mT).flatten(-2)


def _silu_conv(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.nn.functional.silu(reference.short_conv(x, weight, bias))


def _both_ways(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None = None, *, order: Any = 2, normalize: bool = True
) -> Tensor:
    """The sums over earlier tokens and over later ones, a token's own counted once."""
    values = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)
    a = torch.zeros_like(k[..., 0]) if log_decay is None else log_decay
    given = (q, k, values, a)
    causal = partial(reference.power_attention, order=order, normalize=False)
    later = causal(*(x.flip(1) for x in given)).flip(1)
    own = causal(*(x.flatten(0, 1)[:, None] for x in given)).view_as(later)
    sums = causal(*given) + later - own
    return safe_divide(sums[..., :-1], sums[..., -1:]) if normalize else sums[..., :-1]


def _attention_case(op: str, what: str, oracle: Callable[..., Tensor], *, causal: bool = True, **options: Any) -> Case:
    """`decay` and `positive` are for the inputs, what remains for the op."""
    drawn = {name: options.pop(name) for name in ("decay", "positive") if name in options}
    draw, oracle = partial(_attention, **drawn), partial(oracle, **options)
    return Case(op, what, draw, oracle, options, folds=op == "power_attention", causal=causal)


def _delta_case(what: str, *, decay: str | None = None, order: int = 1) -> Case:
    oracle = partial(reference.delta_rule, order=order)
    return Case("delta_rule", what, partial(_delta, decay=decay), oracle, {"order": order})


_power = partial(_attention_case, "power_attention", oracle=reference.power_attention)
_linear = partial(_attention_case, "linear_attention", oracle=reference.linear_attention)
_softmax = partial(_attention_case, "softmax_attention", oracle=reference.softmax_attention)
_whole = partial(_attention_case, "bidirectional_power", oracle=_both_ways, causal=False)
_both_linear = partial(_attention_case, "bidirectional_linear", oracle=partial(_both_ways, order=1), causal=False)
_conv = partial(Case, "short_conv", shared=("weight", "bias"), chunks=False)

_WEIGHTS = ("weight_in", "bias_in", "weight_out", "bias_out")

_OF_FILTER = ("first_HIC", "first_bias_HC", "second_HCE", "second_bias_HE")

CASES = (
    _power(what="order 2"),
    _power(what="order 2 with decay", decay="head"),
    _power(what="order 2 with decay, not normalised", decay="head", normalize=False),
    _power(what="orders 1 and 2 with decay", decay="head", order=(1, 2), positive=True),
    _power(what="orders 0 to 2 with decay", decay="head", order=(0, 1, 2)),
    _softmax(what="with decay", decay="head"),
    _linear(what="without decay", positive=True),
    _linear(what="decay per head", decay="head", positive=True),
    _linear(what="decay per channel", decay="channel", positive=True),
    _linear(what="decay per channel, not normalised", decay="channel", normalize=False),
    _whole(what="order 2"),
    _whole(what="order 2 with decay", decay="head"),
    _whole(what="orders 0 to 2", order=(0, 1, 2)),
    _both_linear(what="with decay", decay="head", positive=True),
    Case("inline_attention", "centred keys", _attention, reference.inline_attention),
    _delta_case("order 1"),
    _delta_case("order 1 with decay", decay="head"),
    _delta_case("order 1, decay per channel", decay="channel"),
    _delta_case("order 2 with decay", decay="head", order=2),
    Case("mlstm", "exponential input gate", _gates, reference.mlstm),
    _conv("4 taps, silu", partial(_convolution, width=4, bias=True), _silu_conv, {"activation": "silu"}),
    _conv("2 taps", partial(_convolution, width=2, bias=False), reference.short_conv),
    Case("linear_scan", "decay per channel", _scan, reference.linear_scan),
    Case("gated_scan", "gate per channel", _gated, reference.gated_scan),
    Case("selective_scan", "state per channel", _selective, reference.selective_scan, shared=("rate",)),
    Case("scalar_mlp", "by its table", _network, reference.scalar_mlp, shared=_WEIGHTS, causal=False, forms=False),
    Case("mean_filter", "3 taps", _filter, reference.mean_filter, shared=_OF_FILTER, causal=False, forms=False),
    Case("rotate", "pairs in halves", _angles, _turned, causal=False, forms=False),
    Case(
        "rotate", "neighbours", _angles, partial(_turned, interleaved=True), {"interleaved": True}, causal=False, forms=False
    ),
)
