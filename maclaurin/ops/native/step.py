"""One decoding step of second-order attention without the ceremony around it.

A step reads a recurrent state of 8.6 MB for 16 heads of 64 channels, which takes 0.15 ms and leaves nothing of Python in the
caches; the checks, records and structs that a call of any shape goes through would take as long again. Here one look decides
whether a call is the plain step that decoding repeats. The state carries the buffer its tokens are in, which has slots for
those to come, so that a step hands over pointers and the kernel puts the new token where it belongs. Whatever is not plain
goes the general way.
"""

# B batch, S kept and new tokens, H heads, G key-value heads, K, V channels, F = K(K+1)/2, W = V or V+1

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from maclaurin.ops.folding import second_order_fold
from maclaurin.ops.native import library
from maclaurin.ops.native.library import buffer
from maclaurin.ops.states import PowerState
from maclaurin.ops.token_buffer import SPARE, TokenBuffer

_BUFFER = struct.Struct("6q 8q 4q fi")  # MaclaurinBuffer: sizes and slots, strides of a token, pointers, options
_TOKEN = struct.Struct("8q")  # MaclaurinToken
_NO_MEMORY = 1  # an answer of the kernel, which has then done nothing

Step = tuple[Tensor, PowerState]
Layout = list[Any]  # whether to normalize, and shape and strides of q, k, v and, where there is one, log_decay


class StepBuffer(TokenBuffer):
    """The tokens of a state as the kernel takes them: keys, values and, where they have some, decays.

    The recurrent state is that of all states in the buffer.
    """

    def __init__(self, tokens: Sequence[Tensor], slots: int, recurrent: Tensor | None) -> None:
        super().__init__(tokens, slots)
        B, _, G, K = tokens[0].shape
        self.sizes = (B, G, K, tokens[1].shape[3])
        self.recurrent = recurrent
        self.packed: tuple[Layout, bytes] = ([], b"")  # for tokens of the last layout: they all have the same

    @classmethod
    def of(cls, state: PowerState, slots: int) -> StepBuffer:
        """The tokens of a state, copied."""
        tokens = [x for x in (state.keys, state.values, state.log_decay) if x is not None]
        return cls(tokens, slots, state.recurrent)

    def emptied(self, slots: int, recurrent: Tensor) -> StepBuffer:
        """For the tokens after those that are now in the recurrent state."""
        return StepBuffer([x[:, :0] for x in self.tensors], slots, recurrent)

    @property
    def has_decays(self) -> bool:
        return len(self.tensors) == 3

    def view(self, name: str, S: int) -> Tensor | None:
        """The first S keys, values or log_decay."""
        if name == "log_decay" and not self.has_decays:
            return None
        return self.tensors[("keys", "values", "log_decay").index(name)][:, :S]

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
        recurrent = 0 if self.recurrent is None else self.recurrent.data_ptr()
        packed = _BUFFER.pack(B, H, G, K, V, self.slots, *strides, *tokens, recurrent, K**-0.5, normalize)
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
) -> Step | None:
    """y and the state after one more token, as `power_attention` defines them; None where this is not a plain step."""
    if library.step is None or _get_current_dispatch_mode() is not None:
        return None
    with_gradients = torch.is_grad_enabled()
    layout: Layout = [normalize]
    pointers = []
    for x in (q, k, v) if log_decay is None else (q, k, v, log_decay):
        # as `_is_plain`, without the calls
        if type(x) is not Tensor or x.dtype is not torch.float32 or not x.is_cpu or (with_gradients and x.requires_grad):
            return None
        layout.append((x.shape, x.stride()))
        pointers.append(x.data_ptr())
    source: tuple[StepBuffer, int] | None = state.__dict__.get("source")
    if source is None and not _is_plain_state(state):
        return None
    if with_gradients and any(x.requires_grad for x in state.tensors().values()):
        return None
    tokens, kept = source or (None, state.keys.shape[1])
    B, _, K, V = tokens.sizes if tokens is not None else _sizes(state)
    recurrent, S = state.recurrent, kept + 1
    if recurrent is None and S >= (second_order_fold(K, V, normalize) if fold_at is None else fold_at):
        return None  # the first fold is a large one
    slots = S + SPARE if recurrent is None else max(S, fold_every)
    new_state = after = None
    try:  # all that is allocated, before anything changes
        tokens = tokens or StepBuffer.of(state, slots)
        packed = tokens.pack(layout)
        if packed is None:
            return None
        y = buffer(B, 1, q.shape[2], V)
        if recurrent is not None and S >= fold_every:
            new_state = buffer(*recurrent.shape)
            after = tokens.emptied(fold_every, new_state)
        if not tokens.take(kept, S):
            tokens = StepBuffer.of(state, slots)
            packed = tokens.pack(layout)
            tokens.take(kept, S)
    except RuntimeError as error:
        library.raise_again(error, "the native decoding step")
    if log_decay is None:
        pointers.append(0)
    new_pointer = 0 if new_state is None else new_state.data_ptr()
    status = library.step(packed, _TOKEN.pack(S, *pointers, y.data_ptr(), new_pointer, torch.get_num_threads()))
    if status:
        tokens.leave(kept)
        if status == _NO_MEMORY:
            raise MemoryError("the native decoding step found no memory for its blocks")
        return None  # a decay grows: the general way says what is wrong
    return y, PowerState.within(tokens, S, recurrent) if after is None else PowerState.within(after, 0, new_state)


def _is_plain(x: Tensor) -> bool:
    """float32 on a CPU, and nothing more than a tensor."""
    return type(x) is Tensor and x.dtype is torch.float32 and x.is_cpu


def _is_plain_state(state: PowerState) -> bool:
    """Plain tensors that fit each other, and a recurrent state that can be read from its first number on."""
    keys, values, log_decay, recurrent = state.keys, state.values, state.log_decay, state.recurrent
    if state.lengths is not None or not all(_is_plain(x) for x in (keys, values, log_decay, recurrent) if x is not None):
        return False
    if keys is None or values is None or not keys.dim() == values.dim() == 4:
        return False
    (B, S, G, K), V = keys.shape, values.shape[3]
    if values.shape != (B, S, G, V) or (log_decay is not None and log_decay.shape != (B, S, G)):
        return False
    F = K * (K + 1) // 2
    return recurrent is None or (recurrent.is_contiguous() and recurrent.shape in ((B, G, F, V), (B, G, F, V + 1)))


def _sizes(state: PowerState) -> tuple[int, int, int, int]:
    B, _, G, K = state.keys.shape
    return B, G, K, state.values.shape[3]
