"""One decoding step of second-order attention without the ceremony around it.

A step reads 8.6 MB of memory for 16 heads of 64 channels, which takes 0.15 ms and leaves nothing of Python in the caches;
the checks, records and structs that a call of any shape goes through would take as long again. Here one look decides
whether a call is the plain step that decoding repeats. Tokens lie in a room with slots for those to come, which the state
carries along, so that a step hands over pointers and the kernel puts the new token where it belongs. Whatever is not plain
goes the general way.
"""

# B batch, S kept and new tokens, H heads, G key-value heads, K, V channels, F = K(K+1)/2, W = V or V+1

from __future__ import annotations

import struct
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from maclaurin.ops.native import library
from maclaurin.ops.states import PowerState

SPARE = 128  # slots behind the tokens that a first room is made of
# MaclaurinStep: sizes and slots; q, k, v, log_decay; buffers, y and memories; scale, normalize, threads
_ARGUMENTS = struct.Struct("7q 16q 6q f2i4x")
_ABSENT = (0, 0, 0, 0)

Step = tuple[Tensor, PowerState]


class Room:
    """The tokens of a state and slots behind them, each for one successor: a second one gets a room of its own.

    keys (B,G,slots,K), values (B,G,slots,V), decays (B,G,slots) or None; the memory is that of all states in the room.
    What a step needs of them is looked up once: a step has no microsecond to give away.
    """

    def __init__(self, sizes: tuple[int, int, int, int], slots: int, has_decays: bool, memory: Tensor | None) -> None:
        B, G, K, V = self.sizes = sizes
        self.slots = slots
        self.keys, self.values = torch.empty(B, G, slots, K), torch.empty(B, G, slots, V)
        self.decays = torch.empty(B, G, slots) if has_decays else None
        self.memory = memory
        self.is_inference = torch.is_inference_mode_enabled()
        self.taken: dict[int, object] = {}
        self.shapes = ((B, 1, G, K), (B, 1, G, V), (B, 1, G))  # of a token
        self.buffers = (self.keys.data_ptr(), self.values.data_ptr(), 0 if self.decays is None else self.decays.data_ptr())
        self.memory_pointer = 0 if memory is None else memory.data_ptr()
        self.k_strides = (G * slots * K, K, slots * K, 1)
        self.v_strides = (G * slots * V, V, slots * V, 1)
        self.decay_strides = (G * slots, 1, slots)

    @classmethod
    def of(cls, state: PowerState, slots: int) -> Room:
        """The tokens of a state, copied."""
        B, S, G, K = state.keys.shape
        room = cls((B, G, K, state.values.shape[3]), slots, state.log_decay is not None, state.memory)
        room.keys[:, :, :S] = state.keys.transpose(1, 2)
        room.values[:, :, :S] = state.values.transpose(1, 2)
        if state.log_decay is not None and room.decays is not None:
            room.decays[:, :, :S] = state.log_decay.transpose(1, 2)
        return room

    def take(self, slot: int) -> bool:
        mine = object()
        usable = slot < self.slots and self.is_inference == torch.is_inference_mode_enabled()
        return usable and self.taken.setdefault(slot, mine) is mine  # setdefault is one step for all Python threads

    def state(self, S: int) -> PowerState:
        """The state of the first S tokens."""
        B, G, K, V = self.sizes
        keys = self.keys.as_strided((B, S, G, K), self.k_strides)
        values = self.values.as_strided((B, S, G, V), self.v_strides)
        decays = None if self.decays is None else self.decays.as_strided((B, S, G), self.decay_strides)
        state = PowerState(keys, values, decays, None, self.memory)
        object.__setattr__(state, "_room", self)  # no field: a copy of the state has none
        return state


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
    if _get_current_dispatch_mode() is not None:
        return None
    room: Room | None = getattr(state, "_room", None)
    tokens = (q, k, v) if log_decay is None else (q, k, v, log_decay)
    if not _are_plain(tokens) or (room is None and not _is_plain_state(state)):
        return None
    if torch.is_grad_enabled() and any(x.requires_grad for x in (*tokens, *state.tensors().values())):
        return None
    memory, S = state.memory, state.keys.shape[1] + 1
    if memory is None and (fold_at is None or S >= fold_at):
        return None  # the first fold is a large one
    if room is None or not room.take(S - 1):
        room = Room.of(state, S + SPARE if memory is None else max(S, fold_every))
        room.take(S - 1)
    if not _fits(q, k, v, log_decay, room, normalize):
        return None
    B, G, K, V = room.sizes
    H = q.shape[2]
    y = torch.empty(B, 1, H, V)
    new_memory = torch.empty(memory.shape) if memory is not None and S >= fold_every else None
    arguments = _ARGUMENTS.pack(
        *(B, S, H, G, K, V, room.slots),
        *_strided(q),
        *_strided(k),
        *_strided(v),
        *(_ABSENT if log_decay is None else _strided(log_decay)),
        *room.buffers,
        y.data_ptr(),
        room.memory_pointer,
        0 if new_memory is None else new_memory.data_ptr(),
        *(K**-0.5, normalize, torch.get_num_threads()),
    )
    if not library.step(arguments):
        return None
    if new_memory is not None:
        room, S = Room(room.sizes, fold_every, log_decay is not None, new_memory), 0
    return y, room.state(S)


def _are_plain(tensors: Iterable[Tensor]) -> bool:
    """float32 on a CPU, and nothing more than a tensor."""
    return all(type(x) is Tensor and x.dtype is torch.float32 and x.is_cpu for x in tensors)


def _is_plain_state(state: PowerState) -> bool:
    keys, values, memory = state.keys, state.values, state.memory
    if state.lengths is not None or not _are_plain(state.tensors().values()):
        return False
    return (
        keys.dim() == 4 == values.dim() and keys.shape[:3] == values.shape[:3] and (memory is None or memory.is_contiguous())
    )


def _fits(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, room: Room, normalize: bool) -> bool:
    """One new token a row, of the heads and channels in the room, with a decay if they have decays."""
    B, G, K, V = room.sizes
    k_shape, v_shape, decay_shape = room.shapes
    memory = room.memory
    return (
        k.shape == k_shape
        and v.shape == v_shape
        and q.dim() == 4
        and q.shape == (B, 1, q.shape[2], K)
        and q.shape[2] % G == 0
        and q.stride(3) == k.stride(3) == v.stride(3) == 1
        and (log_decay is None) == (room.decays is None)
        and (log_decay is None or log_decay.shape == decay_shape)
        and (memory is None or memory.shape == (B, G, K * (K + 1) // 2, V + normalize))
    )


def _strided(x: Tensor) -> tuple[int, ...]:
    return x.data_ptr(), *x.stride()[:3]
