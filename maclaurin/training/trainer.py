"""The Hugging Face Trainer, and three things it does not do: checkpoints that are whole or not there, evaluation weighted by
tokens, and a stop at the first loss that is not finite.
"""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PrinterCallback, Trainer, TrainingArguments
from transformers.trainer_utils import EvalLoopOutput, get_last_checkpoint

STAGING = ".staging"


class NonFiniteLossError(FloatingPointError):
    """Training cannot go on: the message says at which step, in which layer, and where the last good checkpoint is."""


def arguments(output: str, steps: int, **fields: Any) -> TrainingArguments:
    """What all training here has in common, and the fields in which one differs from another."""
    return TrainingArguments(
        output_dir=output,
        max_steps=steps,
        save_strategy="steps",
        logging_nan_inf_filter=False,
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        remove_unused_columns=False,
        label_names=["labels"],
        **fields,
    )


class LanguageTrainer(Trainer):
    """`keep`: how many checkpoints stay."""

    def __init__(self, *args: Any, keep: int = 2, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.remove_callback(PrinterCallback)
        self.keep = keep
        self._staging = False

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        loss: Tensor = super().training_step(model, inputs, *args, **kwargs)
        if not bool(loss.isfinite()):
            checkpoint = get_last_checkpoint(self.args.output_dir)
            raise NonFiniteLossError(
                f"the loss is {loss.item()} at step {self.state.global_step + 1}: "
                f"the first value that is not finite appears in {_first_non_finite(model, self._prepare_inputs(inputs))}; "
                f"last good checkpoint: {checkpoint or 'none yet'}"
            )
        return loss

    def evaluation_loop(self, dataloader: Any, description: str, *args: Any, **kwargs: Any) -> Any:
        """The mean over tokens, whatever the rows and batches."""
        prefix = kwargs.get("metric_key_prefix", "eval")
        model = self.model.eval()
        total, tokens = 0.0, 0
        with torch.no_grad(), self.compute_loss_context_manager():
            for batch in dataloader:
                inputs = self._prepare_inputs(batch)
                total += model(**inputs, num_items_in_batch=1).loss.item()
                tokens += int((inputs["labels"][:, 1:] != -100).sum())
        gathered = self.accelerator.reduce(torch.tensor([total, tokens], dtype=torch.float64, device=self.args.device))
        loss = (gathered[0] / gathered[1]).item()
        metrics = {
            f"{prefix}_loss": loss,
            f"{prefix}_perplexity": math.exp(min(loss, 700)),
            f"{prefix}_tokens": int(gathered[1]),
        }
        return EvalLoopOutput(predictions=None, label_ids=None, metrics=metrics, num_samples=len(dataloader.dataset))

    def _get_output_dir(self, trial: Any) -> str:
        folder: str = super()._get_output_dir(trial)
        return os.path.join(folder, STAGING) if self._staging else folder

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Into a staging folder, then by one rename into place: a checkpoint that is there is whole."""
        output = Path(self.args.output_dir)
        self._staging = True
        try:
            super()._save_checkpoint(model, trial)
            name = f"checkpoint-{self.state.global_step}"
            final = output / name
            if final.exists():
                shutil.rmtree(final)
            os.replace(output / STAGING / name, final)
        finally:
            self._staging = False
            shutil.rmtree(output / STAGING, ignore_errors=True)
        checkpoints = sorted(output.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
        for old in checkpoints[: -self.keep]:
            shutil.rmtree(old)


def _first_non_finite(model: nn.Module, inputs: dict[str, Any]) -> str:
    """The first module, in the order they run, whose output is not finite."""
    found: list[str] = []

    def watch(name: str) -> Any:
        def hook(module: nn.Module, arguments: Any, output: Any) -> None:
            values = output[0] if isinstance(output, tuple) else output
            if not found and isinstance(values, Tensor) and not bool(values.isfinite().all()):
                found.append(name)

        return hook

    handles = [module.register_forward_hook(watch(name)) for name, module in model.named_modules() if name]
    try:
        with torch.no_grad():
            model(**inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else "the loss itself"
