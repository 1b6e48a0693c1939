"""Feature maps: x (B, T, H, key_dim) -> φ(x) (B, T, H, num_features), one map for all heads, queries and keys.

Linear attention weighs token s at t by φ(q_t)·φ(k_s). The maps of `features` have no parameters and keep the size of the
key; they are options of the mixers `linear` and `inline`. The others choose their size; LUNA's is in `luna.py`.

    hedgehog    φ(x) = softmax([2u, −2u]),  u = W x + b,  initially W = I and b = 0
    t2r         φ(x) = relu(W x + b);  with elu + 1 in place of relu: `EluMap`
    performer   φ(x) = exp(w_i·x' − |x'|²/2)/√m,  x' = x/d^(1/4),  w_i ~ N(0, I) and fixed:  E φ(x)·φ(y) = exp(x·y/√d)

Weights are parameters, not `nn.Linear`, so that `init="llama"` does not overwrite the initial values of a map.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maclaurin.common.arguments import at_least, at_least_one
from maclaurin.ops.arithmetic import wide, without_autocast

# exponential features lie below exp(LIMIT), Performer's also above exp(−LIMIT): then no sum, quotient or gradient of them
# leaves the range of float32
LIMIT = 30.0


def features(x: Tensor, feature_map: str) -> Tensor:
    """φ(x) of a map without parameters, by its name."""
    match feature_map:
        case "relu":
            return F.relu(x)
        case "leaky-relu":
            return F.leaky_relu(x)
        case "silu":
            return F.silu(x)
        case "elu":
            return F.elu(x) + 1
        case "exp":
            return (0.2 * wide(x)).clamp(max=LIMIT).exp()
        case "cosine":
            return F.normalize(wide(x), dim=-1).to(x.dtype)
    return x


class FeatureMap(nn.Module, ABC):
    """Features are float32 at least."""

    def __init__(self, key_dim: int, num_features: int) -> None:
        super().__init__()
        at_least_one("key_dim", key_dim)
        at_least_one("num_features", num_features)
        self.key_dim = key_dim
        self.num_features = num_features

    @abstractmethod
    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """φ(x). lengths (B,): how many tokens of each sequence are real, for a map that looks at more than one token."""

    def of_queries(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """φ(x) up to a positive factor per query, which dividing by the sum of the weights cancels."""
        features: Tensor = self(x, lengths)
        return features


class HedgehogMap(FeatureMap):
    """The first rows of W start as those of the identity; further rows as random orthogonal directions."""

    def __init__(self, key_dim: int, num_features: int) -> None:
        super().__init__(key_dim, num_features)
        if num_features % 2:
            raise ValueError(f"num_features must be even, one for u and one for −u, got {num_features}")
        rows = num_features // 2
        further = orthogonal_rows(max(rows - key_dim, 0), key_dim)
        self.weight = nn.Parameter(torch.cat([torch.eye(min(rows, key_dim), key_dim), further]))
        self.bias = nn.Parameter(torch.zeros(rows))

    @without_autocast
    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        u = 2 * F.linear(*in_float32(x, self.weight, self.bias))
        return torch.cat([u, -u], dim=-1).softmax(-1)


class T2RMap(FeatureMap):
    activation: ClassVar[str] = "relu"

    def __init__(self, key_dim: int, num_features: int) -> None:
        super().__init__(key_dim, num_features)
        bound = key_dim**-0.5  # as nn.Linear
        self.weight = nn.Parameter(torch.empty(num_features, key_dim).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_features).uniform_(-bound, bound))

    @without_autocast
    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return features(F.linear(*in_float32(x, self.weight, self.bias)), self.activation)


class EluMap(T2RMap):
    """As T2R's, but smooth and never zero."""

    activation = "elu"


class PerformerMap(FeatureMap):
    """Positive orthogonal random features: w_i are orthogonal in blocks of key_dim, their lengths those of Gaussian vectors.

    Subtracting the largest exponent of all keys, as the authors do, would let a token see later ones. Instead, exponents
    of keys are clamped, the largest exponent of each query is subtracted, and nothing is added to a feature.
    """

    def __init__(self, key_dim: int, num_features: int, *, seed: int = 0) -> None:
        super().__init__(key_dim, num_features)
        at_least(0, "seed", seed)
        generator = torch.Generator().manual_seed(seed)
        gaussian = torch.randn(num_features, key_dim, generator=generator, dtype=torch.float32, device="cpu")
        lengths = gaussian.norm(dim=-1, keepdim=True).to(torch.get_default_dtype())
        self.register_buffer("weight", lengths * orthogonal_rows(num_features, key_dim, generator))
        self.weight: Tensor

    @without_autocast
    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        x = scaled(x)
        exponent = self._projected(x) - (x.square().sum(-1, keepdim=True) + math.log(self.num_features)) / 2
        return exponent.clamp(-LIMIT, LIMIT).exp()

    @without_autocast
    def of_queries(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        exponent = self._projected(scaled(x))
        largest = exponent.detach().amax(-1, keepdim=True)
        return (exponent - largest).exp()

    def _projected(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype))


def scaled(x: Tensor) -> Tensor:
    """x/d^(1/4): applied to query and key, it scales their score by 1/√d."""
    return wide(x) / math.sqrt(math.sqrt(x.shape[-1]))


def in_float32(*tensors: Tensor) -> tuple[Tensor, ...]:
    """All in the dtype of the first, or in float32 if that is less."""
    dtype = torch.promote_types(tensors[0].dtype, torch.float32)
    return tuple(tensor.to(dtype) for tensor in tensors)


def orthogonal_rows(count: int, dim: int, generator: torch.Generator | None = None) -> Tensor:
    """(count, dim) directions, uniform on the sphere and orthogonal to each other in blocks of `dim`."""
    device = torch.get_default_device() if generator is None else generator.device
    blocks = torch.randn(-(-count // dim), dim, dim, generator=generator, dtype=torch.float32, device=device)
    q, r = torch.linalg.qr(blocks)
    directions: Tensor = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]  # without the signs q would not be uniform
    return directions.flatten(0, 1)[:count].to(torch.get_default_dtype())
