"""What a mixer's own code makes of two queries: its heads' outputs for the last token, with keys and values given.

Norms, gates and decays take part, so this asks what the model can tell apart, not only the weights.
"""

# B two queries, T tokens, C channels

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from maclaurin.mixers import build_mixer
from maclaurin.mixers.projected import ProjectedMixer
from maclaurin.mixers.registry import mixer_entry

# p -> the query that a collision is asked for
PAIRS: dict[str, Callable[[Tensor], Tensor]] = {
    "a ray, q and 3q": lambda p: 3 * p,
    "a sign, q and −q": lambda p: -p,
    "another, q and q'": lambda p: p.roll(1, dims=-1),
}
NEGATIVE = "all negative, q and 2q"


def told_apart(name: str, *, seed: int = 0, dim: int = 8, tokens: int = 50) -> dict[str, float] | None:
    """By pair of queries, the relative change of a fresh mixer's heads; None for a mixer without queries and keys.

    One head, in float64, without rotary positions and convolution, which would only change which queries these are.
    """
    entry = mixer_entry(name)
    if not issubclass(entry.mixer, ProjectedMixer):
        return None
    known = entry.options()
    plain: dict[str, Any] = {"rotary": "none", "conv_width": 0, "activation": "identity", "key_dim": dim}
    torch.manual_seed(seed)
    mixer = build_mixer(name, dim, 1, **{option: value for option, value in plain.items() if option in known}).double()
    assert isinstance(mixer, ProjectedMixer)
    changes = {pair: output_change(mixer, other, seed, tokens) for pair, other in PAIRS.items()}
    return changes | {NEGATIVE: output_change(mixer, lambda p: 2 * p, seed, tokens, negative=True)}


@torch.no_grad()
def output_change(
    mixer: ProjectedMixer, other: Callable[[Tensor], Tensor], seed: int, tokens: int, *, negative: bool = False
) -> float:
    """|y(p) − y(other(p))| / |y(p)| of the heads at the last token, p a random query, with negative=True below zero."""
    generator = torch.Generator().manual_seed(seed)
    size = mixer.num_heads * mixer.key_dim
    query = torch.randn(size, generator=generator, dtype=torch.float64, device="cpu")
    query = -query.abs() if negative else query
    qkv_1TC = torch.randn(1, tokens, sum(mixer.qkv_sizes), generator=generator, dtype=torch.float64, device="cpu")
    qkv_BTC = qkv_1TC.repeat(2, 1, 1)
    qkv_BTC[0, -1, :size], qkv_BTC[1, -1, :size] = query, other(query)
    x_1TD = torch.randn(1, tokens, mixer.d_model, generator=generator, dtype=torch.float64, device="cpu")
    y_BTC = heads_output(mixer, x_1TD.repeat(2, 1, 1), qkv_BTC)
    first, second = y_BTC[:, -1]
    return ((first - second).norm() / first.norm().clamp(min=1e-300)).item()


def heads_output(mixer: ProjectedMixer, x_BTD: Tensor, qkv_BTC: Tensor) -> Tensor:
    """What the heads say (B, T, inner_dim), before the last projection, if queries, keys and values were these."""
    found: list[Tensor] = []

    def given(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return qkv_BTC

    def keep(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        found.append(args[0])

    hooks = (mixer.qkv_proj.register_forward_hook(given), mixer.out_proj.register_forward_pre_hook(keep))
    try:
        mixer(x_BTD, return_state=False)
    finally:
        for hook in hooks:
            hook.remove()
    return found[0]
