"""A rotation is a truncated Fourier analysis, and a decay is its window.

The response to a wave that is off the frequency of a plane by δ, over T tokens: |Σ_{r<T} γ^r e^{iδr}|. Without a decay it
depends on where it is cut off, and has side lobes 2π/T apart; a decay removes both and raises the level far from the peak.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from maclaurin.lab import claims
from maclaurin.lab.claims import Claim

DECAYS = (1.0, 0.99, 0.97, 0.95)
LENGTH, SHORTEST = 256, 200
LOBES = (0.2, 2.0)  # δ that are looked at: away from the peak, and from half a turn, where all is flat
FAR = 0.31


def response(offset: Tensor, length: Tensor, decay: float) -> Tensor:
    """|Σ_{r<T} γ^r e^{iδr}| = |1 − γ^T e^{iδT}| / |1 − γ e^{iδ}|."""
    ratio = torch.polar(torch.full_like(offset, decay), offset)
    end = torch.polar(decay**length * torch.ones_like(offset), offset * length)
    return (1 - end).abs() / (1 - ratio).abs()


def spread(decay: float) -> float:
    """(largest − smallest) / mean of the response over the lengths 200 to 256; the mean of that over δ between LOBES."""
    lengths = torch.arange(SHORTEST, LENGTH + 1, dtype=torch.float64, device="cpu")
    offset = torch.linspace(*LOBES, 1001, dtype=torch.float64, device="cpu")[:, None].expand(-1, len(lengths))
    found = response(offset, lengths, decay)
    return ((found.amax(1) - found.amin(1)) / found.mean(1)).mean().item()


def lobes(decay: float) -> int:
    """Local maxima of the response between the ends of LOBES."""
    offset = torch.linspace(*LOBES, 200_001, dtype=torch.float64, device="cpu")
    found = response(offset, torch.tensor(float(LENGTH), dtype=torch.float64, device="cpu"), decay)
    return int(((found[1:-1] > found[:-2]) & (found[1:-1] > found[2:])).sum())


def level(decay: float, far: float = FAR) -> float:
    """The largest response within a lobe of δ = `far`, in dB of the peak."""
    offset = torch.linspace(far - math.pi / LENGTH, far + math.pi / LENGTH, 2001, dtype=torch.float64, device="cpu")
    length = torch.tensor(float(LENGTH), dtype=torch.float64, device="cpu")
    peak = LENGTH if decay == 1 else (1 - decay**LENGTH) / (1 - decay)
    return 20 * math.log10(response(offset, length, decay).max().item() / peak)


def ripple_claims(decays: Sequence[float] = DECAYS) -> list[Claim]:
    """decays: what stands for γ = 1, .99, .97 and .95."""
    none, weak, some, strong = decays
    expected = (LOBES[1] - LOBES[0]) * LENGTH / (2 * math.pi)
    return [
        claims.near(
            "truncation 1", "γ = 1: spread of the response over T = 200 to 256, mean over δ", spread(none), 1.52, 0.02
        ),
        claims.near("truncation .99", "γ = .99: the same", spread(weak), 0.25, 0.005),
        claims.near("truncation .97", "γ = .97: the same", spread(some), 0.004, 0.0005),
        claims.near("lobes 1", "γ = 1: side lobes for δ from 0.2 to 2, one every 2π/T", lobes(none), expected, 1.0),
        claims.near("lobes .99", "γ = .99: the same", lobes(weak), expected, 1.0),
        claims.at_most("lobes .97", "γ = .97: the same", lobes(some), 0),
        claims.at_most("lobes .95", "γ = .95: the same", lobes(strong), 0),
        claims.near("level 1", "γ = 1: level at δ = 0.31, dB", level(none), -32.0, 1.0),
        claims.near("level .95", "γ = .95: the same, higher", level(strong), -16.0, 1.0),
    ]
