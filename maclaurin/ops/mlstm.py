"""The cell of the mLSTM: first-order attention behind a sigmoid forget gate, with an exponential or sigmoid input gate.

    C_t = σ(f_t)·C_{t-1} + g(i_t)·k_t v_tᵀ      n_t = σ(f_t)·n_{t-1} + g(i_t)·k_t      g = exp, or σ
    y_t = C_tᵀq̂_t / (max(|n_t·q̂_t|, 1) + ε·exp(m_t)),   q̂ = scale·q

exp(i) has no bound, so the state is kept as exp(-m)·(C, n), and then every factor is at most 1:

    m_t = max(0, log σ(f_t) + m_{t-1}, i_t)     decay exp(log σ(f_t) + m_{t-1} - m_t)     input exp(i_t - m_t)

which is `linear_attention` with another decay and other keys: its kernels, its forms and its state are used as they are,
n being the state of one more value that is always 1. A sigmoid input gate needs no m. The units m cancel everywhere but
in ε·exp(m); m starts at 0 and is never below, so neither exp(-m) nor the difference of two -inf can overflow, and
padding (key 0, i = 0, log σ(f) = 0) changes nothing.

The authors' kernels (NX-AI/mlstm_kernels) let m sink below 0, which changes ε·exp(m) and nothing else, by less than ε.
Their backward takes the denominator for a constant, which is exact only before a norm that cancels it; here gradients
are those of the formula above, through ε and the state too. Their step and parallel forms of older code scale k instead of
q; states are exchangeable with kernels that scale q.

Beck et al.: xLSTM, arXiv 2405.04517; the sigmoid input gate: Tiled Flash Linear Attention, arXiv 2503.14376.
"""

# B batch, T time, H heads, G key-value heads, K key channels, V value channels, W = V+1 where the last column is n

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from maclaurin.common.arguments import number, one_of
from maclaurin.ops import checks, decay
from maclaurin.ops.arithmetic import default_scale, repeat_heads, without_autocast
from maclaurin.ops.linear import CHUNK, linear_attention
from maclaurin.ops.options import CallOptions, Options, with_options
from maclaurin.ops.ragged import Inputs
from maclaurin.ops.states import LinearState, MLSTMState
from maclaurin.ops.tokens import without_padding
from maclaurin.ops.transforms import is_transformed

INPUT_GATES = ("exp", "sigmoid")
SMALLEST_LOG_FORGET = -1e5  # a gate that is shut must also shut out an input gate of e^1000


@with_options
def mlstm(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    input_gate: Tensor,
    forget_gate: Tensor,
    *,
    input_gate_kind: str = "exp",
    normalize: bool = True,
    eps: float = 1e-6,
    scale: float | None = None,
    state: MLSTMState | None = None,
    chunk_size: int = CHUNK,
    **options: Unpack[CallOptions],
) -> tuple[Tensor, MLSTMState | None]:
    """Causal attention with the weights scale·q_t·k_s · σ(f_{s+1})·…·σ(f_t) · g(i_s), divided by max(|Σ|, 1) + ε·exp(m).

    q (B,T,H,K), k (B,T,G,K), v (B,T,G,V); input_gate i and forget_gate f (B,T,G) before their activations.
    input_gate_kind: g, "exp" or "sigmoid". normalize: False leaves out the division (sigmoid only: exp would overflow).
    Other arguments as in `linear_attention`.
    """
    call = Options.of(mlstm, options)
    checks.heads(q, k, v)
    for name, gate in (("input_gate", input_gate), ("forget_gate", forget_gate)):
        checks.tensor(name, gate, "batch, time, heads")
        if gate.shape != k.shape[:3]:
            raise ValueError(f"{name} must match k {checks.shape(k)} in batch, time and heads, got {checks.shape(gate)}")
    one_of("input_gate_kind", input_gate_kind, INPUT_GATES)
    number("eps", eps)
    if eps < 0:
        raise ValueError(f"eps must not be negative, got {eps}")
    if not normalize and input_gate_kind == "exp":
        raise ValueError("normalize=False needs input_gate_kind='sigmoid': exp(input_gate) has no bound without a division")
    checks.sound_state(state, MLSTMState, q)
    _check_state(state, k, v, normalize, input_gate_kind)

    cell = _Cell(input_gate_kind, normalize, eps, default_scale(scale, q), chunk_size, call)
    return call.over_documents(cell.run, (q, k, v, input_gate, forget_gate), state)


@dataclass(frozen=True)
class _Cell:
    """One call's gates and options."""

    input_gate_kind: str
    normalize: bool
    eps: float
    scale: float
    chunk_size: int
    call: Options

    @without_autocast
    def run(self, inputs: Inputs, state: MLSTMState | None, lengths: Tensor | None) -> tuple[Tensor, MLSTMState | None]:
        q, k, v, i, f = inputs
        assert q is not None and k is not None and v is not None and i is not None and f is not None
        dtype = torch.promote_types(q.dtype, torch.float32)
        log_forget = without_padding(F.logsigmoid(f.to(dtype)), lengths)
        if self.input_gate_kind == "exp":
            m, log_decay, gain = _stabilised(i, log_forget, None if state is None else state.log_scale)
        else:
            m, log_decay, gain = None, log_forget, torch.sigmoid(i.to(dtype))
        values = v.to(dtype)
        if self.normalize:
            values = torch.cat([values, values.new_ones(*values.shape[:-1], 1)], dim=-1)
        keys = k.to(dtype) * gain.to(dtype)[..., None]
        y, after = linear_attention(
            q.to(dtype) * self.scale,
            keys,
            values,
            log_decay.to(dtype),
            scale=1.0,
            normalize=False,
            state=None if state is None else LinearState(state.recurrent),
            chunk_size=self.chunk_size,
            **self.call.without_documents(),
        )
        if self.normalize:
            y = _divided(y, m, self.eps)
        if after is None:
            return y.to(q.dtype), None
        recurrent = after.recurrent
        if m is None:
            return y.to(q.dtype), MLSTMState(recurrent)
        if m.requires_grad or is_transformed():
            # a factor of 1: the state is in units of exp(m), which was a constant on the way here
            recurrent = recurrent * (m.detach() - m)[:, -1, :, None, None].exp().to(dtype)
        return y.to(q.dtype), MLSTMState(recurrent, m[:, -1].clone())


def _stabilised(i: Tensor, log_forget: Tensor, start: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """m (B,T,G), and the log decays and input gains in its units.

    Any m gives the same output, so it is a constant for the gradients of the units it defines: through it they would be
    sums that cancel. What depends on its value (ε, the state) takes the differentiable one.
    """
    wide = decay.widest(i.device)
    i, log_forget = i.to(wide), log_forget.to(wide)
    start_B1G = i.new_zeros(i.shape[0], 1, i.shape[2]) if start is None else start.to(wide)[:, None]
    sums = decay.cumulative(log_forget, 1, SMALLEST_LOG_FORGET)
    m = (sums + torch.cat([start_B1G, i - sums], dim=1).cummax(dim=1).values[:, 1:]).clamp(min=0)
    units = m.detach()
    log_decay = log_forget + torch.cat([start_B1G, units], dim=1)[:, :-1] - units
    # above 0 only by rounding; a clamp would take the gradient away as well
    return m, log_decay - log_decay.detach().clamp(min=0), (i - units).exp()


def _divided(y_BTHW: Tensor, m_BTG: Tensor | None, eps: float) -> Tensor:
    """By at least 1 in units of exp(m), which may be nothing in these: then 0, like `safe_divide` with less to write."""
    total = y_BTHW[..., -1:].abs()
    if m_BTG is None:
        divisor = total.clamp(min=1) + eps
    else:
        m = repeat_heads(m_BTG[..., None], y_BTHW.shape[2])
        one = (-m.detach()).exp().to(total.dtype)
        divisor = torch.maximum(total, one) + eps * (m - m.detach()).exp().to(total.dtype)
    nothing = divisor < torch.finfo(divisor.dtype).tiny ** 0.8
    return y_BTHW[..., :-1] / divisor.masked_fill(nothing, torch.inf)


def _check_state(state: MLSTMState | None, k: Tensor, v: Tensor, normalize: bool, kind: str) -> None:
    if state is None:
        return
    expected = (*k.shape[2:], v.shape[3] + normalize)
    if tuple(state.recurrent.shape[1:]) != expected or (state.log_scale is None) != (kind == "sigmoid"):
        raise ValueError(
            f"state must have been made with the same heads, channels, normalize and input_gate_kind: it must be "
            f"{expected} (heads, key channels, value channels) per sequence, got {tuple(state.recurrent.shape[1:])}"
        )
