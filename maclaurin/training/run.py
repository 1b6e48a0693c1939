"""A training run from its recipe: data, model, trainer, and the folder that holds all of it."""

from __future__ import annotations

import importlib.util
import logging
import math
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Subset
from transformers import TrainerCallback, TrainerState, TrainingArguments, set_seed
from transformers.integrations import TensorBoardCallback, get_reporting_integration_callbacks
from transformers.utils.logging import disable_progress_bar

from maclaurin.data import DocumentRows, PackedRows
from maclaurin.distributed.sharded import shard, shard_and_split
from maclaurin.machine.bfloat16 import check_bf16
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM
from maclaurin.processes.lock import locked
from maclaurin.training import card
from maclaurin.training.callbacks import JsonLog, LastStep, LiveProgress, StochasticWindow, StopOnInterrupt
from maclaurin.training.checkpoints import (
    Resume,
    check_same_data,
    checkpoints,
    deliver,
    goes_on,
    identity,
    last_whole,
    sequences_per_step,
    step_of,
    writing,
)
from maclaurin.training.cuts import Cut
from maclaurin.training.names import trainer_fields
from maclaurin.training.provenance import save_provenance
from maclaurin.training.ranks import agreed, lost_processes_named, rank, shared_out, world_size
from maclaurin.training.recipe import FREE_SIZES, Recipe
from maclaurin.training.text import Text
from maclaurin.training.trainer import LanguageTrainer, arguments
from maclaurin.training.utilisation import Utilisation, flops_per_token, peak_flops
from maclaurin.training.windows import WindowSchedule

LOG = "log.jsonl"  # begins where training does: until then a run may be refused
# of the files in the folder of a run
PUSHED = ("*.safetensors", "*.json", "*.jsonl", "*.txt", "*.model", "*.jinja", card.FILE)
WORKERS = 2  # processes that make batches for a GPU
# newer versions of transformers warn about the older name
CHECKPOINTING = "activation_checkpointing" if "activation_checkpointing" in trainer_fields() else "gradient_checkpointing"


@dataclass(frozen=True)
class Result:
    steps: int
    finished: bool
    held_out_loss: float | None
    stopped_by: int = 0  # the signal, if one stopped it


def train(
    recipe: Recipe, *, resume: Resume = False, cache: Path | None = None, callbacks: Sequence[TrainerCallback] = ()
) -> Result:
    """Train until the recipe's last step, or until Ctrl-C, SIGTERM or SIGUSR1. `resume` goes on from the last whole
    checkpoint in its folder, which no other run may be training in; "auto" does so where there is one. `callbacks` are
    called after the run's own.
    """
    output = Path(recipe.output)
    if not checkpoints(output) and (output / "result.json").exists():
        raise ValueError(
            f"{str(output)!r} holds a finished run of `compare`, which keeps no checkpoint: choose another output"
        )
    resume = goes_on(output, resume)
    if resume and not checkpoints(output):
        raise ValueError(f"there is no checkpoint to resume from in {str(output)!r}")
    with lost_processes_named(), nullcontext() if rank() else _own(output):
        return _train(recipe, output, resume, cache, callbacks)


def check_starts(recipe: Recipe) -> None:
    """Refuses a recipe as `train` would before it begins: arguments of the Trainer, texts that cannot be read."""
    _arguments(recipe)
    Text(recipe, "")


@contextmanager
def _own(output: Path) -> Iterator[None]:
    """The folder of a run, locked. A run that is refused leaves nothing there, and no folder that was made for it."""
    made = [folder for folder in (output, *output.parents) if not folder.exists()]
    lock = output / "run.lock"
    with locked(lock, f"run {str(output)!r}"):
        before = set(output.iterdir())
        try:
            yield
        except BaseException:
            if not (output / LOG).exists():
                _remove(set(output.iterdir()) - before | ({lock} if made else set()), made)
            raise


def _remove(files: Iterable[Path], folders: Iterable[Path]) -> None:
    for path in files:
        with suppress(OSError):  # Windows: a file that is open
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for folder in folders:
        with suppress(OSError):  # somebody else uses it by now
            folder.rmdir()


def _train(recipe: Recipe, output: Path, resume: bool, cache: Path | None, callbacks: Sequence[TrainerCallback]) -> Result:
    args = _arguments(recipe)  # before any work: it may refuse them
    if not resume and checkpoints(output):
        raise ValueError(f"{str(output)!r} holds a run already: resume it with --resume, or choose another output")
    checkpoint = agreed(last_whole(output) if resume and not rank() else None)
    first_step = (step_of(checkpoint) or 0) if checkpoint else 0
    parallel, chunks = recipe.sequence_parallel, recipe.sequence_chunks
    cut = Cut.of(parallel, chunks, args.world_size, recipe.sequence_exchange, args.ddp_timeout_delta)
    devices = args.world_size // (cut.processes * recipe.tensor_parallel) * max(args.n_gpu, 1)
    per_process = recipe.batch_size * recipe.accumulation
    per_step = devices * per_process
    if checkpoint is not None:
        recipe.check_goes_on(output, first_step)
        per_step = sequences_per_step(checkpoint, per_process)
    args.per_device_train_batch_size, args.gradient_accumulation_steps = shared_out(per_step, devices, recipe.batch_size)

    text = Text(recipe, identity(output).get("data", ""))
    if not rank():
        check_same_data(output, recipe.corpus, text.fingerprint, per_step)
    sequences = text.sequences(cache, recipe.steps * per_step)
    tokenizer = sequences.tokenizer
    disable_progress_bar()
    set_seed(recipe.seed)
    model = _model(recipe, tokenizer, checkpoint)
    if recipe.tensor_parallel > 1:
        # every process would be told to flatten the mesh, whose dimensions are what it is for
        logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
        shard_and_split(model.to(args.device), recipe.tensor_parallel, args.device.type)
    elif recipe.shard_parameters:
        shard(model.to(args.device))
    interrupt, progress = StopOnInterrupt(), LiveProgress(per_step * recipe.length)
    shown = [] if rank() else [progress, *_trackers(recipe, first_step)]
    trainer = LanguageTrainer(
        model=model,
        args=args,
        train_dataset=sequences.train,
        eval_dataset=_first(sequences.validation, recipe.eval_rows),
        data_collator=sequences.train.collate,
        callbacks=[
            LastStep(),
            *_utilisation(recipe, model, per_step * recipe.length, args.world_size * max(args.n_gpu, 1)),
            JsonLog(output / LOG),
            *shown,
            interrupt,
            *_windows(recipe, model),
            *callbacks,
        ],
        keep=recipe.keep,
        schedule_steps=recipe.schedule_steps,
        cut=cut,
        sharded=recipe.shard_parameters,
        tensor_parallel=recipe.tensor_parallel,
    )
    if not rank():
        tokenizer.save_pretrained(output)
        recipe.save(output)
        save_provenance(output, first_step=first_step)
    if checkpoint is not None and first_step >= recipe.steps:
        # it stopped between its last checkpoint and the end: there is nothing left to train
        trainer.state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        trainer._load_from_checkpoint(str(checkpoint))
    else:
        try:
            with interrupt:
                trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
        finally:
            progress.close()
    finished = trainer.state.global_step >= recipe.steps
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    loss = losses[-1] if losses else None
    if finished and sequences.test is not None:
        trainer.evaluate(_first(sequences.test, recipe.test_rows), metric_key_prefix="test")  # its log has the loss
    if finished:
        _save_model(trainer, output, recipe, loss)
    return Result(trainer.state.global_step, finished, loss, interrupt.requested)


def _first(rows: PackedRows | DocumentRows, count: int) -> Subset[Any]:
    return Subset(rows, range(min(count, len(rows))))


def _model(recipe: Recipe, tokenizer: Any, checkpoint: Path | None) -> MaclaurinForCausalLM:
    """The model with new weights, in the shape of the checkpoint's if there is one."""
    config = recipe.config(
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    if checkpoint is not None:
        _check_same_model(checkpoint, config)
    return MaclaurinForCausalLM(config)


def _save_model(trainer: LanguageTrainer, output: Path, recipe: Recipe, loss: float | None) -> None:
    with writing(output):
        trainer.save_model(str(trainer.staging), _internal_call=True)  # else it would push what is not in place yet
        if trainer.is_world_process_zero():
            (trainer.staging / card.FILE).write_text(card.model_card(recipe, trainer.model, loss), encoding="utf-8")
            (trainer.staging / "training_args.bin").unlink(missing_ok=True)  # a pickle that nothing here reads
            deliver(trainer.staging, output)
    if trainer.args.push_to_hub and trainer.is_world_process_zero():
        _push(trainer, output)


def _push(trainer: LanguageTrainer, output: Path) -> None:
    """The finished model, its tokenizer, card, recipe and log: no checkpoints, and no pickle."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError

    name, revision = trainer.hub_model_id, trainer.args.hub_revision
    try:
        HfApi().upload_folder(
            repo_id=name,
            folder_path=output,
            revision=revision,
            allow_patterns=list(PUSHED),
            ignore_patterns=["*/*"],  # there a * stands for folders too
        )
    except (OSError, ValueError, RuntimeError, HTTPError) as error:
        line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ValueError(f"the model is in {str(output)!r}, but could not be pushed to {name!r}: {line}") from error


def _check_same_model(checkpoint: Path, config: MaclaurinConfig) -> None:
    saved, wanted = MaclaurinConfig.from_pretrained(checkpoint).to_dict(), config.to_dict()
    for name in ("mixer", "mixer_options", "vocab_size", *FREE_SIZES):
        if saved[name] != wanted[name]:
            raise ValueError(f"{checkpoint} has {name} {saved[name]!r}, the recipe gives {wanted[name]!r}: it cannot go on")


def _utilisation(recipe: Recipe, model: MaclaurinForCausalLM, tokens_per_step: int, devices: int) -> list[TrainerCallback]:
    """Nothing on a device whose peak is not known: there the progress bar has all there is to say."""
    peak = peak_flops(recipe.peak_tflops)
    if peak is None:
        return []
    return [Utilisation(tokens_per_step, flops_per_token(model.config, recipe.length), devices * peak)]


def _windows(recipe: Recipe, model: MaclaurinForCausalLM) -> list[TrainerCallback]:
    if not recipe.short_window:
        return []
    schedule = WindowSchedule(
        recipe.short_window, recipe.short_window_probability, recipe.steps, recipe.seed, recipe.long_window_end
    )
    return [StochasticWindow(schedule, model)]


def _trackers(recipe: Recipe, first_step: int) -> list[TrainerCallback]:
    """TensorBoard in the run's own folder, and others as `transformers` sets them up."""
    callbacks = []
    for name in recipe.trackers():
        if not importlib.util.find_spec(name):
            raise ValueError(f"tracker {name!r} is not installed: pip install {name}, or choose others with --track")
        if name == "tensorboard":
            from torch.utils.tensorboard import SummaryWriter

            # hides what the run logged after the checkpoint that it resumes from
            writer = SummaryWriter(str(Path(recipe.output) / name), purge_step=first_step + 1)
            callbacks.append(TensorBoardCallback(writer))
        else:
            callbacks += [make() for make in get_reporting_integration_callbacks([name])]
    return callbacks


def _arguments(recipe: Recipe) -> TrainingArguments:
    if recipe.shard_parameters and world_size() == 1:
        raise ValueError("shard_parameters needs several processes, as torchrun starts them: one would hold everything")
    if world_size() % recipe.tensor_parallel:
        raise ValueError(
            f"tensor_parallel must divide the {world_size()} processes of the run, got {recipe.tensor_parallel}"
        )
    tenth = math.ceil(recipe.steps / 10)
    fields = {
        "per_device_train_batch_size": recipe.batch_size,
        "per_device_eval_batch_size": recipe.batch_size,
        "gradient_accumulation_steps": recipe.accumulation,
        "learning_rate": recipe.learning_rate,
        "lr_scheduler_type": recipe.schedule if recipe.schedule != "constant" else "constant_with_warmup",
        "warmup_steps": recipe.warmup_steps,
        "weight_decay": recipe.weight_decay,
        "max_grad_norm": recipe.clip,
        "bf16": _bf16(recipe.precision),
        "eval_strategy": "steps",
        "eval_steps": recipe.eval_every or tenth,
        "save_steps": recipe.save_every or tenth,
        "logging_steps": max(1, min(10, recipe.steps // 20)),
        "seed": recipe.seed,
    }
    if recipe.gradient_checkpointing:
        fields[CHECKPOINTING] = True
    if recipe.tensor_parallel > 1:
        fields["optim"] = "adamw_torch"  # PyTorch's fused step takes no parameters of different meshes
    try:
        return arguments(recipe.output, recipe.steps, **fields | _for_device(recipe.trainer) | recipe.trainer)
    except (ValueError, TypeError, ImportError) as error:
        if not recipe.trainer:
            raise
        given = ", ".join(f"{name} {value!r:.40}" for name, value in recipe.trainer.items())
        line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ValueError(f"transformers cannot train with {given}: {line}") from error


def _for_device(asked: dict[str, Any]) -> dict[str, Any]:
    """On a GPU batches are made by other processes, ahead of time, and copied from pinned memory while it computes.

    asked: fields of the recipe, which go before; without such processes nothing is made ahead.
    """
    if not torch.cuda.is_available():
        return {}
    workers = asked.get("dataloader_num_workers", WORKERS)
    ahead = {"dataloader_prefetch_factor": 4, "dataloader_persistent_workers": True} if workers else {}
    pinned = {"dataloader_pin_memory": True, "accelerator_config": {"non_blocking": True}}
    return {"dataloader_num_workers": workers, **ahead, **pinned}


def _bf16(precision: str) -> bool:
    """On a CPU bfloat16 is no faster, and on some virtual ones it kills the process: there only if asked for."""
    if torch.cuda.is_available():
        return precision == "bf16" or (precision == "auto" and torch.cuda.is_bf16_supported())
    if precision == "bf16":
        check_bf16()
    return precision == "bf16"
