"""Tensor parallelism by PyTorch's own engine: `parallelize_module(model, mesh, tensor_plan(model))`."""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from maclaurin.distributed.heads import split_heads
from maclaurin.mixers.base import Mixer

MLP: dict[str, type[ParallelStyle]] = {
    "gate_proj": ColwiseParallel,
    "up_proj": ColwiseParallel,
    "down_proj": RowwiseParallel,
}


class SplitHeads(ParallelStyle):
    """A mixer whose heads are split over the mesh; one that cannot be split is refused."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not isinstance(module, Mixer):
            raise TypeError(f"SplitHeads is for mixers, got a module of the type {type(module).__name__}")
        return split_heads(module, device_mesh)


def tensor_plan(model: nn.Module) -> dict[str, ParallelStyle]:
    """A plan for a language model: heads of mixers, channels of MLPs, words of the embedding and of the head.

    Mixers without heads that could be split stay whole, on all processes. Embeddings that are tied stay whole as well.
    """
    mixers = {name: module for name, module in model.named_modules() if isinstance(module, Mixer)}
    split = [name for name, mixer in mixers.items() if mixer.whole_because is None]
    check_splits(list(mixers.values()))
    plan: dict[str, ParallelStyle] = {name: SplitHeads() for name in split}
    tied = getattr(getattr(model, "config", None), "tie_word_embeddings", False)
    for name, module in model.named_modules():
        owner, _, last = name.rpartition(".")
        if last in MLP and owner.endswith("mlp"):
            plan[name] = MLP[last]()
        elif last == "embed_tokens" and isinstance(module, nn.Embedding) and not tied:
            plan[name] = RowwiseParallel(input_layouts=Replicate())
        elif last == "lm_head" and not tied:
            plan[name] = ColwiseParallel(output_layouts=Replicate())
    return plan


def check_splits(mixers: list[Mixer]) -> None:
    """Refuses models whose mixers would all stay whole: nothing would be gained."""
    if all(mixer.whole_because is not None for mixer in mixers):
        reasons = {mixer.kind: mixer.whole_because for mixer in mixers}
        said = "; ".join(f"{kind}: {why}" for kind, why in reasons.items()) or "it has none"
        raise ValueError(
            f"tensor parallelism would split no mixer of this model ({said}); shard its parameters instead (FSDP2)"
        )
