"""A linear time-varying system: h_t = Λ_t h_{t-1} + B_t u_t,  y_t = C_t h_t + D_t u_t,  h before the first token 0.

All mixers have the same structure inside: H heads, each with N states per value channel, and the V channels of a head
differ in nothing but what they store. So Λ, B and C are Kronecker products with the identity; their factors are kept:

    S_t = A_t S_{t-1} + b_t u_tᵀ        y_t = S_tᵀ c_t + d_t ⊙ u_t        S (N, V) per head, A diagonal or full

`matrices()` writes the products out, with the N states of a channel next to each other.

Sieber et al.: Understanding the Differences in Foundation Models (DSF), arXiv 2405.15731.
"""

# T time, H heads, N states per value channel, V value channels per head, U = H·V channels in all, M = U·N states in all

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from maclaurin.lab.experiments.draws import block_ranks


class UnknownSystemError(ValueError):
    """Of a mixer that has not been written as a system here, such as one that somebody has just added."""


@dataclass(frozen=True)
class System:
    """inputs: the u of the sequence it was made from. order: where a series was cut off, None if the system is exact.

    readout: what the mixer does behind it, token by token (norm, gate, output matrix): (T,H,V) -> (1,T,d_model).
    """

    transition: Tensor  # (T,H,N), or (T,H,N,N) where it is not diagonal
    write: Tensor  # (T,H,N)
    read: Tensor  # (T,H,N)
    inputs: Tensor  # (T,H,V)
    readout: Callable[[Tensor], Tensor] = lambda y_THV: y_THV
    skip: Tensor | None = None  # (T,H,V), the diagonal of D
    order: int | None = None

    @property
    def diagonal(self) -> bool:
        return self.transition.dim() == 3

    @property
    def states(self) -> int:
        """n, per value channel: the state expansion."""
        return self.write.shape[2]

    def run(self, inputs_THV: Tensor | None = None) -> Tensor:
        """The recurrence: y (T,H,V)."""
        u_THV = self.inputs if inputs_THV is None else inputs_THV
        y_THV = self._states_read(u_THV)
        return y_THV if self.skip is None else y_THV + self.skip * u_THV

    def output(self) -> Tensor:
        """What the mixer gives for the same sequence, (1,T,d_model)."""
        return self.readout(self.run())

    def weights(self) -> Tensor:
        """(H,T,T): how much of u_s is in y_t, the map that stands for attention. D is not in it."""
        T, H = self.write.shape[:2]
        one_hot_THT = torch.eye(T, dtype=self.write.dtype, device="cpu")[:, None].expand(T, H, T)
        return self._states_read(one_hot_THT).transpose(0, 1)

    def kernel(self) -> Tensor:
        """Φ (T,T,U,U), block lower triangular: y_t = Σ_s Φ_ts u_s,  Φ_ts = C_t Λ_t…Λ_{s+1} B_s, and D_t on the diagonal."""
        Lambda, B_TMU, C_TUM, D_TUU = self.matrices()
        reached_TMU = torch.zeros_like(B_TMU)  # Λ_t…Λ_{s+1} B_s of every s so far
        rows = []
        for t in range(B_TMU.shape[0]):
            step = Lambda[t]
            reached_TMU[:t] = step[:, None] * reached_TMU[:t] if self.diagonal else step @ reached_TMU[:t]
            reached_TMU[t] = B_TMU[t]
            row_TUU = C_TUM[t] @ reached_TMU
            row_TUU[t] += D_TUU[t]
            rows.append(row_TUU)
        return torch.stack(rows)

    def eigenvalues(self) -> Tensor:
        """(T,H,N): those of Λ_t, each of them V times; complex only where some of them are."""
        if self.diagonal:
            return self.transition
        values = torch.linalg.eigvals(self.transition)
        return values.real if bool((values.imag.abs() <= 1e-12).all()) else values

    def histogram(self, edges: Sequence[float]) -> list[float]:
        """What share of all eigenvalues has its modulus in each of the bins; they need not be all of them."""
        moduli = self.eigenvalues().abs().flatten()
        counts = torch.histogram(moduli, torch.tensor(edges, dtype=moduli.dtype, device="cpu")).hist
        return [float(share) for share in counts / moduli.numel()]

    def block_rank(self) -> list[int]:
        return block_ranks(self.weights())

    def matrices(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Λ (T,M), or (T,M,M) where it is not diagonal, B (T,M,U), C (T,U,M) and D (T,U,U)."""
        V = self.inputs.shape[2]
        skip_THV = torch.zeros_like(self.inputs) if self.skip is None else self.skip.expand_as(self.inputs)
        if self.diagonal:
            Lambda = self.transition.repeat_interleave(V, dim=1).flatten(1)
        else:
            Lambda = torch.stack([torch.block_diag(*blocks.repeat_interleave(V, dim=0)) for blocks in self.transition])
        B_TMU = self._of_all_channels(self.write).transpose(1, 2)
        return Lambda, B_TMU, self._of_all_channels(self.read), torch.diag_embed(skip_THV.flatten(1))

    def _of_all_channels(self, vector_THN: Tensor) -> Tensor:
        """I ⊗ vectorᵀ, each head's vector at all of its channels: (T,U,M)."""
        rows_TUN = vector_THN.repeat_interleave(self.inputs.shape[2], dim=1)
        eye_UU = torch.eye(rows_TUN.shape[1], dtype=rows_TUN.dtype, device="cpu")
        return torch.einsum("tun,uw->tuwn", rows_TUN, eye_UU).flatten(2)

    def _states_read(self, u_THV: Tensor) -> Tensor:
        S_HNV = u_THV.new_zeros(*self.write.shape[1:], u_THV.shape[2])
        rows = []
        for A, b_HN, c_HN, u_HV in zip(self.transition, self.write, self.read, u_THV, strict=True):
            S_HNV = (A[..., None] * S_HNV if self.diagonal else A @ S_HNV) + b_HN[..., None] * u_HV[:, None]
            rows.append(torch.einsum("hn,hnv->hv", c_HN, S_HNV))
        return torch.stack(rows)
