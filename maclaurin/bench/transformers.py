"""transformers' own linear models with the kernels of this package and without: forward, and forward with backward.

Two layers of the published head sizes and a small vocabulary, float32, one thread: most of the time is that of the layers.
The models are those of transformers without the packages for GPUs that it looks for: with fla installed, it fails on a CPU.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import maclaurin
from maclaurin.common.records import Record
from maclaurin.common.timing import interleaved

T = 2048
COMMON: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MAMBA_2 = {"mamba_n_heads": 8, "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_d_state": 128}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "head_dim": 64,
    "layer_types": ["linear_attention", "linear_attention"],
}
LATENT = {
    "kv_lora_rank": 64,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "layer_types": ["linear_attention", "linear_attention"],
    "mlp_layer_types": ["dense", "dense"],
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("MambaConfig", {}),
    "mamba2": ("Mamba2Config", {"num_heads": 8, "head_dim": 64, "n_groups": 1}),
    "bamba": ("BambaConfig", MAMBA_2 | {"attn_layer_indices": []}),
    "falcon_h1": ("FalconH1Config", MAMBA_2 | {"mamba_d_ssm": 512}),
    "qwen3_5": ("Qwen3_5TextConfig", DELTA),
    "olmo_hybrid": ("OlmoHybridConfig", DELTA | {"layer_types": ["linear_attention", "full_attention"]}),
    "kimi_linear": ("KimiLinearConfig", LATENT | {"linear_head_dim": 128, "linear_num_heads": 2}),
    "recurrent_gemma": ("RecurrentGemmaConfig", {"block_types": ["recurrent"]}),
    "xlstm": ("xLSTMConfig", {"num_heads": 2}),
}


@dataclass(frozen=True)
class TransformersRow(Record):
    """ratio: of transformers' time to that with the kernels. difference: the largest of the logits, relative to
    the largest logit."""

    model: str
    what: str
    theirs_ms: float
    ours_ms: float
    ratio: float
    difference: float


def run(console: Console, *, long: bool) -> list[TransformersRow]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    table = Table(title=f"transformers' models, T = {T}, one thread: ms (quartiles)")
    for column in ("model", "what", "transformers", "accelerated", "ratio", "largest difference"):
        table.add_column(column, justify="right")
    rows = []
    try:
        for name in MODELS:
            for row, cells in _measured(name):
                rows.append(row)
                table.add_row(name, row.what, *cells, f"{row.ratio:.1f}x", f"{row.difference:.0e}")
    finally:
        torch.set_num_threads(threads)
    console.print(table)
    return rows


def _measured(name: str) -> Iterator[tuple[TransformersRow, tuple[str, str]]]:
    model = build(name)
    ids = torch.randint(2, 256, (1, T), generator=torch.Generator().manual_seed(0), dtype=torch.long, device="cpu")

    def forward() -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = model(ids, use_cache=False).logits
            return logits

    def backward() -> None:
        model.zero_grad()
        model(ids, labels=ids, use_cache=False).loss.backward()

    expected = forward()
    difference = float((_with(forward, accelerated=True)() - expected).abs().max() / expected.abs().max())
    for what, call in (("forward", forward), ("forward, backward", backward)):
        candidates = {"theirs": _with(call, accelerated=False), "ours": _with(call, accelerated=True)}
        times = interleaved(candidates, seconds=4)
        theirs, ours = times["theirs"], times["ours"]
        ratio = theirs.median / ours.median
        yield TransformersRow(name, what, theirs.median, ours.median, ratio, difference), (str(theirs), str(ours))


def _with(call: Callable[[], Any], *, accelerated: bool) -> Callable[[], Any]:
    def timed() -> Any:
        with maclaurin.accelerate_transformers() if accelerated else nullcontext():
            return call()

    return timed


def build(name: str) -> Any:
    """The model of transformers, without its warnings that it is slow."""
    import transformers

    logging.getLogger("transformers").setLevel(logging.ERROR)
    config_class, options = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, config_class)(**COMMON | options)
    with without_gpu_packages():
        return transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False).float().eval()


@contextmanager
def without_gpu_packages() -> Iterator[None]:
    """Modeling files that are imported meanwhile find no fla."""
    before = sys.modules.get("fla")
    sys.modules["fla"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["fla"]
        if before is not None:
            sys.modules["fla"] = before
