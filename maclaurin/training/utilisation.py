"""How much of the device a run uses: model FLOPs per second over the peak (MFU), in the log beside the loss.

Model FLOPs are those of the matrix products of a forward, three times: a backward has twice as many. What gradient
checkpointing computes again is not among them, as usual.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import TrainerCallback

from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM
from maclaurin.ops.gpu.peaks import peak_of


@torch.no_grad()
def flops_per_token(config: MaclaurinConfig, length: int) -> float:
    """Of a training step over sequences of so many tokens, counted on the meta device."""
    with torch.device("meta"):
        model = MaclaurinForCausalLM(config).eval()
        ids = torch.zeros(1, length, dtype=torch.long, device="meta")
        with FlopCounterMode(display=False) as counter:
            model(ids, use_cache=False)
    return 3 * counter.get_total_flops() / length


def peak_flops(tflops: float) -> float | None:
    """Per second: as given, or those of the GPU here; None where neither is known."""
    if tflops:
        return tflops * 1e12
    peak = peak_of(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
    return None if peak is None else peak.tflops * 1e12


class Utilisation(TrainerCallback):
    """Adds tokens_per_second and mfu to what is logged with the loss. Both are of all devices together.

    Evaluation and checkpoints do not count: they come at intervals of the user's choice.
    """

    def __init__(self, tokens_per_step: int, flops: float, peak: float) -> None:
        """flops: per token. peak: per second, of all devices."""
        self.tokens_per_step, self.flops, self.peak = tokens_per_step, flops, peak
        self.seconds, self.steps = 0.0, 0
        self.since = time.perf_counter()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        now = time.perf_counter()
        self.seconds, self.steps, self.since = self.seconds + now - self.since, self.steps + 1, now

    def restart(self, *args: Any, **kwargs: Any) -> None:
        self.since = time.perf_counter()

    on_train_begin = on_evaluate = on_save = restart

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if logs is None or "loss" not in logs or not self.seconds:
            return
        rate = self.steps * self.tokens_per_step / self.seconds
        logs["tokens_per_second"] = round(rate, 1)
        logs["mfu"] = rate * self.flops / self.peak
        self.seconds, self.steps = 0.0, 0
