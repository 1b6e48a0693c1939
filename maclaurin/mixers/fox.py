"""FoX, the forgetting transformer: softmax attention whose scores fade by a gate of the data.

    f_t = σ(x_t·W_f + b_f);   w_ts = exp(q_t·k_s/√d + log f_{s+1} + … + log f_t);   y_t = Σ_s w_ts v_s / Σ_s w_ts

It is the thesis's layer with all orders at once and the decay "forget"; f = 1 is softmax attention. W_f and b_f start as
all linear layers do, b_f at zero, so that a token keeps half of what it had at first. It needs no positions, as in the
paper; `rotary="rope"` or `"selective"` turns queries and keys and leaves the gate as it is.

The paper's "Pro" block is not reproduced as a whole. What it adds has relatives here: an output norm and gate (`norm=
"output", gate=True`; the authors norm each head and gate by a sigmoid behind it), a gated shift of k and v by one token
(`conv_width=2`), normalised queries and keys (`feature_map="cosine"`, without a learned scale). The authors' gates that do
not see the data, and the skipping of blocks that have faded, are left out. With grouped heads, which their code does not
have, a key-value head and its queries share a gate.

Lin et al.: Forgetting Transformer: Softmax Attention with a Forget Gate, arXiv 2503.02130, ICLR 2025.
"""

from __future__ import annotations

from maclaurin.mixers.attention import Attention
from maclaurin.mixers.registry import register


class ForgettingAttention(Attention):
    """Causal only: what is forgotten depends on the order of time. All options: the thesis's layer."""

    bidirectional = False


register(
    "fox",
    ForgettingAttention,
    "FoX: softmax attention behind a forget gate, no rotary positions",
    "Lin et al.: Forgetting Transformer, 2025",
    order=None,
    decay="forget",
)
