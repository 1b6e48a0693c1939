"""FoX, the forgetting transformer: softmax attention whose scores decay by a data-dependent gate.

    f_t = σ(x_t·W_f + b_f);   w_ts = exp(q_t·k_s/√d + log f_{s+1} + … + log f_t);   y_t = Σ_s w_ts v_s / Σ_s w_ts

It is `Attention` with order=None and the decay "forget"; f = 1 is softmax attention. W_f is initialised as all linear layers
are and b_f at zero, so that f is about ½ at first. It needs no positions, as in the paper; `rotary="rope"` or `"selective"`
rotates queries and keys and leaves the gate as it is.

The paper's "Pro" block is `fox_pro.py`. The authors' gates that do not depend on the data, and the skipping of blocks that
have decayed, are left out. With grouped heads, which their code does not have, a key-value head and its queries share a
gate.

Lin et al.: Forgetting Transformer: Softmax Attention with a Forget Gate, arXiv 2503.02130, ICLR 2025.
"""

from __future__ import annotations

from maclaurin.mixers.attention import Attention
from maclaurin.mixers.registry import register


class ForgettingAttention(Attention):
    """Causal only, because a token's decay acts on all that came before it. Options: those of `Attention`."""

    bidirectional = False


register(
    "fox",
    ForgettingAttention,
    "FoX: softmax attention behind a forget gate, no rotary positions",
    "Lin et al.: Forgetting Transformer, 2025",
    order=None,
    decay="forget",
)
