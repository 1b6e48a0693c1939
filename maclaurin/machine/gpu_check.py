"""What an owner of a GPU runs to check everything there: numerics against float64, and times beside PyTorch's own attention.

Errors are judged by what the torch backend loses on the same numbers at the same precision. Times are medians between CUDA
events. All of it is one record, to be kept or sent in.
"""

# B batch, T time, H heads, G key-value heads, K, V channels

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from maclaurin import ops
from maclaurin.common.timing import on_gpu
from maclaurin.ops import gpu
from maclaurin.ops.gpu.tiles import capability_of

TIMES_TORCH = 4  # what torch loses, as other orders of summation lose more or less by chance
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)
SHAPES = ((1, 300, 4, 2, 64, 64), (2, 129, 2, 1, 32, 40), (1, 200, 1, 1, 128, 128), (1, 70, 2, 2, 20, 5))
SMALL = ((1, 70, 2, 1, 16, 5),)  # for the interpreter
Call = Callable[..., Tensor]  # of q, k, v, log_decay and the backend


def _attention(op: Callable[..., Any], *inputs: Tensor, **options: Any) -> Tensor:
    y: Tensor = op(*inputs, return_state=False, **options)[0]
    return y


@torch.no_grad()
def _step(*inputs: Tensor, backend: str) -> Tensor:
    """The last token, from a state of those before it and one token that is not in it yet."""
    options: dict[str, Any] = {"fold_at": 1, "fold_every": 4, "backend": backend}
    _, state = ops.power_attention(*(x[:, :-2] for x in inputs), **options)
    _, state = ops.power_attention(*(x[:, -2:-1] for x in inputs), state=state, **options)
    return ops.power_attention(*(x[:, -1:] for x in inputs), state=state, **options)[0]


def _conv(q: Tensor, k: Tensor, v: Tensor, a: Tensor, *, backend: str) -> Tensor:
    """Queries as tokens, with taps that are queries too."""
    return ops.short_conv(q.flatten(2), q[0, :4].flatten(1).T, activation="silu", backend=backend)[0]


CALLS: tuple[tuple[str, str, Call], ...] = (
    ("power_attention", "parallel", partial(_attention, ops.power_attention, form="parallel", chunk_size=64)),
    ("power_attention", "chunked", partial(_attention, ops.power_attention, form="chunked", chunk_size=64)),
    ("power_attention", "step", _step),
    ("softmax_attention", "auto", partial(_attention, ops.softmax_attention)),
    ("softmax_attention", "auto window", partial(_attention, ops.softmax_attention, window=33)),
    ("short_conv", "4 taps", _conv),
)


@dataclass(frozen=True)
class Finding:
    """lost: the largest relative error of the output and of all gradients; torch_lost: of the torch backend."""

    op: str
    form: str
    dtype: str
    shape: tuple[int, ...]
    lost: float
    torch_lost: float

    @property
    def wrong(self) -> bool:
        return not self.lost <= TIMES_TORCH * max(self.torch_lost, torch.finfo(getattr(torch, self.dtype)).eps)


def examine(watch: Callable[[str], None]) -> dict[str, Any]:
    """The record. Without a GPU a ValueError says so; in Triton's interpreter there are no times."""
    if not gpu.INTERPRETED and not torch.cuda.is_available():
        raise ValueError("--gpu needs a CUDA or ROCm GPU that PyTorch sees, and there is none")
    if not gpu.has_triton():
        raise ValueError("--gpu needs Triton, which is not installed")
    device = torch.device("cpu" if gpu.INTERPRETED else "cuda")
    findings = []
    for finding in _numerics(device):
        what = f"{finding.op} {finding.form} {finding.dtype} {finding.shape}"
        watch(f"{what}: {finding.lost:.1e}, torch {finding.torch_lost:.1e}")
        findings.append(finding)
    return {
        "gpu": "Triton's interpreter" if gpu.INTERPRETED else torch.cuda.get_device_name(),
        "capability": capability_of(torch.empty(0, dtype=torch.float32, device=device)),
        "torch": torch.__version__,
        "findings": [asdict(finding) | {"wrong": finding.wrong} for finding in findings],
        "milliseconds": [] if gpu.INTERPRETED else list(_times(watch)),
        "wrong": [f"{x.op} {x.form} {x.dtype} {x.shape}" for x in findings if x.wrong],
    }


def _numerics(device: torch.device) -> Iterator[Finding]:
    for shape in SMALL if gpu.INTERPRETED else SHAPES:
        for dtype in (torch.float32, torch.bfloat16):
            for op, form, call in CALLS:
                right = _run(partial(call, backend="torch"), shape, torch.float64, torch.device("cpu"), dtype)
                lost, torch_lost = (
                    _distance(_run(partial(call, backend=backend), shape, dtype, device, dtype), right)
                    for backend in ("triton", "torch")
                )
                yield Finding(op, form, str(dtype)[6:], shape, lost, torch_lost)


def _run(call: Call, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, drawn: torch.dtype) -> list[Tensor]:
    """The output and the gradients by all inputs, which are drawn in the precision `drawn` and computed with in `dtype`."""
    B, T, H, G, K, V = shape
    generator = torch.Generator().manual_seed(0)
    sizes = ((B, T, H, K), (B, T, G, K), (B, T, G, V))
    tokens = [torch.randn(size, generator=generator, dtype=torch.float32, device="cpu").to(drawn) for size in sizes]
    a = -0.02 * torch.rand(B, T, G, generator=generator, dtype=torch.float32, device="cpu")
    leaves = [x.to(device, dtype).requires_grad_() for x in tokens]
    decay = a.to(device, torch.promote_types(dtype, torch.float32)).requires_grad_()
    y = call(*leaves, decay)
    dy = torch.randn(y.shape, generator=generator, dtype=torch.float32, device="cpu")
    if y.requires_grad:
        y.backward(dy.to(y))
    return [y.detach(), *(x.grad for x in (*leaves, decay) if x.grad is not None)]


def _distance(found: list[Tensor], right: list[Tensor]) -> float:
    errors = (((x.double().cpu() - y).norm() / y.norm().clamp(min=1e-300)).item() for x, y in zip(found, right, strict=True))
    return max(math.inf if math.isnan(error) else error for error in errors)


def _with_backward(run: Callable[[], Tensor]) -> None:
    run().sum().backward()


def _times(watch: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Forward, and forward with backward, of heads of 64 channels in bfloat16, beside softmax attention of PyTorch."""
    for T in LENGTHS:
        q, k, v = (torch.randn(1, T, 16, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True) for _ in range(3))
        a = torch.full((1, T, 16), -1e-3, dtype=torch.float32, device="cuda")

        def second_order(form: str, q: Tensor = q, k: Tensor = k, v: Tensor = v, a: Tensor = a) -> Tensor:
            return ops.power_attention(q, k, v, a, form=form, backend="triton", return_state=False)[0]

        def softmax(q: Tensor = q, k: Tensor = k, v: Tensor = v) -> Tensor:
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            return scaled_dot_product_attention(q, k, v, is_causal=True)

        candidates: dict[str, Callable[[], Tensor]] = {
            "direct": partial(second_order, "parallel"),
            "chunked": partial(second_order, "chunked"),
            "softmax": softmax,
        }
        for name, run in candidates.items():
            forward = on_gpu(run)
            both = on_gpu(partial(_with_backward, run))
            watch(f"{T} tokens, {name}: {forward.median:.3g} ms forward, {both.median:.3g} ms with backward")
            yield {"tokens": T, "form": name, "forward": forward.median, "with_backward": both.median}
