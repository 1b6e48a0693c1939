"""What an op refuses, in one sentence that names the argument and what it must be."""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import Tensor

from maclaurin.common.arguments import number, one_of
from maclaurin.ops.native.library import BACKENDS
from maclaurin.ops.states import State, TokenState
from maclaurin.ops.transforms import has_numbers, is_transformed, numbers

S = TypeVar("S", bound=State)

FORMS = ("auto", "parallel", "chunked", "recurrent")
FEW_NUMBERS = 64
LARGEST_SCALE = 1e18  # its square is in the range of float32


def shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))


def heads(q: Tensor, k: Tensor, v: Tensor) -> None:
    """q (B,T,H,K), k (B,T,G,K), v (B,T,G,V), with G dividing H."""
    not_traced()
    for name, value in (("q", q), ("k", k), ("v", v)):
        _floating(name, value, "batch, time, heads, channels", 4)
        if value is not q and value.device != q.device:
            raise ValueError(f"{name} must be on the device of q ({q.device}), got {value.device}")
    if q.shape[1] == 0 or q.shape[3] == 0:
        raise ValueError(f"q must hold at least one token and one channel, got shape {shape(q)}")
    if k.shape[:2] != q.shape[:2] or k.shape[3] != q.shape[3]:
        raise ValueError(f"k must match q {shape(q)} in batch, time and channels, got {shape(k)}")
    if v.shape[:3] != k.shape[:3]:
        raise ValueError(f"v must match k {shape(k)} in batch, time and heads, got {shape(v)}")
    if k.shape[2] == 0 or q.shape[2] % k.shape[2]:
        raise ValueError(f"the heads of k and v must divide the {q.shape[2]} heads of q, got {k.shape[2]}")


def log_decay(decay: Tensor | None, q: Tensor, k: Tensor, *, per_channel: bool = False) -> None:
    """(B,T,heads of k or q), no value > 0; with `per_channel` also (B,T,heads,K). NaN goes through to the output."""
    if decay is None:
        return
    no_growth(decay)
    allowed_heads = (k.shape[2], q.shape[2])
    per_head = decay.dim() == 3
    if not per_head and not (per_channel and decay.dim() == 4):
        expected = "(batch, time, heads)" + (" or (batch, time, heads, channels)" if per_channel else "")
        raise ValueError(f"log_decay must have shape {expected}, got {shape(decay)}")
    if decay.shape[:2] != q.shape[:2] or decay.shape[2] not in allowed_heads:
        raise ValueError(
            f"log_decay must match q {shape(q)} in batch and time and have "
            f"{' or '.join(map(str, sorted(set(allowed_heads))))} heads, got {shape(decay)}"
        )
    if not per_head and decay.shape[3] != k.shape[3]:
        raise ValueError(f"log_decay must have the {k.shape[3]} channels of k, got {shape(decay)}")


def no_growth(decay: Tensor) -> None:
    """A tensor of log decays: no value > 0. NaN goes through to the output."""
    if not isinstance(decay, Tensor):
        raise TypeError(f"log_decay must be a tensor, got {type(decay).__name__}")
    if has_numbers(decay) and _any_positive(decay):
        largest = numbers(decay).nan_to_num(nan=0.0).max().item()
        raise ValueError(f"log_decay must be <= 0 everywhere, got a largest value of {largest:g}")


def beta(value: Tensor, q: Tensor, k: Tensor) -> None:
    """The rate of writing of the delta rule: (B,T,heads of k or q)."""
    tensor("beta", value, "batch, time, heads")
    allowed_heads = sorted({k.shape[2], q.shape[2]})
    if value.shape[:2] != q.shape[:2] or value.shape[2] not in allowed_heads:
        raise ValueError(
            f"beta must match q {shape(q)} in batch and time and have {' or '.join(map(str, allowed_heads))} heads, "
            f"got {shape(value)}"
        )


def not_negative(name: str, value: Tensor) -> None:
    """No value < 0. NaN goes through to the output."""
    if has_numbers(value) and _any_negative(value):
        smallest = numbers(value).nan_to_num(nan=0.0).min().item()
        raise ValueError(f"{name} must be >= 0 everywhere, got a smallest value of {smallest:g}")


def _any_positive(x: Tensor) -> bool:
    """The few numbers of a decoding step are looked at in Python, which is faster than two operators."""
    x = numbers(x)
    if x.numel() <= FEW_NUMBERS and x.is_cpu and not is_transformed():  # PyTorch 2.9 lists no numbers under torch.func
        return any(value > 0 for value in x.flatten().tolist())
    largest = x.max().item() if x.numel() else 0.0
    return largest > 0 or (math.isnan(largest) and bool((x > 0).any()))  # what stands beside a NaN is looked at by itself


def _any_negative(x: Tensor) -> bool:
    x = numbers(x)
    smallest = x.min().item() if x.numel() else 0.0
    return smallest < 0 or (math.isnan(smallest) and bool((x < 0).any()))


def initial_state(state: object, expected: type[S]) -> S | None:
    """A state of exactly this class: those derived from it mean something else."""
    if state is not None and type(state) is not expected:
        raise TypeError(f"state must be a {expected.__name__} or None, got {type(state).__name__}")
    return state


def sound_state(state: object, expected: type[S], x: Tensor) -> S | None:
    """A state whose fields fit each other, on the device of the inputs. That they fit the inputs is each op's to see.

    What an op has made is known to be sound: a decoding step takes 3 % longer if it is looked at again.
    """
    known = initial_state(state, expected)
    if known is None or known.__dict__.get("sound_on") == x.device:
        return known
    if (device := known.check().device) != x.device:
        raise ValueError(f"state must be on the device of the inputs ({x.device}), got {device}")
    return known


def token_state(state: TokenState | None, k: Tensor, v: Tensor) -> None:
    """The tokens of a state must have the heads and channels of the new ones."""
    if state is None:
        return
    for name, kept, new in (("keys", state.keys, k), ("values", state.values, v)):
        if kept.shape[2:] != new.shape[2:]:
            raise ValueError(
                f"state must have been made with the same heads and channels: it holds {name} of {tuple(kept.shape[2:])} "
                f"(heads, channels), the new ones have {tuple(new.shape[2:])}"
            )
    if state.lengths is not None and has_numbers(state.lengths):
        state.check_lengths()


def scale(value: object) -> None:
    number("scale", value)
    if isinstance(value, (int, float)) and abs(value) > LARGEST_SCALE:
        raise ValueError(f"scale must be between -{LARGEST_SCALE:g} and {LARGEST_SCALE:g}, got {value:g}")


def tensor(name: str, value: object, dimensions: str) -> None:
    """A floating point tensor with the named dimensions, such as "batch, time, channels"."""
    not_traced()
    _floating(name, value, dimensions, dimensions.count(",") + 1)


def _floating(name: str, value: object, dimensions: str, expected: int) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    if value.dim() != expected:
        raise ValueError(f"{name} must have {expected} dimensions ({dimensions}), got shape {shape(value)}")
    if not value.is_floating_point():
        raise TypeError(f"{name} must be a floating point tensor, got {value.dtype}")


def not_traced() -> None:
    """A trace would keep the sizes of one call, and what kernels wrote in it, as constants."""
    if torch.jit.is_tracing():
        raise RuntimeError("torch.jit.trace cannot record maclaurin's ops: use torch.export or torch.compile")


def form_and_backend(form: str, backend: str) -> None:
    one_of("form", form, FORMS)
    one_of("backend", backend, BACKENDS)
