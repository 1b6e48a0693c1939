"""The same sums by other people's code on this CPU, where it is installed: `pip install 'maclaurin[peers]'`.

One thread, because most of them use one well. The row of a peer says what differs.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from rich.console import Console
from rich.table import Table

import maclaurin
from maclaurin.common.records import Record
from maclaurin.common.timing import interleaved
from maclaurin.ops import delta_rule, linear_attention, power_attention

T, HEADS, DIM = 4096, 4, 64
Pair = tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]  # ours, theirs


@dataclass(frozen=True)
class PeerRow(Record):
    """ms: of "ours" and "theirs". difference: the largest of the outputs, relative to the largest output."""

    what: str
    peer: str
    ms: Mapping[str, float]
    ratio: float
    difference: float


@torch.no_grad()
def run(console: Console, *, long: bool) -> list[PeerRow]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = []
    table = Table(title=f"peers, forward, T = {T}, one thread: ms (quartiles)")
    for column in ("what", "peer", "ours", "theirs", "ratio", "largest difference"):
        table.add_column(column, justify="right")
    try:
        for what, peer, make in PEERS:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    ours, theirs = make()
            except ImportError as error:
                table.add_row(what, peer, "", "", "", f"not installed: {error}")
                continue
            expected = theirs()
            difference = float((ours() - expected).abs().max() / expected.abs().max())
            times = interleaved({"ours": ours, "theirs": theirs}, seconds=5)
            ratio = times["theirs"].median / times["ours"].median
            table.add_row(what, peer, str(times["ours"]), str(times["theirs"]), f"{ratio:.1f}x", f"{difference:.0e}")
            medians = {name: timing.median for name, timing in times.items()}
            rows.append(PeerRow(what, peer, medians, ratio, difference))
    finally:
        torch.set_num_threads(threads)
    console.print(table)
    return rows


def _inputs() -> tuple[torch.Tensor, ...]:
    return *torch.randn(3, 1, T, HEADS, DIM, dtype=torch.float32, device="cpu"), -0.1 * torch.rand(
        1, T, HEADS, dtype=torch.float32, device="cpu"
    )


def _fla() -> Pair:
    from fla.ops.simple_gla.naive import naive_chunk_simple_gla

    q, k, v, a = _inputs()
    return lambda: linear_attention(q, k, v, a, normalize=False, scale=1.0)[0], lambda: naive_chunk_simple_gla(
        q, k, v, a, scale=1.0
    )[0]


def _retention() -> Pair:
    from retention.reference import power_retention

    q, k, v, a = _inputs()
    return lambda: power_attention(q, k, v, a)[0], lambda: power_retention(q, k, v, log_G=a, deg=2, chunk_size=128)


def _delta(gradients: bool = False) -> Pair:
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    peer = inspect.unwrap(torch_chunk_gated_delta_rule)  # without the kernels of fla, which need a GPU
    shape = (1, 2048, 8)
    q, k, v = torch.randn(3, *shape, DIM, dtype=torch.float32, device="cpu")
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    beta, rate = torch.rand(2, *shape, dtype=torch.float32, device="cpu")
    tokens = [x.requires_grad_(gradients) for x in (q, k, v, beta, -0.1 * rate)]

    def run(rule: Callable[..., torch.Tensor]) -> torch.Tensor:
        """The outputs, or the gradient by the decay."""
        with torch.set_grad_enabled(gradients):
            y = rule(*tokens)
            return torch.autograd.grad(y.square().sum(), tokens)[-1] if gradients else y

    return (
        lambda: run(lambda *x: delta_rule(*x)[0]),
        lambda: run(lambda q, k, v, beta, a: peer(q, k, v, a, beta)[0]),
    )


def _mamba2() -> Pair:
    from transformers import Mamba2Config
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    width = 512
    config = Mamba2Config(hidden_size=width, num_heads=16, head_dim=64, state_size=128, n_groups=1, expand=2, chunk_size=256)
    theirs = Mamba2Mixer(config, layer_idx=0).eval()
    ours = maclaurin.build_mixer("mamba2", width, 16, d_state=128, expand=2).eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(1, T, width, dtype=torch.float32, device="cpu")
    return lambda: ours(x, return_state=False)[0], lambda: theirs(x)


def _mlstm() -> Pair:
    from mlstm_kernels.torch.chunkwise.native import mlstm_chunkwise__native_autograd

    q, k, v, a = _inputs()
    heads_first = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    gate, forget = (
        torch.zeros(1, HEADS, T, dtype=torch.float32, device="cpu"),
        (a.exp() / -a.expm1()).log().transpose(1, 2).contiguous(),
    )
    return (
        lambda: linear_attention(q, k, v, a, normalize=False)[0],
        lambda: mlstm_chunkwise__native_autograd(*heads_first, gate, forget).transpose(1, 2),
    )


PEERS: list[tuple[str, str, Callable[[], Pair]]] = [
    ("first order, scalar decay", "flash-linear-attention, naive chunks", _fla),
    ("second order, scalar decay", "retention, reference", _retention),
    ("gated delta rule, 2048 tokens, 8 heads", "transformers, torch function", _delta),
    ("gated delta rule, forward and backward", "transformers, torch function", partial(_delta, gradients=True)),
    ("mamba2 layer, width 512, same weights", "transformers", _mamba2),
    ("first order (theirs has gates and a divisor on top)", "mlstm_kernels, native", _mlstm),
]
