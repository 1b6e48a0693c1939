"""Which architectures of transformers take which kernels, and under which names of their modeling files."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from maclaurin.acceleration import recurrences, scans
from maclaurin.acceleration.documents import Packing

MODELS = "transformers.models."
Replacement = Callable[[Callable[..., Any]], Callable[..., Any]]  # what a name stood for -> what it stands for


def on_cpu(ours: Callable[..., Any]) -> Replacement:
    """Ours on a CPU; theirs elsewhere, where the packages that transformers looks for run, and in exported graphs."""

    def instead_of(theirs: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(theirs)
        def either(*args: Any, **kwargs: Any) -> Any:
            x = next(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor))
            return (ours if x.is_cpu and not torch.compiler.is_exporting() else theirs)(*args, **kwargs)

        return either

    return instead_of


@dataclass(frozen=True)
class Family:
    """Architectures with the same functions in their modeling files, whose layers learn of packed batches in one way.

    names: of what stands for something else. around: of layers that keep documents apart only with what is put around them.
    """

    op: str
    names: dict[str, Replacement]
    around: dict[str, Replacement] = field(default_factory=dict)
    packing: Packing = Packing.HANDED_ON


CONVOLUTION = {"causal_conv1d_fn": on_cpu(scans.causal_conv)}

CONVOLUTIONS = Family("short_conv", CONVOLUTION)
SELECTIVE_SCAN = CONVOLUTION | {"mamba_selective_scan": on_cpu(scans.mamba_scan)}
MAMBA = Family("selective_scan", SELECTIVE_SCAN | {"mamba_inner_fn": on_cpu(scans.unfused)}, packing=Packing.ASKED)
ZAMBA = Family("selective_scan", SELECTIVE_SCAN, packing=Packing.ASKED)
MAMBA_2 = Family(
    "linear_attention",
    CONVOLUTION
    | {"mamba2_chunk_scan": on_cpu(scans.mamba2_scan), "mamba2_split_conv1d_scan_combined": on_cpu(scans.unfused)},
)
GATED_DELTA = Family(
    "delta_rule",
    CONVOLUTION
    | {
        "torch_chunk_gated_delta_rule": on_cpu(scans.delta_rule),
        "torch_recurrent_gated_delta_rule": on_cpu(scans.delta_rule),
    },
)
KIMI_DELTA = Family(
    "delta_rule, a decay per channel",
    CONVOLUTION
    | {
        "chunk_kimi_delta_attention": on_cpu(scans.delta_rule),
        "recurrent_kimi_delta_attention": on_cpu(scans.delta_rule),
    },
)
RG_LRU = Family(
    "linear_scan",
    {"RecurrentGemmaRglru._rnn_scan": on_cpu(recurrences.rglru_scan)},
    around={"RecurrentGemmaRecurrentBlock.forward": recurrences.packed_rglru_block},
)
RWKV = Family(
    "linear_scan",
    {"rwkv_linear_attention": on_cpu(recurrences.wkv)},
    around={f"Rwkv{layer}.forward": recurrences.shifting_documents for layer in ("SelfAttention", "FeedForward")},
    packing=Packing.ASKED,
)
LIGHTNING = Family("linear_attention", {"MiniMaxLightningAttention.forward": on_cpu(recurrences.lightning_attention)})
MLSTM = Family(
    "mlstm",
    {
        "xLSTMBackend.forward": on_cpu(recurrences.mlstm_cell),
        "xLSTMMultiHeadLayerNorm._layer_normalize": on_cpu(recurrences.head_norm),
        "xLSTMRMSNorm._rms_normalize": on_cpu(recurrences.token_norm),
    },
    packing=Packing.ASKED,
)

ARCHITECTURES = {
    "bailing_hybrid": KIMI_DELTA,
    "bamba": MAMBA_2,
    "falcon_h1": MAMBA_2,
    "falcon_mamba": MAMBA,
    "glm5_next": replace(KIMI_DELTA, packing=Packing.REFUSED),
    "granitemoehybrid": replace(MAMBA_2, packing=Packing.MASKED),
    "inkling": CONVOLUTIONS,
    "inkling2": replace(CONVOLUTIONS, packing=Packing.REFUSED),
    "jamba": MAMBA,
    "kimi_linear": KIMI_DELTA,
    "lfm2": CONVOLUTIONS,
    "lfm2_moe": CONVOLUTIONS,
    "lfm3": CONVOLUTIONS,
    "mamba": MAMBA,
    "mamba2": MAMBA_2,
    "minimax": LIGHTNING,
    "nemotron_h": MAMBA_2,
    "olmo_hybrid": GATED_DELTA,
    "qwen3_5": GATED_DELTA,
    "qwen3_5_moe": GATED_DELTA,
    "qwen3_next": GATED_DELTA,
    "qwen4_exp": GATED_DELTA,
    "recurrent_gemma": RG_LRU,
    "rwkv": RWKV,
    "xlstm": MLSTM,
    "zamba": ZAMBA,
    "zamba2": MAMBA_2,
}


def architecture_of(module_name: str) -> str | None:
    """ "mamba2" of "transformers.models.mamba2.modeling_mamba2"; None for what is no modeling file."""
    name = module_name.removeprefix(MODELS).partition(".")[0]
    return name if module_name == f"{MODELS}{name}.modeling_{name}" else None
