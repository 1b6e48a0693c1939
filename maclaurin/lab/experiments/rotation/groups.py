"""State tracking by construction: only the first token writes a value, and each token turns one plane by its own angle.

y_t = cos(Φ_t − Φ_0) is then the parity of the bits for angles of π, and the residue of a sum mod m for 2πa/m. Rotations of
a plane commute, so that words of a group that does not cannot be told apart.
"""

# T time

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from maclaurin.lab import claims
from maclaurin.lab.claims import Claim
from maclaurin.mixers.selective_rope import UNIT_LENGTH_EPS, SelectiveRotary
from maclaurin.ops import linear_attention, rotate

EXACT = 1e-12
FLOAT32_BITS = 4096


def selective_angles(tokens_T: Tensor, turns: list[float], dtype: torch.dtype = torch.float64) -> Tensor:
    """The phases (1, T, 1, 1) that the mixers' selective rotary gives if token a turns its one plane by turns[a].

    Tokens are one-hot; the projection reads the turn off a token, and the convolution passes it on as it is.
    """
    turning = SelectiveRotary(len(turns), 1, 1, increments="linear", gate="none", theta=1.0).to(dtype)
    wanted = torch.tensor(turns, dtype=torch.float64, device="cpu")
    pass_on = torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64, device="cpu")
    length = wanted.norm() * math.sqrt(1 + UNIT_LENGTH_EPS)  # undoes the norms of the column and of the token
    parts = {"conv.weight": pass_on[None, None], "proj.weight": wanted[None, :, None], "proj.scale": length[None]}
    turning.load_state_dict(parts)
    one_hot = torch.eye(len(turns), dtype=dtype, device="cpu")[tokens_T][None]
    with torch.no_grad():
        angles: Tensor = turning(one_hot, None, "auto", None)[0]
    return angles


def tracked(tokens_T: Tensor, turns: list[float], dtype: torch.dtype = torch.float64) -> Tensor:
    """(cos, sin) of the phase (T, 2) as linear attention reads it: the first token is the only one with a key."""
    angles = selective_angles(tokens_T, turns, dtype)
    T = len(tokens_T)
    q = torch.zeros(1, T, 1, 2, dtype=dtype, device="cpu")
    q[..., 0] = 1
    k = torch.zeros_like(q)
    k[:, 0, :, 0] = 1
    value = torch.ones(1, T, 1, 1, dtype=dtype, device="cpu")

    def read(queries: Tensor) -> Tensor:
        y, _ = linear_attention(
            rotate(queries, angles), rotate(k, angles), value, scale=1.0, normalize=False, return_state=False
        )
        return y[0, :, 0, 0]

    return torch.stack([read(q), -read(q.flip(-1))], dim=-1)  # (0, 1) turned has −sin as its first channel


def parity(seed: int, length: int, *, turn: float = math.pi, dtype: torch.dtype = torch.float64) -> tuple[float, float]:
    """The largest error of y against ±1, and the share of wrong signs. turn: of a bit; π is right."""
    bits = _bits(seed, length)
    expected = 1.0 - 2.0 * (bits.cumsum(0) % 2)
    found = tracked(bits, [0.0, turn], dtype)[:, 0].double()
    return (found - expected).abs().max().item(), (found.sign() != expected).double().mean().item()


def running_sum_parity(seed: int, length: int) -> float:
    """The largest error of y if turns of π are added one by one in float32: their roundings add up, 0.017 at 4096 bits."""
    bits = _bits(seed, length).numpy()
    phase = np.cumsum(np.float32(math.pi) * bits.astype(np.float32), dtype=np.float32)  # torch would sum in float64
    return float(np.abs(np.cos(phase.astype(np.float64)) - np.cos(math.pi * np.cumsum(bits))).max())


def _bits(seed: int, length: int) -> Tensor:
    bits = torch.randint(0, 2, (length,), generator=torch.Generator().manual_seed(seed), device="cpu")
    bits[0] = 0  # the token that writes
    return bits


def cyclic(seed: int, order: int, length: int) -> float:
    """The largest error of the phase's cosine and sine against 2π/m times the sum mod m of tokens 0 … m-1."""
    tokens = torch.randint(0, order, (length,), generator=torch.Generator().manual_seed(seed), device="cpu")
    tokens[0] = 0
    # within half a turn to either side: phases stay near 0, where float64 is finest
    found = tracked(tokens, [math.remainder(math.tau * a / order, math.tau) for a in range(order)])
    residue = 2 * math.pi * (tokens.cumsum(0) % order).double() / order
    return (found - torch.stack([residue.cos(), residue.sin()], dim=-1)).abs().max().item()


def commuting(turns: list[float]) -> float:
    """How differently the words ab and ba end: 0 for rotations of one plane, though in S3 they are two elements."""
    ends = [
        tracked(torch.tensor([0, *word], dtype=torch.long, device="cpu"), [0.0, *turns])[-1] for word in ((1, 2), (2, 1))
    ]
    return (ends[0] - ends[1]).abs().max().item()


def group_claims(seed: int, length: int, *, turn: float = math.pi) -> list[Claim]:
    error, wrong = parity(seed, length, turn=turn)
    return [
        claims.at_most("parity", f"parity of {length} bits by turns of π: largest error of ±1", error, EXACT),
        claims.at_most("parity signs", "the same: share of wrong signs", wrong, 0.0),
        claims.at_most(
            "parity float32",
            f"the same for {FLOAT32_BITS} bits by a mixer in float32, whose phases are summed in float64",
            parity(seed, FLOAT32_BITS, turn=turn, dtype=torch.float32)[0],
            1e-4,
        ),
        claims.near(
            "parity sum float32",
            "the same by a running sum of float32 turns",
            running_sum_parity(seed, FLOAT32_BITS),
            1e-4,
            1e-4,
        ),
        *(
            claims.at_most(
                f"Z{order}", f"sums mod {order} by turns of 2πa/{order}: largest error", cyclic(seed, order, length), EXACT
            )
            for order in (3, 5)
        ),
        claims.at_most(
            "S3",
            "one plane cannot tell ab from ba, which in S3 differ: difference",
            commuting([math.pi, 2 * math.pi / 3]),
            EXACT,
        ),
    ]
