"""Softmax layers on GPUs: PyTorch's own ring, in which keys and values go round and no process holds those of all slices.

It is the ring behind PyTorch's `context_parallel`. Its balanced layout is that of a zigzag: of 2·P pieces of a sequence,
process p of P has the pieces p and 2P−1−p. Slices are contiguous, as layers with a state need them, so that the two pieces
of a slice go to their processes of the zigzag before the ring, as queries, keys and values, and come back as outputs.

The ring wants one document, equally long slices and flash attention; where any of them is missing, on any process, keys and
values are gathered (`balance.py`). PyTorch's functions are private to it, and tested against the release that is installed.
"""

# B batch, T tokens of the slice, H heads, G key-value heads, K channels of keys and of values

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, distributed
from torch.distributed import _functional_collectives as collectives

from maclaurin.distributed.link import Link
from maclaurin.distributed.messages import Group
from maclaurin.distributed.slices import Bounds
from maclaurin.mixers.base import Mixer, MixerState
from maclaurin.mixers.mechanisms import Softmax
from maclaurin.mixers.projected import ProjectedMixer
from maclaurin.ops.states import StandIn

RING = "torch.distributed.tensor.experimental._context_parallel._attention"
HALF = (torch.float16, torch.bfloat16)
MOST_CHANNELS = 256  # of a head, in flash attention


class Kernel(NamedTuple):
    """An attention of PyTorch, and which arguments of its backward the forward returns behind outputs and sums."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]
    kept: tuple[str, ...]


FLASH = Kernel(
    torch.ops.aten._scaled_dot_product_flash_attention,
    torch.ops.aten._scaled_dot_product_flash_attention_backward.default,
    ("cum_seq_q", "cum_seq_k", "max_q", "max_k", "philox_seed", "philox_offset"),
)


def runs_in_ring(link: Link, mixer: Mixer, x: Tensor, bounds: Bounds) -> bool:
    """Whether the ring computes the layer, on all processes alike."""
    if not (is_flash(mixer) and has_flash(x, link.messages.group)):
        return False
    one_document = bounds is None or len(bounds) == 2
    tokens = x.shape[1] if one_document and x.shape[1] % 2 == 0 else 0
    return link.all_have(mixer, tokens, x.device) and tokens > 0


def is_flash(mixer: Mixer) -> bool:
    """Whether it is what flash attention computes: softmax of q·k/√K without a decay, a window, a cap or features."""
    mechanism = getattr(mixer, "mechanism", None)
    if not isinstance(mixer, ProjectedMixer) or type(mechanism) is not Softmax or vars(mechanism) != vars(Softmax()):
        return False
    channels = mixer.key_dim
    return mixer.decay == "none" and channels == mixer.head_dim and channels % 8 == 0 and channels <= MOST_CHANNELS


def has_flash(x: Tensor, group: Group) -> bool:
    """Whether flash attention runs where x is, and the group's messages go from GPU to GPU."""
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    if not x.is_cuda or dtype not in HALF or "cuda:nccl" not in distributed.get_backend_config(group):
        return False
    if not torch.backends.cuda.is_flash_attention_available() or torch.cuda.get_device_capability(x.device) < (8, 0):
        return False
    return find_spec(RING.rpartition(".")[0]) is not None  # not in torch 2.9


def in_ring(mixer: Mixer, start: MixerState, group: Group, batch: int) -> MixerState:
    """The state before a slice, for a call of the mixer in all processes of the group."""
    state = replace(start, attention=RingState.of(group, batch))
    mixer.trust(state)  # it is no state of the mechanism, and does not look like one
    return state


class RingState(StandIn):
    """In the place of the tokens before a slice, and of those after it."""

    group: Group  # of each one; not fields
    batch: int

    @classmethod
    def of(cls, group: Group, batch: int) -> Self:
        state = cls()
        vars(state).update(group=group, batch=batch)
        return state

    @property
    def batch_size(self) -> int:
        return self.batch

    def step(self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None) -> tuple[Tensor, Self]:
        heads = [q.shape[2], k.shape[2], v.shape[2]]
        qkv_BTHK = _to_zigzag(torch.cat([q, k, v], 2), self.group)
        y_BHTK: Tensor = _Ring.apply(self.group, *(x.transpose(1, 2) for x in qkv_BTHK.split(heads, 2)))
        return _to_slices(y_BHTK.transpose(1, 2), self.group), self


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: Group, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor) -> Tensor:
        tokens = (q_BHTK, k_BGTK, v_BGTK)
        with _balanced_ring() as pytorch:
            y, log_sums, *others = pytorch._templated_ring_attention(
                group, 2, FLASH.forward, *tokens, is_causal=True, dropout_p=0.0
            )
        ctx.save_for_backward(*tokens, y, log_sums)
        ctx.group, ctx.kept = group, dict(zip(FLASH.kept, others, strict=False))  # behind them is what is for debugging
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, y, log_sums = ctx.saved_tensors
        with _balanced_ring() as pytorch:
            gradients = pytorch._templated_ring_attention_backward(
                ctx.group,
                2,
                FLASH.backward,
                gradient.contiguous(),
                "grad_out",
                q,
                k,
                v,
                y,
                log_sums,
                is_causal=True,
                dropout_p=0.0,
                **ctx.kept,
            )
        return None, *gradients[:3]


@contextmanager
def _balanced_ring() -> Iterator[Any]:
    """PyTorch's functions. Its options are of the process: keys go round, not to all at once, in the layout of a zigzag."""
    pytorch = import_module(RING)
    options = pytorch._cp_options
    before = options.enable_load_balance, options.rotate_method
    options.enable_load_balance, options.rotate_method = True, pytorch._RotateMethod.ALL_TO_ALL
    try:
        yield pytorch
    finally:
        options.enable_load_balance, options.rotate_method = before


def owner_of(piece: int, size: int) -> int:
    """In a zigzag. Of slices, process p has the pieces 2p and 2p + 1."""
    return min(piece, 2 * size - 1 - piece)


def _counts(group: Group, tokens: int) -> tuple[list[int], list[int], bool]:
    """How many tokens of a slice go to each process, how many of a zigzag come from each, and whether the second piece of
    the slice goes to an earlier process than the first."""
    rank, size = distributed.get_rank(group), distributed.get_world_size(group)
    going, coming = [0] * size, [0] * size
    first, second = (owner_of(2 * rank + piece, size) for piece in (0, 1))
    for process in (first, second):
        going[process] += tokens // 2
    for piece in (rank, 2 * size - 1 - rank):
        coming[piece // 2] += tokens // 2
    return going, coming, second < first


def _to_zigzag(x_BTHK: Tensor, group: Group) -> Tensor:
    going, coming, is_turned = _counts(group, x_BTHK.shape[1])
    x_TBHK = x_BTHK.transpose(0, 1)
    x_TBHK = x_TBHK.roll(len(x_TBHK) // 2, 0) if is_turned else x_TBHK.contiguous()
    return collectives.all_to_all_single_autograd(x_TBHK, coming, going, group).transpose(0, 1)


def _to_slices(y_BTHK: Tensor, group: Group) -> Tensor:
    going, coming, is_turned = _counts(group, y_BTHK.shape[1])
    y_TBHK = collectives.all_to_all_single_autograd(y_BTHK.transpose(0, 1).contiguous(), going, coming, group)
    return (y_TBHK.roll(len(y_TBHK) // 2, 0) if is_turned else y_TBHK).transpose(0, 1)
