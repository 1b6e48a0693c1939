"""LUNA's map with other functions in place of its networks: exponentials, waves, and networks that were fitted to waves."""

# K key channels, m projections

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor, nn

from maclaurin.mixers.luna import ChannelBank, LunaMap


class Functions(nn.Module):
    """ψ as given functions of one number."""

    def __init__(self, *functions: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.functions = functions
        self.num_channels = len(functions)

    def forward(self, u: Tensor) -> Tensor:
        return torch.stack([function(u) for function in self.functions], dim=-1)


def gaussian_map(
    key_dim: int, projections: int, channels: nn.Module, generator: Generator, *, envelope: bool = False
) -> LunaMap:
    """W ~ N(0, I) in place of N(0, 1/K), and h(x) = exp(-|x|²/2) with an envelope."""
    with torch.random.fork_rng(devices=[]):  # its own draws are replaced
        made = LunaMap(key_dim, projections, channels, envelope=envelope).double()
    with torch.no_grad():
        made.weight.normal_(generator=generator)
        if made.envelope is not None:
            made.envelope["a"].fill_(1)
    return made


def default_map(key_dim: int, projections: int, num_channels: int, seed: int, *, nonneg: bool = True) -> LunaMap:
    """As a new LUNA layer has it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LunaMap(key_dim, projections, ChannelBank(num_channels, nonneg=nonneg)).double()


@torch.no_grad()
def wave_bank(hidden: int, reach: float) -> tuple[ChannelBank, float]:
    """A network with `hidden` units whose two channels are as near to cosine and sine on [-reach, reach] as least squares
    with evenly spread knots brings them; and the largest error left.
    """
    with torch.random.fork_rng(devices=[]):
        bank = ChannelBank(2, bank="shared", width=hidden, nonneg=False).double()
    grid = torch.linspace(-reach, reach, 4001, dtype=torch.float64, device="cpu")
    step = 2 * reach / hidden
    bank.weight_in.fill_(1)
    bank.bias_in.copy_(-torch.linspace(-reach - step, reach - step, hidden, dtype=torch.float64, device="cpu"))
    units = torch.cat([(grid[:, None] + bank.bias_in).relu(), torch.ones_like(grid)[:, None]], dim=1)
    wanted = torch.stack([grid.cos(), grid.sin()], dim=1)
    solution = torch.linalg.lstsq(units, wanted).solution
    bank.weight_out.copy_(solution[:-1].T)
    bank.bias_out.copy_(solution[-1])
    return bank, (bank(grid) - wanted).abs().max().item()


@torch.no_grad()
def features_of(feature_map: LunaMap, x_PK: Tensor) -> Tensor:
    """φ of points (P, K) -> (P, features), of the points as they are: LUNA's scaling by K^(-1/4) is undone."""
    scaled: Tensor = feature_map((x_PK * x_PK.shape[-1] ** 0.25)[None, :, None])
    return scaled[0, :, 0]
