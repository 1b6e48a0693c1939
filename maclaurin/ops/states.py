"""States: small dataclasses of tensors, one entry per sequence, that carry a mechanism from one call to the next.

Nothing is kept on modules; a state goes in as an argument and comes out as a result. Anybody can make one, so what its
fields may hold is declared beside them (`fields.py`), and every op looks whether they do before it uses them.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from maclaurin.ops import decay
from maclaurin.ops.fields import BATCH, SLOTS, WHOLE, Axes, Field, fields_of
from maclaurin.ops.transforms import has_numbers


@dataclass
class Common:
    """What all tensors of a state and of the states inside it share."""

    batch: int | None = None
    device: torch.device | None = None


@dataclass(frozen=True)
class State:
    """Base of all states. Fields are tensors whose first dimension is the batch, other states, names, or None."""

    _classes: ClassVar[dict[str, type[State]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        State._classes[cls.__name__] = cls

    def __getstate__(self) -> dict[str, Any]:
        """What copies are made of: the fields, and nothing that a state remembers beside them."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def _map(self, change: Callable[[Tensor], Tensor]) -> Self:
        changed = {}
        for field in fields_of(type(self)):
            value = getattr(self, field.name)
            if isinstance(value, State):
                value = value._map(change)
            elif isinstance(value, Tensor):
                value = change(value)
            changed[field.name] = value
        return type(self)(**changed)

    def _replaced(self, **changes: Any) -> Self:
        """dataclasses.replace, which a compiler does not see through."""
        return type(self)(
            **{field.name: changes.get(field.name, getattr(self, field.name)) for field in fields_of(type(self))}
        )

    def with_tensors(self, tensors: Iterable[Tensor]) -> Self:
        """The same state with other tensors, in the order of `tensors()`."""
        replacing = iter(tensors)
        return self._map(lambda _: next(replacing))

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by its dotted name."""
        found: dict[str, Tensor] = {}
        for field in fields_of(type(self)):
            value = getattr(self, field.name)
            if isinstance(value, State):
                found.update({f"{field.name}.{name}": tensor for name, tensor in value.tensors().items()})
            elif isinstance(value, Tensor):
                found[field.name] = value
        return found

    @property
    def nbytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors().values())

    @property
    def batch_size(self) -> int:
        for field in fields_of(type(self)):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                return value.shape[0]
            if isinstance(value, State):
                return value.batch_size
        raise ValueError("a state without tensors has no batch size")

    def check(self, like: Self | None = None) -> Common:
        """What its tensors share. One sentence refuses fields that are not what they are declared to be.

        like: a state of the same mechanism, of which all sizes but those of batch and time must be the same.
        """
        common = Common()
        self._check("state", like, common)
        return common

    def _check(self, name: str, like: State | None, common: Common) -> None:
        sizes: dict[str, int] = {} if like is None else like._fixed_sizes()
        if common.batch is not None:
            sizes[BATCH] = common.batch
        for field in fields_of(type(self)):
            value = getattr(self, field.name)
            given = None
            if like is not None:
                given = getattr(like, field.name)
                if (value is None) != (given is None) and not field.later:
                    needed = "None" if given is None else "given"
                    raise ValueError(
                        f"{name}.{field.name} must be {needed}, as in every state of the mechanism it is handed to"
                    )
            if isinstance(value, Tensor) and field.binds(value, sizes):
                if common.device is None:
                    common.batch, common.device = sizes[BATCH], value.device
                elif value.device != common.device:
                    raise ValueError(f"{name}.{field.name} must be on {common.device} as others are, got {value.device}")
            elif value is not None or not field.optional:
                self._check_other(f"{name}.{field.name}", field, value, given, sizes, common)

    def _check_other(
        self, name: str, field: Field, value: object, given: object, sizes: dict[str, int], common: Common
    ) -> None:
        """A field that is not the tensor it should be: another state, a name, or wrong."""
        if not isinstance(value, field.kinds):
            raise TypeError(f"{name} must be {field.kind}, got {type(value).__name__}")
        if isinstance(value, Tensor):
            why = "" if given is None else "state must have been made with the same heads and channels: "
            raise ValueError(f"{why}{name} must be {field.expected(sizes)}, got {value.dtype} of {tuple(value.shape)}")
        if isinstance(value, State):
            of_first_order = isinstance(given, LinearState) and type(value) is PowerState  # in older files
            if given is not None and type(value) is not type(given) and not of_first_order:
                raise TypeError(f"{name} must be a {type(given).__name__}, got {type(value).__name__}")
            value._check(name, given if isinstance(given, State) and not of_first_order else None, common)
            if common.batch is not None:
                sizes[BATCH] = common.batch

    def _fixed_sizes(self) -> dict[str, int]:
        """The sizes that another state of the same mechanism has as well."""
        sizes: dict[str, int] = {}
        for field in fields_of(type(self)):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                field.binds(value, sizes)
        return {letter: size for letter, size in sizes.items() if letter not in (BATCH, SLOTS)}

    def check_values(self) -> None:
        """What shapes do not tell and is too slow to look at in every call: counts are not negative."""
        for field in fields_of(type(self)):
            value = getattr(self, field.name)
            if isinstance(value, State):
                value.check_values()
            elif isinstance(value, Tensor) and field.dtypes == WHOLE and bool((value < 0).any()):
                raise ValueError(f"state.{field.name} must not be negative, got {value.min().item()}")

    def to(self, device: torch.device | str) -> Self:
        """The same state on another device. Precision is part of a state's meaning and is not changed."""
        target = checked_device(device)
        return self._map(lambda tensor: tensor.to(target))

    def detach(self) -> Self:
        return self._map(Tensor.detach)

    def clone(self) -> Self:
        return self._map(Tensor.clone)

    def select(self, batch_indices: Tensor | Sequence[int]) -> Self:
        """Sequences by index, in any order and with repeats: beams, reordering, dropping finished sequences."""
        rows = _checked_rows(batch_indices, self)
        return self._map(lambda tensor: tensor.index_select(0, rows.to(tensor.device)))

    def row(self, index: int) -> Self:
        """One sequence. Not copied: it shares its memory with the others."""
        return self._map(lambda tensor: tensor[index : index + 1])

    def trimmed(self) -> Self:
        """The same without the slots of kept tokens that no sequence uses, as after `select` of the shorter ones."""
        values = ((field.name, getattr(self, field.name)) for field in fields_of(type(self)))
        return self._replaced(**{name: value.trimmed() for name, value in values if isinstance(value, State)})

    @classmethod
    def cat(cls, states: Sequence[Self]) -> Self:
        """The sequences of several states as one. Token buffers of different length are padded on the left."""
        if cls is State and isinstance(states, Sequence) and states and isinstance(states[0], State):
            return type(states[0]).cat(states)
        _check_joinable(cls, states)
        return cls._joined(states)

    @classmethod
    def _joined(cls, states: Sequence[Self]) -> Self:
        """`cat` of states that are known to fit each other, those inside them included."""
        return cls(**{field.name: cls._joined_field(field.name, states) for field in fields_of(cls)})

    @classmethod
    def _joined_field(cls, name: str, states: Sequence[Self]) -> Any:
        values = [getattr(state, name) for state in states]
        if isinstance(values[0], str) or all(value is None for value in values):
            return values[0]
        if isinstance(values[0], State):
            _check_classes(type(values[0]), values)
            return type(values[0])._joined(values)
        return torch.cat(values)

    def after(self, earlier: Self, transition: Tensor) -> Self:
        """The state after two slices, of which this one belongs to the second, computed as if nothing came before it.

        earlier: the state after the first slice. transition: what the tokens of the second do to a state, as
        `transitions.py` computes it. Differentiable in all three.
        """
        raise TypeError(f"a {type(self).__name__} cannot be joined with that of an earlier slice: hand it to the next call")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file; the old file stays whole until the new one is complete."""
        from maclaurin.ops.state_files import save

        save(self, path)

    @staticmethod
    def load(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> State:
        """Read what `save` wrote. Nothing is unpickled: a file names only state classes known here."""
        from maclaurin.ops.state_files import load

        return load(path, checked_device(device))


class StandIn(State):
    """Handed to an op in the place of a state of its own, it computes the op: what came before lies elsewhere."""

    def _map(self, change: Callable[[Tensor], Tensor]) -> Self:
        return self

    def step(self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None) -> tuple[Tensor, Any]:
        raise NotImplementedError


def checked_device(device: torch.device | str) -> torch.device:
    if not isinstance(device, torch.device | str):
        raise TypeError(f"device must be a device such as 'cpu', got {device!r}")
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device must be a device such as 'cpu', got {device!r}") from error


def _checked_rows(batch_indices: Tensor | Sequence[int], state: State) -> Tensor:
    try:
        rows = torch.as_tensor(batch_indices, device="cpu")
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise TypeError(f"batch_indices must be a list of whole numbers, got {batch_indices!r}") from error
    is_whole = not (rows.is_floating_point() or rows.is_complex() or rows.dtype == torch.bool)
    if rows.dim() != 1 or not (is_whole or rows.numel() == 0):
        raise TypeError(f"batch_indices must be a list of whole numbers, got {rows.dtype} of shape {tuple(rows.shape)}")
    count = state.batch_size
    if has_numbers(rows) and bool(((rows < 0) | (rows >= count)).any()):
        raise ValueError(f"batch_indices must lie between 0 and {count - 1}, the last sequence, got {rows.tolist()[:16]}")
    return rows.long()


def _check_joinable(cls: type[State], states: Sequence[State]) -> None:
    if not isinstance(states, Sequence) or not states:
        raise ValueError(f"states must be a list of at least one {cls.__name__}, got {states!r}")
    _check_classes(cls, states)
    first = states[0]
    names = [field.name for field in fields_of(cls) if field.is_name]
    device = first.check().device
    for state in states[1:]:
        if (other := state.check(like=first).device) != device:
            raise ValueError(f"states must all be on {device} as the first one is, got {other}")
        for name in names:
            if (value := getattr(state, name)) != (expected := getattr(first, name)):
                raise ValueError(f"states must all have the {name} {expected!r} of the first one, got {value!r}")


def _check_classes(cls: type[State], states: Sequence[State]) -> None:
    for state in states:
        if type(state) is not cls:
            raise TypeError(f"states must all be of the class {cls.__name__}, got {type(state).__name__}")


def decayed(recurrent: Tensor, log_decay: Tensor) -> Tensor:
    """log_decay: one number for each of the first dimensions of a recurrent state."""
    left = decay.factor(log_decay, recurrent.dtype)
    return recurrent * left.view(*left.shape, *(1,) * (recurrent.dim() - left.dim()))


@dataclass(frozen=True)
class ConvState(State):
    """The last width-1 inputs of a causal convolution, newest last. L = width-1."""

    inputs: Annotated[Tensor, Axes("B L C")]

    def behind(self, earlier: Self, tokens: Tensor) -> Self:
        """The last inputs of two slices, the second of so many tokens (B,), where this one is of the second alone."""
        count = self.inputs.shape[1]
        both_B2C = torch.cat([earlier.inputs, self.inputs], 1)
        own = tokens.clamp(max=count)[:, None]
        slot = torch.arange(count, dtype=torch.long, device=tokens.device)
        slots = torch.where(slot < count - own, slot + own, slot + count)
        return type(self)(both_B2C.gather(1, slots[..., None].expand_as(self.inputs)))


@dataclass(frozen=True)
class LinearState(State):
    """The state of first-order attention, Σ k vᵀ behind its decays. W = V, or V+1 where the last column sums the keys."""

    recurrent: Annotated[Tensor, Axes("B G K W")]

    def after(self, earlier: Self, transition: Tensor) -> Self:
        return type(self)(decayed(earlier.recurrent, transition) + self.recurrent)


@dataclass(frozen=True)
class DeltaState(State):
    """The state of the delta rule: rows are the features of keys. It has its full size from the first token on."""

    recurrent: Annotated[Tensor, Axes("B G F V")]

    def after(self, earlier: Self, transition: Tensor) -> Self:
        return type(self)(transition @ earlier.recurrent + self.recurrent)


@dataclass(frozen=True)
class ScanState(State):
    """The state of an elementwise recurrence: one number per channel, or per channel and state dimension."""

    recurrent: Annotated[Tensor, Axes("B ...")]

    def after(self, earlier: Self, transition: Tensor) -> Self:
        return type(self)(decayed(earlier.recurrent, transition) + self.recurrent)


@dataclass(frozen=True)
class MLSTMState(State):
    """The state of an mLSTM: C and, as its last column where the output is normalised, n; both times exp(-log_scale).

    log_scale is the stabiliser m, float64 where the device has it; None where the input gate is a sigmoid. W = V, or V+1.
    """

    recurrent: Annotated[Tensor, Axes("B G K W")]
    log_scale: Annotated[Tensor | None, Axes("B G")] = None

    def after(self, earlier: Self, transition: Tensor) -> Self:
        if self.log_scale is None or earlier.log_scale is None:
            return type(self)(decayed(earlier.recurrent, transition) + self.recurrent)
        kept = transition + earlier.log_scale
        log_scale = torch.maximum(self.log_scale, kept)
        recurrent = decayed(earlier.recurrent, kept - log_scale) + decayed(self.recurrent, self.log_scale - log_scale)
        return type(self)(recurrent, log_scale)


@dataclass(frozen=True)
class TokenState(State):
    """Tokens kept as they are, right-aligned: the newest one of every sequence is last.

    `log_decay` is what each token brought. `lengths` counts the real tokens of each sequence (before them is padding); None
    means all are real.
    """

    keys: Annotated[Tensor, Axes("B S G K")]
    values: Annotated[Tensor, Axes("B S G V")]
    log_decay: Annotated[Tensor | None, Axes("B S G")] = dataclasses.field(default_factory=lambda: None)
    lengths: Annotated[Tensor | None, Axes("B", WHOLE, later=True)] = None

    def after(self, earlier: Self, transition: Tensor) -> Self:
        """All tokens, one slice behind the other; decays between them are those that each token brought.

        transition: a whole number says how many of the earlier tokens stay in a window (`window_transition`).
        """
        if self.lengths is not None or earlier.lengths is not None:
            raise ValueError("tokens can be joined only where no sequence of a batch is shorter: lengths must be None")
        left = 0 if transition.is_floating_point() else max(0, earlier.slots - int(transition))
        keys = torch.cat([earlier.keys[:, left:], self.keys], 1)
        values = torch.cat([earlier.values[:, left:], self.values], 1)
        decays = None
        if self.log_decay is not None and earlier.log_decay is not None:
            decays = torch.cat([earlier.log_decay[:, left:], self.log_decay], 1)
        return self._replaced(keys=keys, values=values, log_decay=decays)

    @property
    def slots(self) -> int:
        return self.keys.shape[1]

    def check_values(self) -> None:
        super().check_values()
        self.check_lengths()
        if self.log_decay is not None and bool((self.log_decay > 0).any()):
            raise ValueError(
                f"state.log_decay must be <= 0 everywhere, got {self.log_decay.nan_to_num(nan=0.0).max().item():g}"
            )

    def check_lengths(self) -> None:
        if self.lengths is not None and bool(((self.lengths < 0) | (self.lengths > self.slots)).any()):
            raise ValueError(
                f"state.lengths must lie between 0 and the {self.slots} slots, got {self.lengths.tolist()[:16]}"
            )

    @classmethod
    def _joined(cls, states: Sequence[Self]) -> Self:
        slots = max(state.slots for state in states)
        if all(state.slots == slots and state.lengths is None for state in states):
            return super()._joined(states)
        return super()._joined([state._widened(slots) for state in states])

    def trimmed(self) -> Self:
        if self.lengths is None or not self.lengths.numel():
            return self
        used = int(self.lengths.max())
        return self._replaced(
            keys=self.keys[:, self.slots - used :].clone(),
            values=self.values[:, self.slots - used :].clone(),
            log_decay=None if self.log_decay is None else self.log_decay[:, self.slots - used :].clone(),
            lengths=self.lengths if int(self.lengths.min()) < used else None,
        )

    def _widened(self, slots: int) -> Self:
        """The same tokens in `slots` slots, the new ones on the left and empty."""
        extra = slots - self.slots
        lengths = self.lengths
        if lengths is None:
            lengths = torch.full((self.keys.shape[0],), self.slots, dtype=torch.long, device=self.keys.device)
        return self._replaced(
            keys=pad(self.keys, (0, 0, 0, 0, extra, 0)),
            values=pad(self.values, (0, 0, 0, 0, extra, 0)),
            log_decay=None if self.log_decay is None else pad(self.log_decay, (0, 0, extra, 0)),
            lengths=lengths,
        )


class TokenViews(Protocol):
    """Where the tokens of many states lie together."""

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """B, G, K, V"""

    def view(self, name: str, slots: int) -> Tensor | None:
        """The field `name` of the state with the first `slots` tokens."""


@dataclass(frozen=True)
class PowerState(TokenState):
    """The state of power attention: a recurrent state, and the tokens that are not folded into it yet.

    While the sequence is short there is no recurrent state at all, only tokens; see `power.py`. W = V, or V+1 where the last
    column of the recurrent state sums the features.
    """

    # by a factory, so that the class has no such attribute and `__getattr__` is asked
    recurrent: Annotated[Tensor | None, Axes("B G F W", later=True)] = dataclasses.field(default_factory=lambda: None)

    @classmethod
    def lazily(cls, kept: TokenState, fold: Callable[[], Tensor]) -> Self:
        """A state whose recurrent state is made when somebody looks at it, as the next token does."""
        state = object.__new__(cls)
        state.__dict__.update(keys=kept.keys, values=kept.values, log_decay=kept.log_decay, lengths=kept.lengths, fold=fold)
        return state

    def after(self, earlier: Self, transition: Tensor) -> Self:
        if earlier.slots or earlier.recurrent is None:
            raise ValueError(
                f"the earlier state must hold no tokens, got {earlier.slots}: make it with fold_at=1 and fold_every=1"
            )
        if self.log_decay is not None:  # the recurrent state is the one before the tokens that are kept beside it
            transition = transition - self.log_decay.to(transition.dtype).sum(1)
        recurrent = decayed(earlier.recurrent, transition)
        return self._replaced(recurrent=recurrent if self.recurrent is None else recurrent + self.recurrent)

    @classmethod
    def within(cls, tokens: TokenViews, slots: int, recurrent: Tensor | Callable[[], Tensor] | None) -> Self:
        """A state whose tokens become tensors when somebody looks at them, which decoding does not.

        recurrent: the recurrent state, or what makes it when somebody looks.
        """
        state = object.__new__(cls)
        state.__dict__.update(lengths=None, source=(tokens, slots))
        state.__dict__["fold" if callable(recurrent) else "recurrent"] = recurrent
        return state

    def __getattr__(self, name: str) -> Any:
        if name == "recurrent" and "fold" in self.__dict__:
            self.__dict__["recurrent"] = self.__dict__["fold"]()
            del self.__dict__["fold"]  # and with it the tokens
            return self.__dict__["recurrent"]
        if name not in ("keys", "values", "log_decay") or "source" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        tokens, slots = self.__dict__["source"]
        self.__dict__[name] = tensor = tokens.view(name, slots)
        return tensor

    @property
    def batch_size(self) -> int:
        source = self.__dict__.get("source")
        return self.keys.shape[0] if source is None else source[0].sizes[0]

    def _check(self, name: str, like: State | None, common: Common) -> None:
        super()._check(name, like, common)
        if self.recurrent is not None and self.recurrent.shape[3] - self.values.shape[3] not in (0, 1):
            widths = f"{self.values.shape[3]} or {self.values.shape[3] + 1}"
            raise ValueError(f"{name}.recurrent must have {widths} value channels, got {tuple(self.recurrent.shape)}")

    @classmethod
    def _joined(cls, states: Sequence[Self]) -> Self:
        folded = [state.recurrent for state in states if state.recurrent is not None]
        if folded:
            shape = folded[0].shape[1:]
            states = [
                state._replaced(recurrent=folded[0].new_zeros(state.keys.shape[0], *shape))
                if state.recurrent is None
                else state
                for state in states
            ]
        return super()._joined(states)
