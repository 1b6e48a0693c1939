"""What turning queries and keys is: a complex recurrence, in which only relative phases matter if decays come in pairs.

    Z_t = α_t e^{iθ_t} Z_{t-1} + conj(k_t) v_tᵀ,   y_t = Re(q_t Z_t)        a pair of channels (j, j+R) is a complex number

It tracks a state by construction: only the first token writes a value, and each token turns one plane by its own angle.
y_t = cos(Φ_t − Φ_0) is then the parity of the bits for angles of π, and the residue of a sum mod m for 2πa/m. Rotations of
a plane commute, so that words of a group that does not cannot be told apart.
"""

# T time, K channels, R = K/2 planes, V value channels

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from maclaurin.common.arguments import at_least, positive
from maclaurin.lab import claims
from maclaurin.lab.experiments.draws import distance, generator, normal, vector
from maclaurin.lab.experiments.dynamics.system import System
from maclaurin.lab.experiments.rotation.fourier import fourier_part, ripple_part
from maclaurin.lab.result import Part, Result
from maclaurin.mixers.selective_rope import UNIT_LENGTH_EPS, SelectiveRotary
from maclaurin.ops import linear_attention, rotary, rotate

PAPER = "Selective RoPE, arXiv 2511.17388"
NOTES = (
    "Constructions show what a layer can represent, not what training finds.",
    "Side lobes are counted over a range of δ chosen here; the number expected is that of lobes 2π/T apart.",
)
EXACT = 1e-12
FLOAT32_BITS = 4096


def rotation(
    *,
    quick: bool = False,
    seed: int = 0,
    length: int = 1000,
    turn: float = math.pi,
    speed: float = 1.0,
    tied: bool = True,
    draws: int | None = None,
) -> Result:
    """Rotations that depend on the input: hidden in softmax, a window on frequencies, parity in one layer.

    length: of the words whose parity is tracked. turn: of a bit, π for parity. speed: of the increments, 1 for RoPE.
    tied: whether both channels of a pair decay alike in the comparison with the complex recurrence.
    draws: of random features.
    """
    at_least(2, "length", length)
    positive("speed", speed)
    draws = (200 if quick else 2000) if draws is None else draws
    learned = "not trained here: `maclaurin suite track` trains it, with lengths beyond those of the training"
    parts = [
        Part([complex_form(seed, tied=tied), *relative_phase(seed), *as_rope(seed, speed=speed)]),
        fourier_part(seed, draws),
        Part(group_claims(seed, length, turn=turn)),
        ripple_part(),
        Part([claims.not_applicable("learned", "learnt parity: selective rotary extrapolates", learned, PAPER)]),
    ]
    settings = {"length": length, "turn": turn, "speed": speed, "tied": tied, "draws": draws, "seed": seed}
    return Result.of("rotation", "Rotations that depend on the input", settings, parts, NOTES)


@dataclass(frozen=True)
class Turned:
    """Random queries, keys, values, increments and decays. tied: both channels of a pair decay alike."""

    q_TK: Tensor
    k_TK: Tensor
    v_TV: Tensor
    increment_TR: Tensor
    log_decay_TK: Tensor

    @classmethod
    def of(cls, seed: int, *, tied: bool, length: int = 256, planes: int = 32) -> Turned:
        source = generator(seed)
        channels = (2 * planes, 2 * planes, 8, planes, 2 * planes)
        q, k, v, increment, logits = (normal(length, count, generator=source) for count in channels)
        decay = F.logsigmoid(logits) / 16  # as GLA has it
        return cls(q, k, v, increment, decay[:, :planes].repeat(1, 2) if tied else decay)

    def rotated(self, start: float = 0.0) -> Tensor:
        """Rotate, then gated linear attention; `start` is added to all phases."""
        angles_1T1R = (self.increment_TR.cumsum(0) + start)[None, :, None]
        q, k = (rotate(x[None, :, None], angles_1T1R) for x in (self.q_TK, self.k_TK))
        v, log_decay = (x[None, :, None] for x in (self.v_TV, self.log_decay_TK))
        y, _ = linear_attention(q, k, v, log_decay, scale=1.0, normalize=False, form="parallel", return_state=False)
        return y[0, :, 0]

    def complex_recurrence(self) -> Tensor:
        q_TR, k_TR = (torch.complex(*x.chunk(2, dim=-1)) for x in (self.q_TK, self.k_TK))
        # conj(k) is turned the other way: the recurrence carries the phase from a key to the query
        turn_TR = torch.polar(self.log_decay_TK[:, : q_TR.shape[1]].exp(), self.increment_TR)
        return System(turn_TR[:, None], k_TR.conj()[:, None], q_TR[:, None], self.v_TV[:, None]).run()[:, 0].real


def complex_form(seed: int, *, tied: bool = True) -> claims.Claim:
    turned = Turned.of(seed, tied=tied)
    error = distance(turned.rotated(), turned.complex_recurrence())
    text = "rotate, then GLA = the complex recurrence, decays in pairs, largest error"
    return claims.at_most("complex", text, error, EXACT)


def relative_phase(seed: int) -> list[claims.Claim]:
    def change(tied: bool) -> float:
        turned = Turned.of(seed, tied=tied)
        y = turned.rotated()
        return ((turned.rotated(1.0) - y).norm() / y.norm()).item()

    return [
        claims.at_most("relative", "one angle added to all phases, decays in pairs: relative change", change(True), EXACT),
        claims.between("relative, untied", "the same with a decay per channel, as GLA has it", change(False), 0.03, 0.15),
    ]


def as_rope(seed: int, *, speed: float = 1.0) -> list[claims.Claim]:
    """The selective rotary of the mixers with increments of `speed`: 1 is RoPE."""
    torch.manual_seed(seed)
    planes, length = 16, 100
    turning = SelectiveRotary(8, 1, planes, increments="linear", gate="none", bias=True, theta=10000.0).double()
    with torch.no_grad():
        assert turning.conv is not None and turning.bias is not None
        turning.conv.weight.zero_()
        turning.bias.fill_(math.log(speed))
        angles, _ = turning(torch.randn(1, length, 8, dtype=torch.float64, device="cpu"))
    q, k = torch.randn(2, 1, length, 1, 2 * planes, dtype=torch.float64, device="cpu")
    positions = torch.arange(length, dtype=torch.long, device="cpu")
    turned, by_rope = ([rotate(x, angles) for x in (q, k)], [rotary(x, positions) for x in (q, k)])
    error = distance(*(torch.einsum("bthk,bshk->bts", *both) for both in (turned, by_rope)))
    lengths = distance(turned[0].norm(dim=-1), q.norm(dim=-1))
    return [
        claims.at_most("rope", "increments of 1 give the scores of RoPE, largest error", error, EXACT),
        claims.at_most("norm", "a rotation keeps lengths, largest error", lengths, EXACT),
    ]


def selective_angles(tokens_T: Tensor, turns: list[float], dtype: torch.dtype = torch.float64) -> Tensor:
    """The phases (1, T, 1, 1) that the mixers' selective rotary gives if token a turns its one plane by turns[a].

    Tokens are one-hot; the projection reads the turn off a token, and the convolution passes it on as it is.
    """
    turning = SelectiveRotary(len(turns), 1, 1, increments="linear", gate="none", theta=1.0).to(dtype)
    wanted, pass_on = vector(turns), vector((0.0, 0.0, 0.0, 1.0))
    length = wanted.norm() * math.sqrt(1 + UNIT_LENGTH_EPS)  # undoes the norms of the column and of the token
    turning.load_state_dict(
        {"conv.weight": pass_on[None, None], "proj.weight": wanted[None, :, None], "proj.scale": length[None]}
    )
    one_hot = torch.eye(len(turns), dtype=dtype, device="cpu")[tokens_T][None]
    with torch.no_grad():
        angles: Tensor = turning(one_hot)[0]
    return angles


def tracked(tokens_T: Tensor, turns: list[float], dtype: torch.dtype = torch.float64) -> Tensor:
    """(cos, sin) of the phase (T, 2) as linear attention reads it: the first token is the only one with a key."""
    angles = selective_angles(tokens_T, turns, dtype)
    q = torch.zeros(1, len(tokens_T), 1, 2, dtype=dtype, device="cpu")
    q[..., 0] = 1
    k = torch.zeros_like(q)
    k[:, 0, :, 0] = 1
    k, value = rotate(k, angles), torch.ones_like(q[..., :1])

    def read(queries: Tensor) -> Tensor:
        y, _ = linear_attention(rotate(queries, angles), k, value, scale=1.0, normalize=False, return_state=False)
        return y[0, :, 0, 0]

    return torch.stack([read(q), -read(q.flip(-1))], dim=-1)  # (0, 1) turned has −sin as its first channel


def parity(seed: int, length: int, *, turn: float = math.pi, dtype: torch.dtype = torch.float64) -> tuple[float, float]:
    """The largest error of y against ±1, and the share of wrong signs. turn: of a bit; π is right."""
    bits = _tokens(seed, 2, length)
    expected = 1.0 - 2.0 * (bits.cumsum(0) % 2)
    found = tracked(bits, [0.0, turn], dtype)[:, 0].double()
    return distance(found, expected), (found.sign() != expected).double().mean().item()


def _tokens(seed: int, kinds: int, length: int) -> Tensor:
    tokens = torch.randint(0, kinds, (length,), generator=generator(seed), device="cpu")
    tokens[0] = 0  # the token that writes
    return tokens


def cyclic(seed: int, order: int, length: int) -> float:
    """The largest error of the phase's cosine and sine against 2π/m times the sum mod m of tokens 0 … m-1."""
    tokens = _tokens(seed, order, length)
    # within half a turn to either side: phases stay near 0, where float64 is finest
    found = tracked(tokens, [math.remainder(math.tau * a / order, math.tau) for a in range(order)])
    residue = 2 * math.pi * (tokens.cumsum(0) % order).double() / order
    return distance(found, torch.stack([residue.cos(), residue.sin()], dim=-1))


def group_claims(seed: int, length: int, *, turn: float = math.pi) -> list[claims.Claim]:
    error, wrong = parity(seed, length, turn=turn)
    narrow, _ = parity(seed, FLOAT32_BITS, turn=turn, dtype=torch.float32)
    by_mixer = f"the same for {FLOAT32_BITS} bits by a mixer in float32, whose phases are summed in float64"
    bits = _tokens(seed, 2, FLOAT32_BITS).numpy()
    phase = np.cumsum(np.float32(math.pi) * bits.astype(np.float32), dtype=np.float32)  # torch would sum in float64
    # roundings of the turns add up, to 0.017 at 4096 bits
    summed = float(np.abs(np.cos(phase.astype(np.float64)) - np.cos(math.pi * np.cumsum(bits))).max())
    residues = {order: cyclic(seed, order, length) for order in (3, 5)}
    words = (torch.tensor(word, dtype=torch.long, device="cpu") for word in ((0, 1, 2), (0, 2, 1)))
    ab, ba = (tracked(word, [0.0, math.pi, 2 * math.pi / 3])[-1] for word in words)
    return [
        claims.at_most("parity", f"parity of {length} bits by turns of π: largest error of ±1", error, EXACT),
        claims.at_most("parity signs", "the same: share of wrong signs", wrong, 0.0),
        claims.at_most("parity float32", by_mixer, narrow, 1e-4),
        claims.near("parity sum float32", "the same by a running sum of float32 turns", summed, 1e-4, 1e-4),
        *(
            claims.at_most(f"Z{order}", f"sums mod {order} by turns of 2πa/{order}: largest error", residue, EXACT)
            for order, residue in residues.items()
        ),
        claims.at_most("S3", "one plane cannot tell ab from ba, which in S3 differ: difference", distance(ab, ba), EXACT),
    ]
