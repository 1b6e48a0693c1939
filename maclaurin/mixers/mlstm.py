"""The mLSTM layer of xLSTM-7B: first-order attention with a forget gate and an exponential input gate.

    q, k, v = x·W_qkv;   i, f = cap(x·W_i + b_i), cap(x·W_f + b_f),  cap(z) = 15·tanh(z/15)
    C_t = σ(f_t)·C_{t-1} + exp(i_t)·k_t v_tᵀ,   n_t likewise with v = 1;   h_t = C_tᵀq_t / (max(|n_t·q_t|, 1) + ε),  q ← q/√d
    out = W_o · (σ(x·W_g) ⊙ norm(h))

The weights q·k are signed: it is no softmax. `ops/mlstm.py` has the stabilised cell. A layer of the model is a block of
xLSTM-7B (norm, mLSTM, residual, norm, SwiGLU, residual); with sliding-window attention in every other layer it is SWAX:
`MaclaurinConfig(mixer=["mlstm", "sliding-window"], …)`.

Initially the gates ignore the input: W_i = W_f = 0, b_i = -10, b_f evenly from 3 to 6 over the heads (half-lives
of 14 to 207 tokens), and W_g = 0. An input gate of exp(-8.7) beside an ε of 1e-6 in the norm mutes the layer until it
has learnt to open the gate. All other weights follow `init`; the authors draw them from N(0, 2/(5d)), W_o scaled by depth.

Left out of what the authors' code has: the older block around the same cell (up-projection, convolution
with a skip, block-diagonal q, k, v). Their norm is a LayerNorm (`norm="layer"`), where an RMS norm was meant. They set
f = -25 where a document starts; here documents are computed separately. mLSTMsig is `input_gate="sigmoid"`.

Beck et al.: xLSTM 7B, arXiv 2503.13427; the hybrid: SWAX, arXiv 2509.24552.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maclaurin.common.arguments import one_of, positive
from maclaurin.mixers.base import Call, MixerState, Zeros, initialise, start_of_parameters
from maclaurin.mixers.projected import ProjectedMixer
from maclaurin.mixers.registry import register
from maclaurin.ops import decay
from maclaurin.ops.arithmetic import without_autocast
from maclaurin.ops.mlstm import INPUT_GATES, mlstm
from maclaurin.ops.states import MLSTMState
from maclaurin.ops.transitions import decay_transition

NORMS = ("layer", "rms")
INPUT_BIAS = -10.0
FORGET_BIASES = (3.0, 6.0)  # from the first head to the last
_linear = without_autocast(F.linear)


class Gate(nn.Module):
    """x·W + b with W = 0 initially. Not an nn.Linear, because a model's initialiser redraws the weights of those."""

    def __init__(self, d_model: int, outputs: int, bias: Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(outputs, d_model))
        self.bias = None if bias is None else nn.Parameter(bias.to(torch.get_default_dtype()))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def wide(self, x: Tensor) -> Tensor:
        """In float32 at least, also under autocast: gates are exponents, and bfloat16 would round them to three digits."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        return _linear(x.to(dtype), self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype))


class MLSTM(ProjectedMixer):
    """Options beside those of every projected mixer (key_dim is head_dim / 2 unless given; the forget gate is the decay):

    input_gate: "exp", or "sigmoid" (mLSTMsig). gate_cap: c of the soft cap c·tanh(z/c) on both gates, None for none.
    norm: of each head's output, "layer" or "rms", with a weight per channel. norm_eps: its epsilon; eps: the cell's.
    init: "torch" (PyTorch's defaults) or "llama" (N(0, 0.02)), of all but the gates.
    """

    key_divisor = 2
    own_gate = True

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        input_gate: str = "exp",
        gate_cap: float | None = 15.0,
        norm: str = "layer",
        norm_eps: float = 1e-6,
        eps: float = 1e-6,
        init: str = "torch",
        **projection: Any,
    ) -> None:
        super().__init__(d_model, num_heads, **projection)
        one_of("input_gate", input_gate, INPUT_GATES)
        one_of("norm", norm, NORMS)
        if gate_cap is not None:
            positive("gate_cap", gate_cap)
        positive("norm_eps", norm_eps)
        if self.decay != "none":
            raise ValueError(f"decay must be 'none', because the forget gate of an mLSTM is its decay, got {self.decay!r}")
        self.input_gate = input_gate
        self.gate_cap = gate_cap
        self.norm = norm
        self.norm_eps = norm_eps
        self.eps = eps

        G = self.num_kv_heads
        first, last = FORGET_BIASES
        forget_bias = first + (last - first) * torch.arange(G, **start_of_parameters()) / max(G - 1, 1)
        self.gates = Gate(d_model, 2 * G, torch.cat([torch.full((G,), INPUT_BIAS, **start_of_parameters()), forget_bias]))
        self.out_gate = Gate(d_model, self.inner_dim)
        self.norm_weight = nn.Parameter(torch.ones(num_heads, self.head_dim))
        self.add_skip_and_gate()
        initialise(self, init)

    @property
    def fused(self) -> dict[str, list[int]]:
        return super().fused | {"gates": [self.num_kv_heads] * 2}

    def mix(self, x: Tensor, state: MixerState | None, call: Call) -> tuple[Tensor, MixerState | None]:
        p = self.project(x, state, call)
        gates = self.gates.wide(x)
        if self.gate_cap is not None:
            gates = self.gate_cap * torch.tanh(gates / self.gate_cap)
        input_gate, forget_gate = gates.chunk(2, dim=-1)
        if call.transitions is not None:
            call.transitions.append(decay_transition(F.logsigmoid(forget_gate)))
        h, after = mlstm(
            p.q.to(gates.dtype),  # the output stays as wide until it is normalised: a muted cell is small
            p.k,
            p.v,
            input_gate,
            forget_gate,
            input_gate_kind=self.input_gate,
            eps=self.eps,
            **call.with_state(None if state is None else state.attention),
        )
        return self.finish(self.with_skip(h, p), x), self.state_after(p, after)

    def finish(self, y_BTHV: Tensor, x: Tensor) -> Tensor:
        norm = F.layer_norm if self.norm == "layer" else F.rms_norm
        h = norm(y_BTHV, (self.head_dim,), eps=self.norm_eps)
        h = h * self.norm_weight.to(h.dtype)
        return super().finish(torch.sigmoid(self.out_gate(x)) * h.flatten(2).to(x.dtype), x)

    def state_of(self, tokens: int, zeros: Zeros) -> MixerState:
        recurrent = zeros(self.num_kv_heads, self.key_dim, self.head_dim + 1, dtype=zeros.wide)
        log_scale = None
        if self.input_gate == "exp":
            log_scale = zeros(self.num_kv_heads, dtype=decay.widest(torch.device(zeros.device)))
        return self.carrying(MLSTMState(recurrent, log_scale), zeros)


register(
    "mlstm",
    MLSTM,
    "mLSTM of xLSTM-7B: first order, forget gate, exponential input gate, stabilised, output gate",
    "Beck et al.: xLSTM, 2024; Beck et al.: xLSTM 7B, 2025",
)
