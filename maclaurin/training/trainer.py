"""The Hugging Face Trainer, and what it does not do: checkpoints that are complete or absent, intervals that can change when
a run is resumed, evaluation weighted by tokens, and a stop at the first loss that is not finite.
"""

from __future__ import annotations

import math
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import SequentialSampler
from transformers import PrinterCallback, Trainer, TrainingArguments
from transformers.trainer_utils import EvalLoopOutput
from transformers.utils import logging

from maclaurin.common.files import naming
from maclaurin.data import StreamedRows
from maclaurin.data.epochs import Epochs, Filled, Shared, WithoutBlanks
from maclaurin.distributed import backward_in_chunks, loss_in_chunks
from maclaurin.distributed.sharded import is_sharded, save_sharded
from maclaurin.training.checkpoints import WEIGHTS, checkpoints, put, remove_old, run_of, seal, writing
from maclaurin.training.cuts import WHOLE, Cut
from maclaurin.training.placement import load_optimizer, load_weights, whole_weights
from maclaurin.training.ranks import agreed, begin, largest

SCHEDULER = "scheduler.pt"


class NonFiniteLossError(FloatingPointError):
    """Training cannot go on: the message says at which step, in which layer, and where the last good checkpoint is."""


def arguments(output: str, steps: int, **fields: Any) -> TrainingArguments:
    """The arguments that all training here shares, and `fields` in which runs differ."""
    fields.setdefault("use_cpu", not torch.cuda.is_available())
    if fields["use_cpu"]:
        begin(fields.get("ddp_backend"), fields.get("ddp_timeout"))
    return TrainingArguments(
        output_dir=output,
        max_steps=steps,
        save_strategy="steps",
        logging_nan_inf_filter=False,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        label_names=["labels"],
        hub_strategy="end",  # before that, copies in the run's folder would look like a finished model
        **fields,
    )


class LanguageTrainer(Trainer):
    """`keep`: how many checkpoints stay. `schedule_steps`: over which the learning rate decays, 0 for those of the run.
    `cut`: how sequences are cut in time. `sharded`: whether the parameters of the model are spread over the processes.
    `tensor_parallel`: how many of these share the heads, and with them batches.
    """

    data_collator: Any
    train_dataset: Any

    def __init__(
        self,
        *args: Any,
        keep: int = 2,
        schedule_steps: int = 0,
        cut: Cut = WHOLE,
        sharded: bool = False,
        tensor_parallel: int = 1,
        **kwargs: Any,
    ) -> None:
        self.schedule_steps, self.cut, self.sharded, self.tensor_parallel = schedule_steps, cut, sharded, tensor_parallel
        super().__init__(*args, **kwargs)
        if sharded:  # FSDP2 sums gradients; accelerate would wrap the model in DDP
            self.accelerator.prepare_model = partial(self.accelerator.prepare_model, evaluation_mode=True)
        self.remove_callback(PrinterCallback)
        self.keep = keep
        self.run = agreed(run_of(Path(self.args.output_dir)) if self.is_world_process_zero() else "")
        self._staging = False
        self.data_collator = WithoutBlanks(self.data_collator)
        if not isinstance(self.train_dataset, StreamedRows):
            seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
            self.train_dataset = Epochs(self.train_dataset, steps=self.args.max_steps, per_step=self.per_step, seed=seed)
        self.train_dataset = self._shared(self.train_dataset, self.args.train_batch_size)

    @property
    def staging(self) -> Path:
        """The folder for incomplete files, used by this run alone."""
        return Path(self.args.output_dir) / f".staging-{self.run}"

    @property
    def per_step(self) -> int:
        """Sequences of a step, of all processes together."""
        batches = self.args.gradient_accumulation_steps * self.args.world_size // self.of_a_batch
        return self.args.train_batch_size * batches

    @property
    def of_a_batch(self) -> int:
        """Processes that get the same batches: they have slices of the same sequences, or heads of the same layers."""
        return self.cut.processes * self.tensor_parallel

    def _shared(self, rows: Any, batch_size: int) -> Any:
        return Shared(rows, batch_size=batch_size, processes=self.args.world_size, times=self.of_a_batch)

    def create_optimizer(self, model: nn.Module | None = None) -> Any:
        """In groups of their own for each mesh, as transformers would have them, parameters would have another order in a
        checkpoint than those of other layouts."""
        if self.tensor_parallel == 1:
            return super().create_optimizer(model)
        kind, options = self.get_optimizer_cls_and_kwargs(self.args, self.model)
        decayed = set(self.get_decay_parameter_names(self.model))
        groups = [
            {"params": [one for name, one in self.model.named_parameters() if (name in decayed) == decays], **decay}
            for decays, decay in ((True, {"weight_decay": self.args.weight_decay}), (False, {"weight_decay": 0.0}))
        ]
        self.optimizer: Any = kind(groups, **options)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        return super().create_scheduler(self.schedule_steps or num_training_steps, optimizer)

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        """Sequences have their order already."""
        return SequentialSampler(self.train_dataset if train_dataset is None else train_dataset)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Every sequence once: blanks fill the batches of the last processes, where accelerate would repeat the first."""
        rows, batch_size = self.eval_dataset if eval_dataset is None else eval_dataset, self.args.eval_batch_size
        filled = Filled(rows, batch_size * self.args.world_size // self.of_a_batch)
        return super().get_eval_dataloader(self._shared(filled, batch_size))

    def _init_training_state(self, max_steps: int, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """A resumed run has the intervals that it is given now, not those of its checkpoint."""
        verbosity = logging.get_verbosity()
        logging.set_verbosity_error()  # it would warn about that
        try:
            where: tuple[int, int] = super()._init_training_state(max_steps, *args, **kwargs)
        finally:
            logging.set_verbosity(verbosity)
        self.state.compute_steps(self.args, max_steps)
        return where

    def _load_from_checkpoint(self, checkpoint: str, model: nn.Module | None = None) -> None:
        with naming(Path(checkpoint) / WEIGHTS):
            if self._in_parts(checkpoint):
                load_weights(self.model, Path(checkpoint))
            else:
                super()._load_from_checkpoint(checkpoint, model)

    def _in_parts(self, checkpoint: str) -> bool:
        """Whether the Trainer cannot load this checkpoint."""
        return self.sharded or is_sharded(Path(checkpoint))

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        tied = getattr(self.model, "all_tied_weights_keys", {})
        for kind, names in (("lacks", load_result.missing_keys), ("has beside the model's", load_result.unexpected_keys)):
            if found := sorted(set(names) - set(tied)):
                raise ValueError(f"it {kind} {len(found)} weights, such as {found[0]}")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            with naming(Path(checkpoint) / "optimizer.pt or scheduler.pt"):
                if self._in_parts(checkpoint):
                    load_optimizer(self.model, self.optimizer.optimizer, Path(checkpoint))
                    self.lr_scheduler.load_state_dict(torch.load(Path(checkpoint) / SCHEDULER, weights_only=True))
                else:
                    super()._load_optimizer_and_scheduler(checkpoint)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self.sharded:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        save_sharded(self.model, Path(output_dir), self.optimizer.optimizer)  # the weights, too
        if self.is_world_process_zero():
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        if self.sharded and self._staging:
            if self.is_world_process_zero():
                self.model.config.save_pretrained(output_dir)
        else:
            super()._save(output_dir, whole_weights(self.model) if self.sharded else state_dict)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            with naming(Path(checkpoint) / "rng_state.pth"):
                super()._load_rng_state(checkpoint)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Nobody reads the logits, of which a compiled model would make those of all tokens."""
        return super().compute_loss(model, {**self.cut.own(inputs), "logits_to_keep": 1}, *args, **kwargs)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        loss: Tensor
        if self.cut.chunks > 1:
            with self.compute_loss_context_manager():
                batch = self._prepare_inputs(inputs)
                loss = backward_in_chunks(model.train(), batch, self.cut.chunks, num_items=num_items_in_batch)
        else:
            # each process of a batch has counted the same labels. Those with its slices sum their gradients; those with its
            # heads have the same ones, of which FSDP2 takes the mean over fewer processes than the Trainer thinks
            if self.cut.processes > 1:
                num_items_in_batch = num_items_in_batch / self.cut.processes
            with self.cut.handing_over():
                loss = super().training_step(model, inputs, num_items_in_batch)
        if self._lost(loss):
            saved = checkpoints(Path(self.args.output_dir))
            where = _first_non_finite(self.model, self._prepare_inputs(inputs))
            raise NonFiniteLossError(
                f"the loss is {loss.item()} at step {self.state.global_step + 1}: "
                f"the first value that is not finite appears in {where}; "
                f"last good checkpoint: {saved[-1] if saved else 'none yet'}"
            )
        return loss

    def _lost(self, loss: Tensor) -> bool:
        """Whether the loss is not finite: of any process, where all of them are needed to look for the place."""
        lost = int(not loss.isfinite())
        return bool(largest(lost, self.args.device) if self.sharded else lost)

    def evaluation_loop(self, dataloader: Any, description: str, *args: Any, **kwargs: Any) -> Any:
        """The mean over tokens, whatever the sequences and batches."""
        prefix = kwargs.get("metric_key_prefix", "eval")
        model = self.model.eval()
        total, tokens = 0.0, 0
        with torch.no_grad(), self.compute_loss_context_manager(), self.cut.handing_over():
            for batch in dataloader:
                inputs = self.cut.own(self._prepare_inputs(batch))
                total += self._sum_of_losses(model, inputs)
                labels = inputs["shift_labels"] if "shift_labels" in inputs else inputs["labels"][:, 1:]
                tokens += int((labels != -100).sum())
        gathered = self.accelerator.reduce(torch.tensor([total, tokens], dtype=torch.float64, device=self.args.device))
        loss = (gathered[0] / gathered[1]).item()
        metrics = {
            f"{prefix}_loss": loss,
            f"{prefix}_perplexity": math.exp(min(loss, 700)),
            f"{prefix}_tokens": int(gathered[1]) // self.tensor_parallel,
        }
        return EvalLoopOutput(predictions=None, label_ids=None, metrics=metrics, num_samples=len(dataloader.dataset))

    def _sum_of_losses(self, model: nn.Module, inputs: dict[str, Any]) -> float:
        if self.cut.chunks > 1:
            return loss_in_chunks(model, inputs, self.cut.chunks, num_items=1).item()
        # the logits of all tokens would be the largest tensor there is
        return float(model(**inputs, num_items_in_batch=1, logits_to_keep=1).loss)

    def _get_output_dir(self, trial: Any) -> str:
        folder: str = super()._get_output_dir(trial)
        return str(self.staging) if self._staging else folder

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Into the staging folder, then by one rename into place: a checkpoint that exists is complete."""
        output, name = Path(self.args.output_dir), f"checkpoint-{self.state.global_step}"
        self._staging = True
        try:
            with writing(output / name):
                super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if self.is_world_process_zero():
                with writing(output / name):
                    seal(self.staging / name, self.run)
                    put(self.staging / name, output, self.run)
                    remove_old(output, self.staging, self.run, self.state.global_step, self.keep)
            self.accelerator.wait_for_everyone()
        finally:
            self._staging = False
            if self.is_world_process_zero():
                shutil.rmtree(self.staging, ignore_errors=True)


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
