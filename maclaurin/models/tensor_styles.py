"""What `DistributedConfig(tp_size=N)` of transformers does to a mixer: the style "split_heads" of tensor parallel plans.

transformers makes its plan while the model has no weights yet. A mixer's are read whole and split when they are there.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from maclaurin.distributed.heads import split_heads
from maclaurin.distributed.tensor import check_splits
from maclaurin.mixers.base import Mixer

try:
    from transformers.distributed.parallel_utils import ALL_PARALLEL_STYLES
    from transformers.distributed.tensor_parallel import TensorParallelLayer
except ImportError:  # transformers before 5.21, or PyTorch without torch.distributed
    ALL_PARALLEL_STYLES, TensorParallelLayer = None, object

STYLE = "split_heads"
# of the layers and of the language model's head; none where transformers does not know the style, which it then refuses
PLAN = {
    "layers.*.mixer": STYLE,
    "layers.*.mlp.gate_proj": "colwise",
    "layers.*.mlp.up_proj": "colwise",
    "layers.*.mlp.down_proj": "rowwise",
}
HEAD_PLAN = {"lm_head": "colwise_gather_output"}
AWAITED = "awaited_mesh"  # what a mixer remembers until it has weights


class SplitHeadsStyle(TensorParallelLayer):
    def install_forward(self, module: Mixer, mesh: DeviceMesh) -> Mixer:
        vars(module)[AWAITED] = mesh
        return module


def split_awaiting(model: nn.Module) -> None:
    """Splits the mixers that a plan has named, now that their weights are there."""
    mixers = [module for module in model.modules() if isinstance(module, Mixer)]
    meshes: dict[Mixer, Any] = {mixer: vars(mixer).pop(AWAITED) for mixer in mixers if AWAITED in vars(mixer)}
    if meshes:
        check_splits(list(meshes))
    for mixer, mesh in meshes.items():
        if mixer.whole_because is None:
            split_heads(mixer, mesh)


if ALL_PARALLEL_STYLES is not None:
    ALL_PARALLEL_STYLES.register(STYLE, SplitHeadsStyle())
else:
    PLAN, HEAD_PLAN = {}, {}
