"""Tensor parallelism of a mixer: its heads are split over the processes of a mesh.

Each process becomes the owner of some heads and of what belongs to them: rows of the projections, states, decays, norms per
head. It is a mixer with fewer heads then, and its kernels see nothing else. What no head owns (a low-rank projection, a
feature map, the one key of grouped heads) is on all processes, and its gradient is the sum of theirs. A norm over all heads
sums its squares over the processes, the output projection its outputs.

A projection to several parts side by side, such as q, k and v, is split part by part. PyTorch has no placement for parts of
different sizes, so that a split parameter is a DTensor in the order of its owners; `state_dict` and `load_state_dict` have
the order of one process. FSDP2 may spread what each owner has over a mesh of processes that have the same heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from maclaurin.distributed.collectives import Group, entering, leaving, within
from maclaurin.mixers.base import Mixer, RMSNorm
from maclaurin.mixers.hgrn2 import HGRN2
from maclaurin.mixers.mamba2 import GroupNorm

OUTPUT = "out_proj"  # where the heads of every mixer meet again
SHARES = "shares"  # what a mixer remembers of its split parameters
OF_THE_MODULE = ("_parameters", "_buffers", "_modules", "kind", "built_with", "training", "bound")


@dataclass(frozen=True)
class Share:
    """Of a parameter whose dimension `dim` has pieces of `whole` entries, each of so many processes has `own` of each piece:
    an equal part, or all of it where both are equal."""

    dim: int
    whole: tuple[int, ...]
    own: tuple[int, ...]
    processes: int

    def of(self, tensor: Tensor, rank: int) -> Tensor:
        pieces = tensor.split(self.whole, self.dim)
        starts = [0 if own == whole else rank * own for own, whole in zip(self.own, self.whole, strict=True)]
        parts = zip(pieces, starts, self.own, strict=True)
        return torch.cat([piece.narrow(self.dim, start, own) for piece, start, own in parts], self.dim)

    def by_owner(self, tensor: Tensor) -> Tensor:
        """What each process has, one behind the other: the order of the DTensor."""
        return torch.cat([self.of(tensor, rank) for rank in range(self.processes)], self.dim)

    def joined(self, by_owner: Tensor) -> Tensor:
        """The order of one process again."""
        owned = by_owner.chunk(self.processes, self.dim)
        by_piece = zip(*(tensor.split(self.own, self.dim) for tensor in owned), self.own, self.whole, strict=True)
        pieces = [of_all[:1] if own == whole else of_all for *of_all, own, whole in by_piece]
        return torch.cat([part for of_all in pieces for part in of_all], self.dim)

    def entered(self, owned: Tensor, group: Group) -> Tensor:
        """Gradients of pieces that all processes have are summed."""
        if all(own != whole for own, whole in zip(self.own, self.whole, strict=True)):
            return owned
        parts = zip(owned.split(self.own, self.dim), self.own, self.whole, strict=True)
        return torch.cat([entering(part, group) if own == whole else part for part, own, whole in parts], self.dim)


def split_heads(mixer: Mixer, mesh: DeviceMesh) -> Mixer:
    """The mixer with the heads of this process of a mesh of one dimension; in place. All processes must call it."""
    if any(isinstance(parameter, DTensor) for parameter in mixer.parameters()):
        raise ValueError(
            f"the heads of the mixer {mixer.kind!r} must be split before its parameters are spread over processes: take "
            "maclaurin.distributed.sharded.shard_and_split where DistributedConfig would have fsdp_size beside tp_size"
        )
    group, rank, size = mesh.get_group(), mesh.get_local_rank(), mesh.size()
    part = mixer.one_part(size)
    shares, before = _shares(mixer, part, size), sum(one.numel() for one in mixer.shapes().tensors().values())
    for name, share in shares.items():
        owner, _, last = name.rpartition(".")
        whole = mixer.get_parameter(name)
        owned = DTensor.from_local(share.of(whole.detach(), rank).contiguous(), mesh, [Shard(share.dim)], run_check=False)
        mixer.get_submodule(owner).register_parameter(last, nn.Parameter(owned, whole.requires_grad))
    for name, module in mixer.named_modules():
        sizes = vars(part.get_submodule(name))
        norm_is_wider = isinstance(module, RMSNorm) and _norm_is_wider(
            module, part.get_submodule(name), f"{name}.weight" in shares
        )
        vars(module).update({key: value for key, value in sizes.items() if key not in OF_THE_MODULE and "hook" not in key})
        if norm_is_wider:
            module.forward = _norm_over_processes(module, group, size)
    if sum(one.numel() for one in part.shapes().tensors().values()) < before:  # or all share one key-value head
        mixer.part = (rank, size)
    output = mixer.get_submodule(OUTPUT)
    output.forward = _summed_output(output, group)
    vars(mixer)["forward"] = _on_own_heads(mixer, shares, group)
    if isinstance(mixer, HGRN2) and mixer.bound is not None:
        mixer.bound = _own_channels(mixer.bound, group, rank, size)
    vars(mixer)[SHARES] = shares
    mixer.register_state_dict_post_hook(_in_the_order_of_one(shares))
    mixer.register_load_state_dict_pre_hook(_in_the_order_of_owners(shares))
    return mixer


def shares_of(model: nn.Module) -> dict[str, Share]:
    """Of the parameters of a model that are split by heads, by name."""
    found = ((name, vars(module).get(SHARES, {})) for name, module in model.named_modules())
    return {f"{owner}.{name}" if owner else name: share for owner, shares in found for name, share in shares.items()}


def spread(tensor: Tensor, like: Tensor, share: Share | None = None) -> Tensor:
    """What every process has whole, as this parameter is; `share` if it is split by heads."""
    if not isinstance(like, DTensor):
        return tensor
    tensor = tensor if share is None else share.by_owner(tensor)
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)


def _shares(mixer: Mixer, part: Mixer, processes: int) -> dict[str, Share]:
    """Of the parameters that differ in size between the whole and a part: what a part has of them."""
    shares = {}
    sizes = {name: parameter.shape for name, parameter in part.named_parameters()}
    for name, parameter in mixer.named_parameters():
        differing = [dim for dim, size in enumerate(parameter.shape) if size != sizes[name][dim]]
        if not differing:
            continue
        (dim,) = differing
        owner = name.rpartition(".")[0]
        whole, own = mixer.fused.get(owner, [parameter.shape[dim]]), part.fused.get(owner, [sizes[name][dim]])
        shares[name] = Share(dim, tuple(whole), tuple(own), processes)
    return shares


def _norm_is_wider(norm: RMSNorm, part: nn.Module, is_split: bool) -> bool:
    """Whether a norm runs over channels of several processes."""
    if not isinstance(norm, GroupNorm):
        return is_split
    assert isinstance(part, GroupNorm)
    return is_split and norm.groups == part.groups


def _norm_over_processes(norm: RMSNorm, group: Group, processes: int) -> Callable[[Tensor], Tensor]:
    if getattr(norm, "groups", 1) != 1:
        raise ValueError("a norm over several groups that all processes share cannot be split: n_groups must be 1")

    def forward(x: Tensor) -> Tensor:
        y = x.to(torch.promote_types(x.dtype, torch.float32))
        squares = within(y.square().sum(-1, keepdim=True), group)
        y = y * torch.rsqrt(squares / (processes * x.shape[-1]) + norm.eps)
        return (y * norm.weight.to(y.dtype)).to(x.dtype)

    return forward


def _summed_output(output: nn.Module, group: Group) -> Callable[[Tensor], Tensor]:
    assert isinstance(output, nn.Linear)

    def forward(x: Tensor) -> Tensor:
        y = leaving(F.linear(x, output.weight), group)
        return y if output.bias is None else y + output.bias

    return forward


def _own_channels(bound: Callable[[], Tensor], group: Group, rank: int, size: int) -> Callable[[], Tensor]:
    """Of what the layers of a model share, which no mixer owns."""
    return lambda: entering(bound(), group).chunk(size)[rank]


def _on_own_heads(mixer: Mixer, shares: dict[str, Share], group: Group) -> Callable[..., Any]:
    def forward(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        with _local_parameters(mixer, shares, group):
            return type(mixer).forward(mixer, entering(x, group), *args, **kwargs)

    return forward


@contextmanager
def _local_parameters(mixer: Mixer, shares: dict[str, Share], group: Group) -> Iterator[None]:
    """Within, every parameter is an ordinary tensor with what this process works with."""
    kept = []
    for prefix, module in mixer.named_modules():
        for last, parameter in module._parameters.items():
            name = f"{prefix}.{last}" if prefix else last
            if parameter is None or name == f"{OUTPUT}.bias":  # added behind the sum, on all processes alike
                continue
            kept.append((module, last, parameter))
            if isinstance(parameter, DTensor):
                module._parameters[last] = shares[name].entered(parameter.to_local(), group)
            else:
                module._parameters[last] = entering(parameter, group)
    try:
        yield
    finally:
        for module, last, parameter in kept:
            module._parameters[last] = parameter


def _in_the_order_of_one(shares: dict[str, Share]) -> Callable[..., None]:
    def hook(mixer: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        for name, share in shares.items():
            value = state.get(prefix + name)
            if isinstance(value, DTensor):
                by_owner: Tensor = value.full_tensor()
                state[prefix + name] = share.joined(by_owner.detach())

    return hook


def _in_the_order_of_owners(shares: dict[str, Share]) -> Callable[..., None]:
    def hook(mixer: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        for name, share in shares.items():
            value = state.get(prefix + name)
            if isinstance(value, Tensor) and not isinstance(value, DTensor):
                state[prefix + name] = spread(value, mixer.get_parameter(name), share)

    return hook
