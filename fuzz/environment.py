"""What a call finds around it and must not depend on: default dtype and device, instruction set, threads, strides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from fuzz.case import Draw
from maclaurin.ops import native
from tests.ops.native_helpers import ISAS

DEFAULT_DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float64, torch.float16)
DEFAULT_DEVICES = (None,) * 9 + ("meta",)


@contextmanager
def environment(draw: Draw) -> Iterator[None]:
    """Drawn anew for every call."""
    dtype = draw.one("default dtype", DEFAULT_DTYPES)
    isa = draw.one("isa", ISAS) if ISAS else None
    device = draw.one("default device", DEFAULT_DEVICES)
    torch.set_num_threads(draw.one("threads", (1, 1, 1, 1, 2)))
    torch.set_default_dtype(dtype)
    if device is not None:
        torch.set_default_device(device)
    try:
        with native.using_isa(isa) if isa else nullcontext():
            yield
    finally:
        if device is not None:
            torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(1)


def restrided(draw: Draw, x: Tensor) -> Tensor:
    """The same numbers with other strides: dimensions swapped, a slice of a wider tensor, or an offset."""
    way = draw.choice(("as it is", "as it is", "swapped", "sliced", "offset"))
    if way == "swapped" and x.dim() > 2:
        a, b = draw.sample(range(x.dim()), 2)
        return x.transpose(a, b).contiguous().transpose(a, b)
    if way == "sliced":
        dim = draw.randrange(x.dim())
        wide = x.repeat_interleave(2, dim=dim)
        return wide[(slice(None),) * dim + (slice(None, None, 2),)]
    if way == "offset":
        return torch.nn.functional.pad(x, (1, 1))[..., 1:-1]
    return x
