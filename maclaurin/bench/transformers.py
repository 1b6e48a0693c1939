"""transformers' own linear models with the kernels of this package and without: forward, and forward with backward.

One layer of the published head sizes, or as many as a hybrid repeats, and a small vocabulary, float32, one thread.
Projections, norms, MLPs and softmax are transformers' own in both: beside the whole model stands what the replaced
functions take alone.
The models are those of transformers without the packages for GPUs that it looks for: with fla installed, it fails on a CPU.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from rich.console import Console

import maclaurin
from maclaurin.acceleration.architectures import ARCHITECTURES
from maclaurin.acceleration.patches import holder_of
from maclaurin.common.arguments import one_of
from maclaurin.common.records import ABSENT, Record
from maclaurin.common.timing import interleaved

T = 2048
COMMON: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 256,
    "num_hidden_layers": 1,
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
    "layer_types": ["linear_attention"],
}
LATENT = {
    "kv_lora_rank": 64,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "layer_types": ["linear_attention"],
    "mlp_layer_types": ["dense"],
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("MambaConfig", {}),
    "mamba2": ("Mamba2Config", {"num_heads": 8, "head_dim": 64, "n_groups": 1}),
    "bamba": ("BambaConfig", MAMBA_2 | {"attn_layer_indices": []}),
    "falcon_h1": ("FalconH1Config", MAMBA_2 | {"mamba_d_ssm": 512}),
    "qwen3_5": ("Qwen3_5TextConfig", DELTA),
    "olmo_hybrid": (
        "OlmoHybridConfig",
        DELTA | {"num_hidden_layers": 4, "layer_types": ["linear_attention"] * 3 + ["full_attention"]},
    ),
    "kimi_linear": ("KimiLinearConfig", LATENT | {"linear_head_dim": 128, "linear_num_heads": 2}),
    "recurrent_gemma": ("RecurrentGemmaConfig", {"num_hidden_layers": 3}),
    "xlstm": ("xLSTMConfig", {"num_heads": 2}),
    "rwkv": ("RwkvConfig", {"num_hidden_layers": 2}),  # it divides by the number of the others
    "minimax": (
        "MiniMaxConfig",
        {"num_hidden_layers": 2, "layer_types": ["linear_attention"] * 2, "num_local_experts": 4, "num_experts_per_tok": 1},
    ),
}


COLUMNS = {  # and how wide they are
    "model": 16,
    "what": 19,
    "transformers": 20,
    "accelerated": 20,
    "ratio": 8,
    "replaced alone": 16,
    "difference": 12,
}
SECONDS = 480  # by the clock, for all that is measured


@dataclass(frozen=True)
class TransformersRow(Record):
    """ratio: of transformers' time to that with the kernels. kernels: the same of the replaced functions alone, in a forward
    pass. difference: the largest of the logits, relative to the largest logit."""

    model: str
    what: str
    theirs_ms: float
    ours_ms: float
    ratio: float
    difference: float
    kernels: float | None = field(default=None, metadata=ABSENT)


def run(console: Console, *, long: bool, architectures: Sequence[str] | None = None) -> list[TransformersRow]:
    """Of the named architectures, or all, in shares of SECONDS; where a busy machine has used them up, forward alone."""
    names = list(MODELS) if architectures is None else list(architectures)
    for name in names:
        one_of("architectures", name, tuple(MODELS))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    console.print(f"transformers' models, T = {T}, one thread: ms (quartiles)")
    _show(console, *COLUMNS)
    rows = []
    end = time.perf_counter() + SECONDS
    try:
        for left, name in zip(range(len(names), 0, -1), names, strict=True):
            for row, cells in _measured(name, seconds=max(end - time.perf_counter(), 0) / left):
                rows.append(row)
                alone = "" if row.kernels is None else f"{row.kernels:.1f}x"
                _show(console, name, row.what, *cells, f"{row.ratio:.1f}x", alone, f"{row.difference:.0e}")
    finally:
        torch.set_num_threads(threads)
    return rows


def _show(console: Console, *cells: str) -> None:
    """A row as it comes: all of them take minutes."""
    padded = "".join(f"{cell:>{width}}" for cell, width in zip(cells, COLUMNS.values(), strict=True))
    console.print(padded, soft_wrap=True, highlight=False)


def _measured(name: str, seconds: float) -> Iterator[tuple[TransformersRow, tuple[str, str]]]:
    model = build(name)
    ids = torch.randint(2, 256, (1, T), generator=torch.Generator().manual_seed(0), dtype=torch.long, device="cpu")

    def forward() -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = model(ids, use_cache=False).logits
            return logits

    def backward() -> None:
        model.zero_grad()
        model(ids, labels=ids, use_cache=False).loss.backward()

    module = sys.modules[f"transformers.models.{name}.modeling_{name}"]
    spent: dict[bool, list[float]] = {False: [], True: []}
    logits: dict[bool, torch.Tensor] = {}

    def clocked(accelerated: bool) -> None:
        with _clocks(module, name) as seconds:
            logits[accelerated] = forward()
        spent[accelerated].append(sum(seconds))

    calls: dict[str, Callable[[bool], None]] = {"forward": clocked, "forward, backward": lambda accelerated: backward()}
    for what, call in calls.items():
        if not seconds and call is not clocked:
            return
        candidates: dict[str, Callable[[], object]] = {
            "theirs": _with(call, accelerated=False),
            "ours": _with(call, accelerated=True),
        }
        times = interleaved(candidates, seconds=seconds / 3, fewest=2 if call is clocked else 1, most=12)
        theirs, ours = times["theirs"], times["ours"]
        difference = float((logits[True] - logits[False]).abs().max() / logits[False].abs().max())
        kernels = min(spent[False]) / min(spent[True]) if call is clocked else None
        row = TransformersRow(name, what, theirs.median, ours.median, theirs.median / ours.median, difference, kernels)
        yield row, (str(theirs), str(ours))


@contextmanager
def _clocks(module: ModuleType, name: str) -> Iterator[list[float]]:
    """Seconds of every call of what stands under the replaced names; of calls within calls, the outermost."""
    spent: list[float] = []
    inside = False

    def clocked(function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            if inside:
                return function(*args, **kwargs)
            inside, start = True, time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                inside = False
                spent.append(time.process_time() - start)

        return timed

    with ExitStack() as stack:
        for path in ARCHITECTURES[name].names:
            holder, attribute = holder_of(module, path), path.rpartition(".")[2]
            before = vars(holder)[attribute]
            stack.callback(setattr, holder, attribute, before)
            setattr(holder, attribute, clocked(before))
        yield spent


def _with(call: Callable[[bool], None], *, accelerated: bool) -> Callable[[], None]:
    def timed() -> None:
        with maclaurin.accelerate_transformers() if accelerated else nullcontext():
            call(accelerated)

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
