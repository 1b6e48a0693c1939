"""The shared library: where it is, what its functions take, and which instruction set it uses.

A package built without a C++ compiler has no library. Then `available()` is False, and the torch backend does everything.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from maclaurin.ops.gpu.availability import INTERPRET_VARIABLE, INTERPRETED
from maclaurin.ops.transforms import is_transformed

FILE = Path("lib", "libmaclaurin_native.so")
CPU = torch.device("cpu")
ISA_VARIABLE = "MACLAURIN_ISA"  # avx512, avx2 or portable, instead of the fastest that the CPU has
BACKEND_VARIABLE = "MACLAURIN_BACKEND"  # torch, native or triton, instead of every backend="auto"
BACKENDS = ("auto", "torch", "native", "triton")


class Strided(ctypes.Structure):
    """MaclaurinTensor: (batch, time, heads, channels) in float32, with the channels next to each other."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("batch", ctypes.c_int64),
        ("time", ctypes.c_int64),
        ("head", ctypes.c_int64),
    ]

    @classmethod
    def of(cls, tensor: Tensor, backwards: bool = False) -> Strided:
        """backwards: from the last token to the first one."""
        batch, time, head = tensor.stride()[:3]
        if not backwards:
            return cls(tensor.data_ptr(), batch, time, head)
        return cls(tensor.data_ptr() + (tensor.shape[1] - 1) * time * tensor.element_size(), batch, -time, head)


class Attention(ctypes.Structure):
    """MaclaurinAttention, field by field."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("B", "T", "S", "H", "G", "K", "V")),
        *((name, Strided) for name in ("q", "k", "v", "log_decay", "y", "total", "dy", "dq", "dk", "dv", "dlog_decay")),
        *((name, ctypes.c_void_p) for name in ("state", "dnew_state", "new_state", "dstate")),
        *((name, ctypes.c_void_p) for name in ("halves", "new_halves")),
        ("nan", ctypes.c_void_p),
        ("order_weights", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("chunk", "folded", "state_head", "constant")),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_int32) for name in ("exponential", "normalize", "threads", "way")),
    ]


class Linear(ctypes.Structure):
    """MaclaurinLinear, field by field."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("B", "T", "H", "G", "K", "V")),
        *((name, Strided) for name in ("q", "k", "v", "log_decay", "y", "total", "dy", "dq", "dk", "dv", "dlog_decay")),
        ("dtotal", Strided),
        *((name, ctypes.c_void_p) for name in ("state", "dnew_state", "new_state", "dstate", "nan")),
        *((name, ctypes.c_int64) for name in ("chunk", "state_head")),
        *((name, ctypes.c_float) for name in ("q_scale", "k_scale")),
        *((name, ctypes.c_int32) for name in ("per_channel", "normalize", "centred", "threads")),
    ]


class Delta(ctypes.Structure):
    """MaclaurinDelta, field by field."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("B", "T", "H", "G", "K", "V")),
        *((name, Strided) for name in ("q", "k", "v", "beta", "log_decay", "y", "error")),
        *((name, Strided) for name in ("dy", "dq", "dk", "dv", "dbeta", "dlog_decay")),
        *((name, ctypes.c_void_p) for name in ("state", "dnew_state", "new_state", "dstate", "nan")),
        ("chunk", ctypes.c_int64),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_int32) for name in ("order", "per_channel", "threads")),
    ]


class Conv(ctypes.Structure):
    """MaclaurinConv, field by field."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("B", "T", "C", "width")),
        *((name, Strided) for name in ("x", "before", "y", "dy", "dx", "dbefore")),
        *((name, ctypes.c_void_p) for name in ("weight", "bias", "dweight", "dbias")),
        *((name, ctypes.c_int32) for name in ("silu", "threads")),
    ]


class Scan(ctypes.Structure):
    """MaclaurinScan, field by field."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("B", "T", "C")),
        *((name, Strided) for name in ("x", "log_decay", "y", "dy", "dx", "dlog_decay")),
        *((name, ctypes.c_void_p) for name in ("start", "dstart")),
        ("threads", ctypes.c_int32),
    ]


class Gated(ctypes.Structure):
    """MaclaurinGated, field by field."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("B", "T", "C")),
        *((name, Strided) for name in ("u", "gates", "g", "y", "h", "dy", "du", "dgates", "dg")),
        *((name, ctypes.c_void_p) for name in ("start", "dstart")),
        ("threads", ctypes.c_int32),
    ]


class Selective(ctypes.Structure):
    """MaclaurinSelective, field by field."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("B", "T", "C", "N")),
        *((name, Strided) for name in ("x", "dt", "b", "c", "y", "dy", "dx", "ddt", "db", "dc")),
        *((name, ctypes.c_void_p) for name in ("rate", "drate", "start", "dnew_state", "new_state", "dstart")),
        ("threads", ctypes.c_int32),
    ]


class Piecewise(ctypes.Structure):
    """MaclaurinPiecewise, field by field."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("count", "knots", "L")),
        *((name, ctypes.c_void_p) for name in ("u", "knot", "table", "y", "dy", "du", "dtable")),
        ("parts", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("relu", "threads")),
    ]


class Turn(ctypes.Structure):
    """MaclaurinTurn, field by field."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("B", "T", "H", "P")),
        *((name, Strided) for name in ("x", "cos", "sin", "y")),
        *((name, ctypes.c_int32) for name in ("interleaved", "back", "threads")),
    ]


class MeanFilter(ctypes.Structure):
    """MaclaurinMeanFilter, field by field."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("B", "T", "H", "I", "C", "V", "W")),
        *((name, Strided) for name in ("x", "v", "y", "dy", "dx", "dv")),
        *((name, ctypes.c_void_p) for name in ("first", "first_bias", "second", "second_bias", "sum", "dsum")),
        *((name, ctypes.c_void_p) for name in ("dfirst", "dfirst_bias", "dsecond", "dsecond_bias")),
        ("threads", ctypes.c_int32),
    ]


CONV_STEP = struct.Struct("9q2i")  # MaclaurinConvStep
MLP = struct.Struct("12q2fi4x")  # MaclaurinMlp
KERNELS = {  # by what they take
    Attention: ("quadratic_forward", "quadratic_backward", "chunked_forward", "chunked_backward"),
    Linear: ("linear_forward", "linear_backward"),
    Delta: ("delta_forward", "delta_backward"),
    Conv: ("conv_forward", "conv_backward"),
    Scan: ("scan_forward", "scan_backward"),
    Gated: ("gated_forward", "gated_backward"),
    Selective: ("selective_forward", "selective_backward"),
    Piecewise: ("piecewise_forward", "piecewise_backward"),
    Turn: ("turn_forward",),
    MeanFilter: ("mean_filter_forward", "mean_filter_backward"),
}


def _load() -> ctypes.CDLL | None:
    if INTERPRETED:
        return None  # the CPU stands for a GPU
    # an editable installation has two folders, the sources and the built files
    found = [path for folder in sys.modules["maclaurin"].__path__ if (path := Path(folder) / FILE).exists()]
    if not found:
        return None
    library = ctypes.CDLL(str(found[0]))  # CDLL, not PyDLL: other Python threads run while a kernel does
    _check_layout(library, found[0])
    library.maclaurin_isa.restype = ctypes.c_char_p
    library.maclaurin_choose_isa.argtypes = [ctypes.c_char_p]
    library.maclaurin_use_openmp.argtypes = [ctypes.c_void_p]
    library.maclaurin_any_nan.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    library.maclaurin_prefer_large_pages.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    library.maclaurin_step.argtypes = [ctypes.c_char_p, ctypes.c_char_p]  # packed: ctypes structures take longer to fill
    library.maclaurin_step_rows.argtypes = [ctypes.c_char_p]
    library.maclaurin_conv_step.argtypes = [ctypes.c_char_p]
    library.maclaurin_mlp_forward.argtypes = [ctypes.c_char_p]
    for call, names in KERNELS.items():
        for name in names:
            getattr(library, f"maclaurin_{name}").argtypes = [ctypes.POINTER(call)]
    library.maclaurin_use_openmp(_openmp_of_torch())
    return library


def _check_layout(library: ctypes.CDLL, path: Path) -> None:
    """Sources that changed under a library built before, as after a `git pull`, would read and write beside its structs."""
    layout = 0
    for size in (*map(ctypes.sizeof, KERNELS), CONV_STEP.size, MLP.size):
        layout = (layout * 1021 + size) % 2**53
    theirs = getattr(library, "maclaurin_layout", None)
    if theirs is not None:
        theirs.restype = ctypes.c_int64
    if theirs is None or theirs() != layout:
        raise ImportError(f"{path} was built from other sources than this maclaurin: install it again")


def _openmp_of_torch() -> ctypes.c_void_p | None:
    """Where torch's own OpenMP runs a team of threads; None where it has none, or hides it."""
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p)
    except (AttributeError, OSError):
        return None


def available() -> bool:
    """Whether this installation has the library."""
    return _LIBRARY is not None


def may_run() -> bool:
    """The same, unless `MACLAURIN_BACKEND` or `using_backend` asks for another one."""
    return available() and default_backend in ("auto", "native")


def refusal(q: Tensor, dtype: torch.dtype) -> str | None:
    """What the kernels would need to run on this tensor, computing in `dtype`; None where they can."""
    if not q.is_cpu:
        return f"tensors on the CPU, not on {q.device}"
    if dtype != torch.float32:
        return f"float32 or less, not {dtype}"
    if is_transformed():
        return "a call without forward-mode differentiation and torch.func"
    if INTERPRETED:
        return f"a process without {INTERPRET_VARIABLE}=1"
    return None if available() else "a maclaurin that was built where a C++ compiler is found"


def _loaded() -> ctypes.CDLL:
    if _LIBRARY is None:
        raise RuntimeError("the native backend was not built: reinstall maclaurin where a C++ compiler is found")
    return _LIBRARY


def isa() -> str:
    """The instruction set in use."""
    name: bytes = _loaded().maclaurin_isa()
    return name.decode()


def fastest_isa() -> str:
    """The instruction set that runs where no other one is asked for."""
    _loaded()
    return _FASTEST


@contextmanager
def using_isa(name: str) -> Iterator[None]:
    """Another instruction set for a while, in all threads: for tests and measurements."""
    before = isa()
    _choose(_loaded(), name)
    try:
        yield
    finally:
        _choose(_loaded(), before)


def _choose(library: ctypes.CDLL, name: str) -> None:
    if library.maclaurin_choose_isa(name.encode()):
        raise ValueError(f"{ISA_VARIABLE} must be one of avx512, avx2 and portable that this CPU has, got {name!r}")


def _asked_for() -> str:
    name = os.environ.get(BACKEND_VARIABLE) or "auto"
    if name not in BACKENDS:
        raise ValueError(f"{BACKEND_VARIABLE} must be one of {', '.join(BACKENDS)}, got {name!r:.40}")
    return name


@contextmanager
def using_backend(name: str) -> Iterator[None]:
    """What backend="auto" means for a while, in all threads: for tests and measurements."""
    global default_backend
    before, default_backend = default_backend, name
    try:
        yield
    finally:
        default_backend = before


def buffer(*shape: int) -> Tensor:
    """What a kernel fills: float32 on the CPU, whatever torch's defaults are."""
    return torch.empty(*shape, dtype=torch.float32, device=CPU)  # a tuple of sizes would take longer to parse


def large_buffer(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """For what stays and is read from beginning to end: in large pages, a sixth faster where it comes from memory."""
    x = torch.empty(*shape, dtype=dtype, device=CPU)
    if _LIBRARY is not None:
        _LIBRARY.maclaurin_prefer_large_pages(x.data_ptr(), x.nbytes)
    return x


def buffers_like(*tensors: Tensor | None) -> tuple[Tensor, ...]:
    """A buffer of the shape of each tensor, and an empty one for each that is absent."""
    return tuple(buffer(*((0,) if x is None else x.shape)) for x in tensors)


def raise_again(error: RuntimeError, name: str) -> NoReturn:
    """As a MemoryError where torch, which has no error of its own for it, found no memory."""
    if any(words in str(error) for words in ("DefaultCPUAllocator", "bad_alloc")):
        raise MemoryError(f"{name} found no memory for its tensors") from error
    raise error


def rows(x: Tensor) -> Tensor:
    """Channels next to each other; any other strides are fine."""
    if x.stride(-1) == 1 or x.shape[-1] == 1:
        return x
    if x.dim() == 3 and x.stride(1) == 1:  # PyTorch transposes in blocks, ten times as fast, what has two dimensions alone
        dense = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        for matrix, transposed in zip(dense, x, strict=True):
            matrix.copy_(transposed)
        return dense
    return x.contiguous()


def state_in(call: Attention | Linear, state: Tensor | None) -> Tensor | None:
    """Gives a call the state before its first token, and returns the tensor to keep alive.

    Rows of a larger state, as orders side by side have them, are read where they are; other layouts are copied.
    """
    if state is None:
        return None
    (B, G, _, W), (batch, head, row, column) = state.shape, state.stride()
    if column != 1 or row != W or (B > 1 and batch != G * head):
        state = state.contiguous()
    call.state, call.state_head = pointer(state), state.stride(1)
    return state


def pointer(tensor: Tensor | None) -> int | None:
    """Where a dense tensor starts; None for one that is absent or empty."""
    return None if tensor is None or tensor.numel() == 0 else tensor.data_ptr()


def run(kernel: str, call: ctypes.Structure) -> None:
    """Call a kernel by name; it uses as many threads as torch does."""
    call.threads = torch.get_num_threads()
    if getattr(_loaded(), f"maclaurin_{kernel}")(ctypes.byref(call)):
        raise MemoryError(f"the native kernel {kernel} found no memory for its blocks")


default_backend = _asked_for()  # what backend="auto" means
_LIBRARY = _load()  # when imported, so that torch.compile sees a constant
_FASTEST = "" if _LIBRARY is None else isa()
if _LIBRARY is not None and (wanted := os.environ.get(ISA_VARIABLE)):
    _choose(_LIBRARY, wanted)
step = None if _LIBRARY is None else _LIBRARY.maclaurin_step  # (packed MaclaurinBuffer, packed MaclaurinToken) -> status
step_rows = None if _LIBRARY is None else _LIBRARY.maclaurin_step_rows  # (packed MaclaurinRows) -> status
any_nan = None if _LIBRARY is None else _LIBRARY.maclaurin_any_nan  # (address, count) -> 0 or 1
conv_step = None if _LIBRARY is None else _LIBRARY.maclaurin_conv_step  # (packed MaclaurinConvStep) -> status
mlp_forward = None if _LIBRARY is None else _LIBRARY.maclaurin_mlp_forward  # (packed MaclaurinMlp) -> status
