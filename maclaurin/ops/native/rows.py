"""Decoding steps of sequences of different lengths, in place: one call for all rows, each with its own tokens and state.

A row joins and leaves without the others being touched: what the kernel reads is a table of addresses. Second order folds a
row's tokens when it is their time, whatever the other rows do; a window moves on inside its slots. What a row gets does not
depend on the rows beside it, to the last bit.
"""

# G key-value heads, K, V channels, F = K(K+1)/2, W = V or V+1, S tokens of a row

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from maclaurin.ops.arithmetic import repeat_heads
from maclaurin.ops.native import library
from maclaurin.ops.native.halves import Halves, Recurrent, places
from maclaurin.ops.native.library import buffer, large_buffer
from maclaurin.ops.states import PowerState, StandIn, TokenState

_ROWS = struct.Struct("5q 8q 7q f4i")  # MaclaurinRows
_KEYS, _VALUES, _DECAYS, _STATE, _HALVES, _SLOTS, _S, _LIMIT = range(8)  # the columns of the table: MaclaurinRow
_SPARE = 64  # slots behind the tokens of a row that grows
_NEVER = 2**62
_ROOT = 2**-0.25  # of a query's channels and of the scale, where the weights are a series: `series.py`


@dataclass(frozen=True)
class Scores:
    """scale·q·k, squared or exponential. window: of exponential ones; fold_at, fold_every: of squared ones.

    series: 1 + x + x²/2 of a score x in place of its square, each term times its factor for the head in `orders` (H, 3).
    in_halves: the recurrent state, as `halves.py` has it.
    """

    exponential: bool
    scale: float
    normalize: bool = True
    window: int | None = None
    fold_at: int = _NEVER
    fold_every: int = 1
    series: bool = False
    orders: Tensor | None = None
    in_halves: bool = False

    @property
    def first_of_keys(self) -> float:
        """Of a series: the channel before those of every key, which the scale makes a root of one half."""
        return 1 / self.scale


@dataclass
class _Row:
    """Tokens (G, slots, K or V) and decays (G, slots), and the recurrent state, where there is one."""

    tokens: list[Tensor]
    recurrent: Recurrent

    def fold_into(self, recurrent: Recurrent, entry: Any) -> None:
        self.recurrent = recurrent
        entry[_STATE], entry[_HALVES] = places(recurrent)


class RowState(StandIn):
    """The state of all rows: the op steps them where they are."""

    rows: ClassVar[Rows]  # of each one; not a field

    @classmethod
    def of(cls, rows: Rows) -> RowState:
        state = cls()
        object.__setattr__(state, "rows", rows)
        return state

    @property
    def batch_size(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes

    def step(self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None) -> tuple[Tensor, Any]:
        return self.rows.step(q, k, v, log_decay), self


class Rows:
    """At most `capacity` of them; those there are come first, without gaps."""

    def __init__(self, capacity: int, scores: Scores) -> None:
        self.scores = scores
        self.table = np.zeros((capacity, 8), np.int64)
        self.rows: list[_Row] = []
        self._steps = 0  # that the kernel may take before somebody looks at the rows
        self._layout: tuple[Any, ...] = ()
        self._packed = b""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for row in self.rows for x in (*row.tokens, row.recurrent) if x is not None)

    def put(self, state: TokenState) -> None:
        """One more row: a state of one sequence, copied."""
        keys = pad(state.keys, (1, 0), value=self.scores.first_of_keys) if self.scores.series else state.keys
        tokens = [x[0].transpose(0, 1) for x in (keys, state.values, state.log_decay) if x is not None]
        row = _Row(tokens, None)
        self.rows.append(row)
        entry = self.table[len(self.rows) - 1]
        entry[:] = 0
        entry[_S] = tokens[0].shape[1]
        entry[_LIMIT] = (self.scores.window or 0) if self.scores.exponential else self.scores.fold_every
        if isinstance(state, PowerState) and state.recurrent is not None:
            row.fold_into(self._copied(state.recurrent), entry)
        self._move(row, entry, self._slots(row, int(entry[_S])))
        self._steps = 0

    def drop(self, index: int) -> None:
        """The last row takes its place."""
        last = self.rows.pop()
        if index < len(self.rows):
            self.rows[index] = last
            self.table[index] = self.table[len(self.rows)]

    def take(self, index: int) -> TokenState:
        """The state of one row, copied."""
        row, S = self.rows[index], int(self.table[index, _S])
        begin = max(0, S - (self.scores.window - 1)) if self.scores.window else 0
        kept = [row.tokens[0][..., 1:] if self.scores.series else row.tokens[0], *row.tokens[1:]]
        tokens = [x[:, begin:S].transpose(0, 1)[None].clone(memory_format=torch.contiguous_format) for x in kept]
        keys, values = tokens[:2]
        decays = tokens[2] if len(tokens) == 3 else None
        if self.scores.exponential:
            return TokenState(keys, values, decays)
        held = row.recurrent
        recurrent = held.joined() if isinstance(held, Halves) else None if held is None else held.clone()
        return PowerState(keys, values, decays, None, recurrent)

    def step(self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None) -> Tensor:
        """y (B,1,H,V) after one more token of every row; q (B,1,H,K), k, v (B,1,G,K or V), log_decay (B,1,G), in float32."""
        if self._steps == 0:
            self._prepare()
        if self.scores.series:
            q, k, v, log_decay = self._in_series(q, k, v, log_decay)
        new = (q, k, v) if log_decay is None else (q, k, v, log_decay)
        layout = tuple((x.shape, x.stride()) for x in new)
        if layout != self._layout:
            self._pack(new, layout)
        y = buffer(q.shape[0], 1, q.shape[2], v.shape[3])
        pointers = [x.data_ptr() for x in new] + [0] * (4 - len(new))
        packed = _ROWS.pack(*self._sizes, *pointers, y.data_ptr(), self.table.ctypes.data, *self._options())
        assert library.step_rows is not None
        status = library.step_rows(packed)
        if status == 2:
            raise ValueError("log_decay must be <= 0 everywhere, got a positive one")
        if status:
            raise MemoryError("the native decoding step found no memory for its blocks")
        self._steps -= 1
        return y

    def _in_series(self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None) -> tuple[Any, Any, Any, Any]:
        """With a first channel for the constant; heads that weigh the orders in their own way have keys of their own."""
        H = q.shape[2] if self.scores.orders is not None else k.shape[2]
        q, k = pad(q * _ROOT, (1, 0), value=_ROOT), pad(k, (1, 0), value=self.scores.first_of_keys)
        return q, repeat_heads(k, H), repeat_heads(v, H), None if log_decay is None else repeat_heads(log_decay, H)

    def _options(self) -> tuple[Any, ...]:
        """The last fields of MaclaurinRows."""
        scores = self.scores
        orders = 0 if scores.orders is None else scores.orders.data_ptr()
        scale = scores.scale * _ROOT if scores.series else scores.scale
        return orders, scale, scores.exponential, scores.normalize, scores.series, torch.get_num_threads()

    def _pack(self, new: tuple[Tensor, ...], layout: tuple[Any, ...]) -> None:
        """Sizes and strides, for tokens of that layout, once it is known that they fit."""
        (G, _, K), V = self.rows[0].tokens[0].shape, self.rows[0].tokens[1].shape[2]
        B, _, H, _ = new[0].shape
        shapes = [(B, 1, H, K), (B, 1, G, K), (B, 1, G, V), (B, 1, G)]
        fit = len(new) == len(self.rows[0].tokens) + 1 and B == len(self.rows) and not H % G
        if not fit or any(tuple(x.shape) != shape for x, shape in zip(new, shapes, strict=False)):
            raise ValueError(f"a step of {len(self.rows)} rows needs tokens of the shapes {shapes}, got {layout}")
        if any(x.dtype is not torch.float32 or not x.is_cpu for x in new) or any(x.stride(3) != 1 for x in new[:3]):
            raise ValueError("a step of rows needs float32 tokens on a CPU, their channels side by side")
        strides = [x.stride(i) for x in new for i in (0, 2)] + [0, 0] * (4 - len(new))
        self._layout, self._sizes = layout, (B, H, G, K, V, *strides)

    def _prepare(self) -> None:
        """Room for the next tokens of every row, and for the first state of those whose time it is."""
        steps = _NEVER
        for row, entry in zip(self.rows, self.table, strict=False):
            S, slots = int(entry[_S]), int(entry[_SLOTS])
            if not self.scores.exponential and row.recurrent is None and S + 1 >= self.scores.fold_at:
                row.fold_into(self._zeros(row), entry)
                entry[_LIMIT] = 1  # all of them, with the next token
                if S == slots:
                    self._move(row, entry, S + 1)
                steps = min(steps, 1)
                continue
            wanted = self._slots(row, S)
            entry[_LIMIT] = (self.scores.window or 0) if self.scores.exponential else self.scores.fold_every
            if S >= slots or (row.recurrent is not None and slots != wanted):  # room up to the next fold, and no more
                self._move(row, entry, wanted)
            if row.recurrent is None and not self.scores.window:
                steps = min(steps, int(entry[_SLOTS]) - S, self.scores.fold_at - 1 - S)
        self._steps = steps

    def _slots(self, row: _Row, S: int) -> int:
        """So many for a row with S tokens: more of them come until they are folded, or fall out of the window."""
        if self.scores.window:
            return max(2 * self.scores.window, S + 1)
        if row.recurrent is not None:
            return max(self.scores.fold_every, S + 1)
        return min(S + max(_SPARE, S // 4), max(self.scores.fold_at, S + 1))

    def _move(self, row: _Row, entry: Any, slots: int) -> None:
        S = int(entry[_S])
        moved = []
        for column, x in zip((_KEYS, _VALUES, _DECAYS), row.tokens, strict=False):
            place = x.new_empty(x.shape[0], slots, *x.shape[2:])
            place[:, :S] = x[:, :S]
            entry[column] = place.data_ptr()
            moved.append(place)
        row.tokens = moved
        entry[_SLOTS] = slots

    def _copied(self, recurrent: Tensor) -> Recurrent:
        if self.scores.in_halves:
            return Halves.of(recurrent, self.scores.normalize)
        return large_buffer(*recurrent.shape).copy_(recurrent)

    def _zeros(self, row: _Row) -> Recurrent:
        keys, values = row.tokens[:2]
        K = keys.shape[2]
        shape = torch.Size((1, keys.shape[0], K * (K + 1) // 2, values.shape[2] + self.scores.normalize))
        return Halves.zeros(shape, self.scores.normalize) if self.scores.in_halves else large_buffer(*shape).zero_()
