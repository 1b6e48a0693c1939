"""What a model does at a length: the form and the backend of every op of every layer, and why where it is not native.

Nothing is computed. Layers run on fake tensors, which have shapes, dtypes and devices but no numbers, and the ops themselves
say what they have decided (`ops/backends.py`): there is no second copy of their rules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from maclaurin.common.arguments import at_least_one
from maclaurin.common.records import Record
from maclaurin.ops.backends import Choice, watching
from maclaurin.ops.states import State

PLAIN = (bool, int, float, str, tuple, type(None))


@runtime_checkable
class Layer(Protocol):
    """A module that calls ops, such as a mixer, and can be called on zeros of any length."""

    def on_zeros(self, tokens: int, state: Any, return_state: bool) -> tuple[Tensor, Any]: ...

    @property
    def has_states(self) -> bool: ...


@dataclass(frozen=True)
class Decision(Record):
    """One call of an op. reason: why it runs in torch; None where the C++ kernels run."""

    op: str
    form: str
    backend: str
    reason: str | None


@dataclass(frozen=True)
class Explained(Record):
    """One layer: its ops in the order of their calls. refused: why it does not take that many tokens, if it does not.

    training: all tokens, with gradients. prefill: the same without gradients, where there are states with the state after
    them. decoding: one more token; empty where there is no state.
    """

    name: str
    kind: str
    training: tuple[Decision, ...]
    prefill: tuple[Decision, ...]
    decoding: tuple[Decision, ...]
    refused: str | None = None

    def lines(self) -> Iterator[str]:
        if self.refused:
            yield f"  refused: {self.refused}"
        for phase in ("training", "prefill", "decoding"):
            decisions = list(dict.fromkeys(getattr(self, phase)))
            if decisions:
                yield f"  {phase:9} " + ", ".join(f"{one.op}: {one.form}, {one.backend}" for one in decisions)
        everything = self.training + self.prefill + self.decoding
        for op, reason in dict.fromkeys((one.op, one.reason) for one in everything if one.reason):
            yield f"            {op} runs in torch: {reason}"


@dataclass(frozen=True)
class Explanation(Record):
    length: int
    layers: tuple[Explained, ...]

    def __str__(self) -> str:
        """Layers that do the same stand together."""
        alike: dict[tuple[str, ...], list[Explained]] = {}
        for layer in self.layers:
            alike.setdefault((layer.kind, *layer.lines()), []).append(layer)
        lines = [f"{self.length} tokens"]
        for (kind, *text), layers in alike.items():
            first, last = layers[0].name, layers[-1].name
            names = first if len(layers) == 1 else f"{first} … {last} ({len(layers)} layers)"
            lines += [f"{names}: {kind}" if names else kind, *text]
        return "\n".join(lines)


def explain(model: nn.Module, length: int) -> Explanation:
    """Print the form and the backend of each layer at a length, in training, prefill and decoding; return them as a record.

    model: a mixer, or any module that has mixers or students of conversions inside.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a module, got {type(model).__name__}")
    at_least_one("length", length)
    layers = list(_layers(model))
    if not layers:
        raise ValueError(f"model must be a mixer or hold mixers, got {type(model).__name__}, which has none")
    known: dict[object, Explained] = {}  # layers of one kind and size decide alike
    explained = []
    for name, layer in layers:
        key = _key(layer)
        if key not in known:
            known[key] = _explained(layer, length)
        explained.append(dataclasses.replace(known[key], name=name))
    result = Explanation(length, tuple(explained))
    print(result)
    return result


def _layers(model: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The outermost ones: a layer may be made of others."""
    if isinstance(model, Layer):
        yield name, model
        return
    for child, module in model.named_children():
        yield from _layers(module, f"{name}.{child}" if name else child)


def _key(layer: nn.Module) -> object:
    """Classes, options and sizes: all that a decision can depend on."""
    tensors = [*layer.named_parameters(), *layer.named_buffers()]
    options = [
        (type(part), sorted((key, repr(value)) for key, value in vars(part).items() if _is_option(value)))
        for part in layer.modules()
    ]
    return repr(options), repr([(name, x.shape, x.dtype, x.device, x.requires_grad) for name, x in tensors])


def _is_option(value: object) -> bool:
    return isinstance(value, PLAIN) or (dataclasses.is_dataclass(value) and not isinstance(value, State))


def _explained(layer: Any, length: int) -> Explained:
    seen: dict[str, tuple[Decision, ...]] = {"training": (), "prefill": (), "decoding": ()}
    refused, state = None, None
    with FakeTensorMode(allow_non_fake_inputs=True):
        try:
            with torch.enable_grad(), watching() as choices:
                layer.on_zeros(length, None, return_state=False)
            seen["training"] = _decisions(choices)
            with torch.no_grad(), watching() as choices:
                _, state = layer.on_zeros(length, None, return_state=layer.has_states)
            seen["prefill"] = _decisions(choices)
            if state is not None:
                with torch.no_grad(), watching() as choices:
                    layer.on_zeros(1, state, return_state=True)
                seen["decoding"] = _decisions(choices)
        except ValueError as error:  # an image has a length of its own, MACLAURIN_BACKEND=native its conditions
            refused = str(error)
    return Explained("", getattr(layer, "kind", type(layer).__name__), **seen, refused=refused)


def _decisions(choices: list[Choice]) -> tuple[Decision, ...]:
    return tuple(Decision(one.op, one.form, one.backend, one.reason) for one in choices)
