"""What turning queries and keys is: a complex recurrence, in which only relative phases matter if decays come in pairs.

    Z_t = α_t e^{iθ_t} Z_{t-1} + conj(k_t) v_tᵀ,   y_t = Re(q_t Z_t)        a pair of channels (j, j+R) is a complex number

All in float64, on the op and on the mixers that users have.
"""

# T time, K channels, R = K/2 planes, V value channels

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from maclaurin.lab import claims
from maclaurin.lab.claims import Claim
from maclaurin.mixers import build_mixer
from maclaurin.mixers.selective_rope import SelectiveRotary
from maclaurin.ops import linear_attention, rotary, rotate

EXACT = 1e-12


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
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")

        q, k, v, increment = (
            normal(length, 2 * planes),
            normal(length, 2 * planes),
            normal(length, 8),
            normal(length, planes),
        )
        decay = torch.nn.functional.logsigmoid(normal(length, 2 * planes)) / 16  # as GLA has it
        return cls(q, k, v, increment, decay[:, :planes].repeat(1, 2) if tied else decay)

    def rotated(self, start: float = 0.0) -> Tensor:
        """Rotate, then gated linear attention; `start` is added to all phases."""
        angles_1T1R = (self.increment_TR.cumsum(0) + start)[None, :, None]
        q, k = (rotate(x[None, :, None], angles_1T1R) for x in (self.q_TK, self.k_TK))
        y, _ = linear_attention(
            q,
            k,
            self.v_TV[None, :, None],
            self.log_decay_TK[None, :, None],
            scale=1.0,
            normalize=False,
            form="parallel",
            return_state=False,
        )
        return y[0, :, 0]

    def complex_recurrence(self) -> Tensor:
        q_TR, k_TR = (torch.complex(*x.chunk(2, dim=-1)) for x in (self.q_TK, self.k_TK))
        planes = q_TR.shape[1]
        # conj(k) is turned the other way: the recurrence carries the phase from a key to the query
        turn_TR = torch.polar(self.log_decay_TK[:, :planes].exp(), self.increment_TR)
        memory_RV = torch.zeros(planes, self.v_TV.shape[1], dtype=torch.complex128, device="cpu")
        outputs = []
        for q_R, k_R, v_V, turn_R in zip(q_TR, k_TR, self.v_TV, turn_TR, strict=True):
            memory_RV = turn_R[:, None] * memory_RV + k_R.conj()[:, None] * v_V
            outputs.append((q_R @ memory_RV).real)
        return torch.stack(outputs)


def complex_form(seed: int, *, tied: bool = True) -> Claim:
    turned = Turned.of(seed, tied=tied)
    error = (turned.rotated() - turned.complex_recurrence()).abs().max().item()
    return claims.at_most(
        "complex", "rotate, then GLA = the complex recurrence, decays in pairs, largest error", error, EXACT
    )


def relative_phase(seed: int) -> list[Claim]:
    def change(tied: bool) -> float:
        turned = Turned.of(seed, tied=tied)
        y = turned.rotated()
        return ((turned.rotated(1.0) - y).norm() / y.norm()).item()

    return [
        claims.at_most("relative", "one angle added to all phases, decays in pairs: relative change", change(True), EXACT),
        claims.between("relative, untied", "the same with a decay a channel, as GLA has it", change(False), 0.03, 0.15),
    ]


def as_rope(seed: int, *, speed: float = 1.0) -> list[Claim]:
    """The selective rotary of the mixers with increments of `speed`: 1 is RoPE."""
    torch.manual_seed(seed)
    planes, length = 16, 100
    turning = SelectiveRotary(8, 1, planes, increments="linear", gate="none", bias=True, theta=10000.0).double()
    with torch.no_grad():
        assert turning.conv is not None and turning.bias is not None
        turning.conv.weight.zero_()
        turning.bias.fill_(math.log(speed))
        angles, _ = turning(torch.randn(1, length, 8, dtype=torch.float64, device="cpu"), None, "auto", None)
    q, k = torch.randn(2, 1, length, 1, 2 * planes, dtype=torch.float64, device="cpu")
    selective = _scores(rotate(q, angles), rotate(k, angles))
    positions = torch.arange(length, dtype=torch.long, device="cpu")
    rope = _scores(rotary(q, positions), rotary(k, positions))
    lengths = (rotate(q, angles).norm(dim=-1) - q.norm(dim=-1)).abs().max().item()
    return [
        claims.at_most(
            "rope", "increments of 1 give the scores of RoPE, largest error", (selective - rope).abs().max().item(), EXACT
        ),
        claims.at_most("norm", "a rotation keeps lengths, largest error", lengths, EXACT),
    ]


def _scores(q_1THK: Tensor, k_1THK: Tensor) -> Tensor:
    return torch.einsum("bthk,bshk->bts", q_1THK, k_1THK)


@torch.no_grad()
def stepwise(name: str, dtype: torch.dtype, seed: int) -> float:
    """The relative error of decoding token by token behind a prefill in two pieces, against one pass."""
    torch.manual_seed(seed)
    mixer = build_mixer(name, 32, 2, rotary="selective").to(dtype)
    x = torch.randn(2, 48, 32, dtype=torch.float32, device="cpu").to(dtype)
    whole, _ = mixer(x)
    pieces, state = [], None
    for piece in (x[:, :17], x[:, 17:32], *x[:, 32:].split(1, dim=1)):
        y, state = mixer(piece, state)
        pieces.append(y)
    return ((torch.cat(pieces, dim=1) - whole).double().norm() / whole.double().norm()).item()


def decoding(seed: int) -> list[Claim]:
    names = ("linear", "gla", "softmax", "fox")
    narrow = max(stepwise(name, torch.float32, seed) for name in names)
    bfloat = max(stepwise(name, torch.bfloat16, seed) for name in names)
    text = "token by token behind a prefill in two pieces = one pass, relative error, worst of " + ", ".join(names)
    return [
        claims.at_most("decode float32", f"{text}", narrow, 1e-5),
        claims.at_most("decode bfloat16", "the same in bfloat16", bfloat, 2e-3),
    ]
