"""States: small dataclasses of tensors, one row a sequence, that carry a mechanism from one call to the next.

Nothing is kept on modules; a state goes in as an argument and comes out as a result.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True)
class State:
    """Base of all states. Fields are tensors whose first dimension is the batch, other states, or None."""

    _classes: ClassVar[dict[str, type[State]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        State._classes[cls.__name__] = cls

    def __getstate__(self) -> dict[str, Any]:
        """What copies are made of: the fields, and nothing that a state remembers beside them."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def _map(self, change: Callable[[Tensor], Tensor]) -> Self:
        changed = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, State):
                value = value._map(change)
            elif value is not None:
                value = change(value)
            changed[field.name] = value
        return type(self)(**changed)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by its dotted name."""
        found: dict[str, Tensor] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, State):
                found.update({f"{field.name}.{name}": tensor for name, tensor in value.tensors().items()})
            elif value is not None:
                found[field.name] = value
        return found

    @property
    def nbytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors().values())

    @property
    def batch_size(self) -> int:
        for tensor in self.tensors().values():
            return int(tensor.shape[0])
        raise ValueError("a state without tensors has no batch size")

    def to(self, device: torch.device | str) -> Self:
        """The same state on another device. Precision is part of a state's meaning and is not changed."""
        return self._map(lambda tensor: tensor.to(device))

    def detach(self) -> Self:
        return self._map(Tensor.detach)

    def clone(self) -> Self:
        return self._map(Tensor.clone)

    def select(self, batch_indices: Tensor | Sequence[int]) -> Self:
        """Rows by index, in any order and with repeats: beams, reordering, dropping finished sequences."""
        return self._map(lambda tensor: tensor.index_select(0, torch.as_tensor(batch_indices, device=tensor.device)))

    @classmethod
    def cat(cls, states: Sequence[Self]) -> Self:
        """The rows of several states as one. Token buffers of different length are padded on the left."""
        return cls(**{field.name: cls._cat_field(field.name, states) for field in dataclasses.fields(cls)})

    @classmethod
    def _cat_field(cls, name: str, states: Sequence[Self]) -> Any:
        values = [getattr(state, name) for state in states]
        if all(value is None for value in values):
            return None
        if isinstance(values[0], State):
            return type(values[0]).cat(values)
        return torch.cat(values)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file; the old file stays whole until the new one is complete."""
        from safetensors.torch import save_file

        # copies, because safetensors refuses tensors that share memory, as keys and values of one tensor do
        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in self.tensors().items()}
        target = Path(path)
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
        try:
            save_file(tensors, temporary, metadata={"state": json.dumps(self._layout())})
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    @staticmethod
    def load(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> State:
        """Read what `save` wrote. Nothing is unpickled: a file names only state classes known here."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt", device=str(device)) as file:
                described = (file.metadata() or {}).get("state")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(f"{os.fspath(path)} is not a saved state: {error}") from error
        if described is None:
            raise ValueError(f"{os.fspath(path)} is not a saved state: it has no 'state' entry in its metadata")
        return State._from_layout(json.loads(described), tensors, "")

    def _layout(self) -> dict[str, Any]:
        nested = {
            field.name: value._layout()
            for field in dataclasses.fields(self)
            if isinstance(value := getattr(self, field.name), State)
        }
        tensors = [name for name in self.tensors() if "." not in name]
        return {"class": type(self).__name__, "states": nested, "tensors": tensors}

    @staticmethod
    def _from_layout(layout: dict[str, Any], tensors: dict[str, Tensor], prefix: str) -> State:
        if layout["class"] not in State._classes:
            raise ValueError(f"the saved state has the unknown class {layout['class']!r}")
        cls = State._classes[layout["class"]]
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            if field.name in layout["states"]:
                nested = layout["states"][field.name]
                values[field.name] = State._from_layout(nested, tensors, f"{prefix}{field.name}.")
            else:
                values[field.name] = tensors.get(prefix + field.name)
                if values[field.name] is None and field.name in layout["tensors"]:
                    raise ValueError(f"the saved {cls.__name__} has lost its tensor {prefix + field.name!r}")
        return cls(**values)


@dataclass(frozen=True)
class ConvState(State):
    """The last width-1 inputs of a causal convolution, newest last."""

    inputs: Tensor  # (B, width-1, channels)


@dataclass(frozen=True)
class LinearState(State):
    """The memory of first-order attention with per-channel decay."""

    memory: Tensor  # (B, G, K, V), or (B, G, K, V+1) where the last column sums the keys


@dataclass(frozen=True)
class DeltaState(State):
    """The memory of the delta rule. It has its full size from the first token on."""

    memory: Tensor  # (B, G, F, V): rows are the features of keys


@dataclass(frozen=True)
class ScanState(State):
    """The memory of an elementwise recurrence: one number a channel, or a channel and state dimension."""

    memory: Tensor  # (B, C), (B, C, N), ...


@dataclass(frozen=True)
class MLSTMState(State):
    """The memory of an mLSTM: C and, as its last column where the output is normalised, n; both times exp(-log_scale)."""

    memory: Tensor  # (B, G, K, V), or (B, G, K, V+1)
    log_scale: Tensor | None = None  # (B, G) float64: the stabiliser m; None where the input gate is a sigmoid


@dataclass(frozen=True)
class TokenState(State):
    """Tokens kept as they are, right-aligned: the newest one of every row is last.

    `lengths` counts the real tokens of each row (those before them are padding); None means all are real.
    """

    keys: Tensor  # (B, S, G, K)
    values: Tensor  # (B, S, G, V)
    log_decay: Tensor | None = dataclasses.field(
        default_factory=lambda: None
    )  # (B, S, G): the decay that each token brought
    lengths: Tensor | None = None  # (B,) int64

    @property
    def slots(self) -> int:
        return self.keys.shape[1]

    @classmethod
    def cat(cls, states: Sequence[Self]) -> Self:
        slots = max(state.slots for state in states)
        return super().cat([state._widened(slots) for state in states])

    def _widened(self, slots: int) -> Self:
        """The same tokens in `slots` slots, the new ones on the left and empty."""
        extra = slots - self.slots
        lengths = self.lengths
        if lengths is None:
            lengths = torch.full((self.keys.shape[0],), self.slots, dtype=torch.long, device=self.keys.device)
        return dataclasses.replace(
            self,
            keys=pad(self.keys, (0, 0, 0, 0, extra, 0)),
            values=pad(self.values, (0, 0, 0, 0, extra, 0)),
            log_decay=None if self.log_decay is None else pad(self.log_decay, (0, 0, extra, 0)),
            lengths=lengths,
        )


class TokenViews(Protocol):
    """Where the tokens of many states lie together."""

    def view(self, name: str, slots: int) -> Tensor | None:
        """The field `name` of the state with the first `slots` tokens."""


@dataclass(frozen=True)
class PowerState(TokenState):
    """The state of power attention: a folded memory, and the tokens that are not folded into it yet.

    While the sequence is short there is no memory at all, only tokens; see `power.py`.
    """

    memory: Tensor | None = None  # (B, G, F, V), or (B, G, F, V+1) where the last column sums the features

    @classmethod
    def within(cls, tokens: TokenViews, slots: int, memory: Tensor | None) -> Self:
        """A state whose tokens become tensors when somebody looks at them, which decoding does not."""
        state = object.__new__(cls)
        state.__dict__.update(lengths=None, memory=memory, source=(tokens, slots))
        return state

    def __getattr__(self, name: str) -> Any:
        if name not in ("keys", "values", "log_decay") or "source" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        tokens, slots = self.__dict__["source"]
        self.__dict__[name] = tensor = tokens.view(name, slots)
        return tensor

    @classmethod
    def cat(cls, states: Sequence[Self]) -> Self:
        folded = [state.memory for state in states if state.memory is not None]
        if folded:
            shape = folded[0].shape[1:]
            states = [
                dataclasses.replace(state, memory=folded[0].new_zeros(state.keys.shape[0], *shape))
                if state.memory is None
                else state
                for state in states
            ]
        return super().cat(states)
