"""In-context regression: a linear function from examples in the prompt."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from maclaurin.common.arguments import at_least_one
from maclaurin.data.tasks.base import Labelled, Task
from maclaurin.data.tasks.registry import register

# N examples, L examples in a prompt, D dimensions


@dataclass(frozen=True)
class Regression(Task[Labelled]):
    """Noisy in-context linear regression (Boursier and Boyer, arXiv 2512.11784, section 6; Garg et al., arXiv 2208.01066).

    Each example has weights w ~ N(0, prior·I) of its own; its prompt is L tokens (x, y), x ~ N(0, Σ) with Σ_ij =
    correlation^|i-j| and y = w·x + ε, ε ~ N(0, noise), and a query token (x_q, 0) from the same law. The label is the
    noisy y_q, so that no prediction has a mean square below `noise`. Inputs are (N, L+1, D+1). Published: 5 dimensions,
    prior 1/D, noise 0.1, correlation 0.5, prompts of 10 to 1000.

    The authors' code as published draws prompts with covariance RRRᵀRᵀ, where RRᵀ = Σ, and queries with covariance I:
    `as_published` does the same.
    """

    length: int = 100
    dimensions: int = 5
    noise: float = 0.1
    correlation: float = 0.5
    prior: float | None = None  # 1/dimensions
    as_published: bool = False

    def __post_init__(self) -> None:
        at_least_one("length", self.length)
        at_least_one("dimensions", self.dimensions)
        if not self.noise >= 0:
            raise ValueError(f"noise is a variance and must be at least 0, got {self.noise}")
        if not -1 < self.correlation < 1:
            raise ValueError(f"correlation must be between -1 and 1, got {self.correlation}")
        if self.prior is not None and not self.prior > 0:
            raise ValueError(f"prior is a variance and must be above 0, or None for 1/dimensions, got {self.prior}")

    @property
    def vocab_size(self) -> int:
        return 0

    def covariance(self) -> torch.Tensor:
        """Σ (D, D), float64."""
        index = torch.arange(self.dimensions, dtype=torch.long, device="cpu")
        return self.correlation ** (index - index[:, None]).abs().double()

    def draw(self, count: int, rng: np.random.Generator) -> Labelled:
        root_DD = np.linalg.cholesky(self.covariance().numpy())
        prior = 1 / self.dimensions if self.prior is None else self.prior
        weights_ND1 = math.sqrt(prior) * rng.standard_normal((count, self.dimensions, 1))
        x_NLD = rng.standard_normal((count, self.length + 1, self.dimensions))
        noise_NL = math.sqrt(self.noise) * rng.standard_normal((count, self.length + 1))
        if self.as_published:
            x_NLD[:, :-1] = x_NLD[:, :-1] @ (root_DD @ root_DD).T
        else:
            x_NLD = x_NLD @ root_DD.T
        y_NL = (x_NLD @ weights_ND1)[..., 0] + noise_NL
        prompt_NLD = np.concatenate([x_NLD, y_NL[..., None]], axis=2)
        prompt_NLD[:, -1, -1] = 0
        return Labelled(torch.from_numpy(prompt_NLD).float(), torch.from_numpy(y_NL[:, -1]).float())


register("regression", Regression, "a noisy linear function from examples in the prompt")
