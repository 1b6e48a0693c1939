"""Recurrent states as the kernels hold them, and as `PowerState` does: pairs of 16-channel blocks, and packed monomials.

A packed state (B,G,F,W) sums √2-weighted monomials of the scaled keys (`symmetric_power`); the kernels sum plain squares of
unscaled keys, in pairs (B,G,pairs,256,V), and their Gram matrix (B,G,K,K) in place of the column that counts.
"""

# B batch, G key-value heads, K key channels (D padded), V value channels, W = V or V+1, F = K(K+1)/2

from __future__ import annotations

import torch
from torch import Tensor

from maclaurin.ops.features import remembered

TILE = 16


def pairs(D: int) -> int:
    return (D // TILE) * (D // TILE + 1) // 2


@remembered
def _places(K: int, D: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For every packed feature (p, r), p <= r: its place among the pairs of blocks, that of (r, p), and both channels."""
    p, r = torch.triu_indices(K, K, device=device, dtype=torch.long)
    low, high = p // TILE, r // TILE
    pair = low * (D // TILE) - low * (low - 1) // 2 + high - low
    place = pair * TILE**2 + p % TILE * TILE + r % TILE
    mirror = torch.where(low == high, pair * TILE**2 + r % TILE * TILE + p % TILE, place)
    return place, mirror, p, r


@remembered
def channels(K: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The two channels of every packed feature, for the kernel that reads them one by one."""
    first, second = torch.triu_indices(K, K, device=device, dtype=torch.long).to(torch.int16)
    return first, second


@remembered
def diagonal(K: int, device: torch.device) -> Tensor:
    """Which packed features are squares of one channel."""
    p = torch.arange(K, device=device, dtype=torch.long)
    return p * K - p * (p - 1) // 2


@remembered
def _roots(K: int, device: torch.device) -> Tensor:
    """(F,1): √2 where a product stands for two."""
    p, r = torch.triu_indices(K, K, device=device, dtype=torch.long)
    return torch.where(p == r, 1.0, 2.0**0.5)[:, None]


def plain_of(recurrent: Tensor, K: int, scale: float) -> Tensor:
    """(B,G,F,W) as sums over unscaled keys, every product once."""
    return recurrent.float() / (_roots(K, recurrent.device) * (scale**2 or 1.0))


def packed_of(plain: Tensor, K: int, scale: float) -> Tensor:
    return plain * (_roots(K, plain.device) * scale**2)


def plain_of_gradient(gradient: Tensor, K: int, scale: float) -> Tensor:
    """The gradient by a full square, in which every product off the diagonal stands twice."""
    return gradient.float() / _roots(K, gradient.device) * scale**2


def packed_of_gradient(plain: Tensor, K: int, scale: float) -> Tensor:
    return plain * (_roots(K, plain.device) / (scale**2 or 1.0))


def in_pairs(plain: Tensor, K: int, D: int) -> Tensor:
    """(B,G,F,V) -> (B,G,pairs,256,V)"""
    place, mirror, _, _ = _places(K, D, plain.device)
    state = plain.new_zeros(*plain.shape[:2], pairs(D) * TILE**2, plain.shape[3])
    state[:, :, place] = plain
    state[:, :, mirror] = plain
    return state.view(*plain.shape[:2], pairs(D), TILE**2, plain.shape[3])


def of_pairs(state: Tensor, K: int, D: int) -> Tensor:
    return state.flatten(2, 3)[:, :, _places(K, D, state.device)[0]]


def square(plain: Tensor, K: int, D: int) -> Tensor:
    """(B,G,F,W) -> (B,G,D,D,W)"""
    _, _, p, r = _places(K, D, plain.device)
    full = plain.new_zeros(*plain.shape[:2], D, D, plain.shape[3])
    full[:, :, p, r] = plain
    full[:, :, r, p] = plain
    return full


def of_square(full: Tensor, K: int) -> Tensor:
    """(B,G,D,D,W) -> (B,G,F,W)"""
    _, _, p, r = _places(K, full.shape[2], full.device)
    return full[:, :, p, r]


def with_mean(plain: Tensor, mean: Tensor, first: Tensor, zeroth: Tensor, K: int) -> Tensor:
    """Σ k kᵀ ⊗ w from sums over k̃ = k - μ: plain (B,G,F,W), first = Σ k̃ ⊗ w (B,G,D,W), zeroth = Σ w (B,G,W)."""
    _, _, p, r = _places(K, mean.shape[2], plain.device)
    at_p, at_r = mean[:, :, p, None], mean[:, :, r, None]
    return plain + at_p * first[:, :, r] + at_r * first[:, :, p] + at_p * at_r * zeroth[:, :, None]


def without_mean(plain: Tensor, mean: Tensor, K: int) -> tuple[Tensor, Tensor, Tensor]:
    """What `with_mean` puts together, for a state whose tokens are not known: the direction of μ is projected out."""
    full = square(plain, K, mean.shape[2])
    length = mean.square().sum(2, keepdim=True).clamp(min=torch.finfo(mean.dtype).tiny)
    along = torch.einsum("bgprw,bgr->bgpw", full, mean) / length[..., None]
    zeroth = torch.einsum("bgpw,bgp->bgw", along, mean) / length
    first = along - mean[..., None] * zeroth[:, :, None]
    return with_mean(plain, mean, -first, -zeroth, K), first, zeroth
