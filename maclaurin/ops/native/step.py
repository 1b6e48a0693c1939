"""One decoding step of second-order attention without the ceremony around it.

A step reads a recurrent state of 8.6 MB for 16 heads of 64 channels, which takes 0.15 ms and leaves nothing of Python in the
caches; the checks, records and structs that a call of any shape goes through would take as long again. Here one look decides
whether a call is the plain step that decoding repeats. The state carries the buffer its tokens are in, which has slots for
those to come, so that a step hands over pointers and the kernel puts the new token where it belongs. Whatever is not plain
goes the general way.

Tokens of bfloat16 and float16 wait in the buffer as float32, which is what the kernel reads; whoever looks at them sees
their own dtype. With state_dtype="bfloat16" the recurrent state is kept in halves (`halves.py`).
"""

# B batch, S kept and new tokens, H heads, G key-value heads, K, V channels, F = K(K+1)/2, W = V or V+1

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from maclaurin.ops.folding import second_order_fold
from maclaurin.ops.native import library
from maclaurin.ops.native.halves import Halves, Recurrent, places
from maclaurin.ops.native.library import buffer
from maclaurin.ops.states import PowerState
from maclaurin.ops.token_buffer import SPARE, TokenBuffer

_BUFFER = struct.Struct("6q 8q 5q fi")  # MaclaurinBuffer: sizes and slots, strides of a token, pointers, options
_TOKEN = struct.Struct("9q")  # MaclaurinToken
_NARROW = (torch.bfloat16, torch.float16)
_NO_MEMORY = 1  # an answer of the kernel, which has then done nothing

Step = tuple[Tensor, PowerState]
Layout = list[Any]  # whether to normalize, and shape and strides of q, k, v and, where there is one, log_decay


class StepBuffer(TokenBuffer):
    """The tokens of a state as the kernel takes them: keys, values and, where they have some, decays.

    The recurrent state is that of all states in the buffer. dtype: of keys and values, for those who look at them.
    """

    def __init__(self, tokens: Sequence[Tensor], slots: int, recurrent: Recurrent, dtype: torch.dtype) -> None:
        super().__init__(tokens, slots)
        B, _, G, K = tokens[0].shape
        self.sizes = (B, G, K, tokens[1].shape[3])
        self.recurrent = recurrent
        self.dtype = dtype
        self.packed: tuple[Layout, bytes] = ([], b"")  # for tokens of the last layout: they all have the same

    @classmethod
    def of(cls, state: PowerState, slots: int, in_halves: bool, normalize: bool) -> StepBuffer:
        """The tokens of a state, copied."""
        tokens = [x.float() for x in (state.keys, state.values, state.log_decay) if x is not None]
        recurrent: Recurrent = _unseen(state) or state.recurrent
        if isinstance(recurrent, Halves) != (in_halves and recurrent is not None):
            recurrent = Halves.of(recurrent, normalize) if isinstance(recurrent, Tensor) else state.recurrent
        return cls(tokens, slots, recurrent, state.keys.dtype)

    def emptied(self, slots: int, recurrent: Tensor | Halves) -> StepBuffer:
        """For the tokens after those that are now in the recurrent state."""
        return StepBuffer([x[:, :0] for x in self.tensors], slots, recurrent, self.dtype)

    @property
    def has_decays(self) -> bool:
        return len(self.tensors) == 3

    def view(self, name: str, S: int) -> Tensor | None:
        """The first S keys, values or log_decay."""
        if name == "log_decay" and not self.has_decays:
            return None
        tokens = self.tensors[("keys", "values", "log_decay").index(name)][:, :S]
        return tokens if name == "log_decay" else tokens.to(self.dtype)

    def pack(self, layout: Layout) -> bytes | None:
        """What the kernel is told about the buffer and tokens of that layout; None where they do not fit.

        One new token per sequence, of the heads and channels in the buffer, with a decay if they have decays.
        """
        last_layout, packed = self.packed
        if layout == last_layout:
            return packed
        B, G, K, V = self.sizes
        normalize, (q_shape, q_strides), (k_shape, k_strides), (v_shape, v_strides), *decay = layout
        if len(q_shape) != 4 or q_shape != (B, 1, H := q_shape[2], K) or H % G:
            return None
        if k_shape != (B, 1, G, K) or v_shape != (B, 1, G, V) or not q_strides[3] == k_strides[3] == v_strides[3] == 1:
            return None
        if bool(decay) != self.has_decays or (decay and decay[0][0] != (B, 1, G)):
            return None
        if self.recurrent is not None and self.recurrent.shape != (B, G, K * (K + 1) // 2, V + normalize):
            return None
        decay_strides = decay[0][1] if decay else (0, 0, 0)
        strides = [x[i] for x in (q_strides, k_strides, v_strides, decay_strides) for i in (0, 2)]
        tokens = [x.data_ptr() for x in self.tensors] + ([] if self.has_decays else [0])
        packed = _BUFFER.pack(B, H, G, K, V, self.slots, *strides, *tokens, *places(self.recurrent), K**-0.5, normalize)
        self.packed = layout, packed
        return packed


def plain_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    state: PowerState,
    normalize: bool,
    fold_at: int | None,
    fold_every: int,
    state_dtype: str = "float32",
) -> Step | None:
    """y and the state after one more token, as `power_attention` defines them; None where this is not a plain step."""
    if library.step is None or _get_current_dispatch_mode() is not None:
        return None
    with_gradients = torch.is_grad_enabled()
    dtype = q.dtype if isinstance(q, Tensor) else None
    if dtype in _NARROW:
        q, k, v = (x.float() if _is_plain(x, dtype) else x for x in (q, k, v))
        log_decay = None if log_decay is None else log_decay.float()
    layout: Layout = [normalize]
    pointers = []
    for x in (q, k, v) if log_decay is None else (q, k, v, log_decay):
        # as `_is_plain`, without the calls
        if type(x) is not Tensor or x.dtype is not torch.float32 or not x.is_cpu or (with_gradients and x.requires_grad):
            return None
        layout.append((x.shape, x.stride()))
        pointers.append(x.data_ptr())
    source: tuple[StepBuffer, int] | None = state.__dict__.get("source")
    if source is None and not _is_plain_state(state, dtype):
        return None
    # what nobody has looked at has no gradients
    if with_gradients and any(isinstance(x, Tensor) and x.requires_grad for x in state.__dict__.values()):
        return None
    tokens, kept = source or (None, state.keys.shape[1])
    if tokens is not None and tokens.dtype is not dtype:
        return None
    B, _, K, V = tokens.sizes if tokens is not None else _sizes(state)
    in_halves = state_dtype == "bfloat16"
    recurrent, S = _unseen(state) or state.recurrent, kept + 1
    if recurrent is None and S >= (second_order_fold(K, V, normalize, dtype) if fold_at is None else fold_at):
        return None  # the first fold is a large one
    in_buffer = tokens is None or recurrent is tokens.recurrent
    if not in_buffer or (recurrent is not None and isinstance(recurrent, Halves) is not in_halves):
        tokens = None  # halves that somebody has seen whole, or the other kind of state
    slots = S + SPARE if recurrent is None else max(S, fold_every)
    new_state: Recurrent = None
    after = None
    try:  # all that is allocated, before anything changes
        tokens = tokens or StepBuffer.of(state, slots, in_halves, normalize)
        recurrent = tokens.recurrent
        packed = tokens.pack(layout)
        if packed is None:
            return None
        y = buffer(B, 1, q.shape[2], V)
        if recurrent is not None and S >= fold_every:
            new_state = Halves.empty_like(recurrent) if isinstance(recurrent, Halves) else buffer(*recurrent.shape)
            after = tokens.emptied(fold_every, new_state)
        if not tokens.take(kept, S):
            tokens = StepBuffer.of(state, slots, in_halves, normalize)
            packed = tokens.pack(layout)
            tokens.take(kept, S)
    except RuntimeError as error:
        library.raise_again(error, "the native decoding step")
    if log_decay is None:
        pointers.append(0)
    status = library.step(packed, _TOKEN.pack(S, *pointers, y.data_ptr(), *places(new_state), torch.get_num_threads()))
    if status:
        tokens.leave(kept)
        if status == _NO_MEMORY:
            raise MemoryError("the native decoding step found no memory for its blocks")
        return None  # a decay grows: the general way says what is wrong
    y = y if dtype is torch.float32 else y.to(dtype)
    if after is not None:
        return y, PowerState.within(after, 0, _visible(new_state))
    return y, PowerState.within(tokens, S, _visible(recurrent))


def _visible(recurrent: Recurrent) -> Tensor | Callable[[], Tensor] | None:
    """What a state has, or makes when somebody looks."""
    return recurrent.joined if isinstance(recurrent, Halves) else recurrent


def _unseen(state: PowerState) -> Halves | None:
    """The halves of a recurrent state that nobody has looked at, and so could not change."""
    source: tuple[StepBuffer, int] | None = state.__dict__.get("source")
    held = None if source is None else source[0].recurrent
    return held if isinstance(held, Halves) and "recurrent" not in state.__dict__ else None


def _is_plain(x: Tensor | None, dtype: torch.dtype | None = torch.float32) -> bool:
    """Of that dtype on a CPU, and nothing more than a tensor."""
    return type(x) is Tensor and x.dtype is dtype and x.is_cpu


def _is_plain_state(state: PowerState, dtype: torch.dtype | None) -> bool:
    """Plain tensors that fit each other, and a recurrent state that can be read from its first number on."""
    keys, values, log_decay, recurrent = state.keys, state.values, state.log_decay, state.recurrent
    if state.lengths is not None or not all(_is_plain(x) for x in (log_decay, recurrent) if x is not None):
        return False
    if not (_is_plain(keys, dtype) and _is_plain(values, dtype)) or not keys.dim() == values.dim() == 4:
        return False
    (B, S, G, K), V = keys.shape, values.shape[3]
    if values.shape != (B, S, G, V) or (log_decay is not None and log_decay.shape != (B, S, G)):
        return False
    F = K * (K + 1) // 2
    return recurrent is None or (recurrent.is_contiguous() and recurrent.shape in ((B, G, F, V), (B, G, F, V + 1)))


def _sizes(state: PowerState) -> tuple[int, int, int, int]:
    B, _, G, K = state.keys.shape
    return B, G, K, state.values.shape[3]
