"""Checkpoints: which are complete, which a run has made itself, and how they appear and disappear: by one rename each.

A checkpoint has a manifest, written last: the run that made it, its step, and size and checksum of every file. Only what a
run has made is ever removed. Older checkpoints have no manifest; they are complete if all needed files can be read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from transformers import TrainerState
from transformers.trainer_pt_utils import safe_globals

from maclaurin.common.files import naming, read_json, write_json
from maclaurin.common.records import LARGEST
from maclaurin.distributed.sharded import METADATA

MANIFEST, IDENTITY, STATE = "manifest.json", "run.json", "trainer_state.json"
Resume = bool | Literal["auto"]
PER_STEP = "sequences_per_step"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
NAME = re.compile(r"checkpoint-(0|[1-9][0-9]*)", re.ASCII)


def run_of(output: Path) -> str:
    """The name by which a run knows its own checkpoints, drawn when its folder has none."""
    run = identity(output).get("run")
    if run is None:
        run = secrets.token_hex(8)
        write_json(output / IDENTITY, identity(output) | {"run": run})
    return run


def identity(output: Path) -> dict[str, Any]:
    """What identifies a run apart from its recipe: `run`, its own name, `data`, the fingerprint of its corpus, and
    `sequences_per_step`, of all its processes together.
    """
    file = output / IDENTITY
    known: dict[str, Any] = read_json(file) if file.exists() else {}
    for name, value in known.items():
        if name == PER_STEP:
            if type(value) is not int or not 0 < value < LARGEST:
                raise ValueError(f"{file} must have a number above 0 as {name}, got {value!r:.40}")
        elif not isinstance(value, str) or not re.fullmatch("[0-9a-f]{16,64}", value):
            raise ValueError(f"{file} must have hexadecimal digits as {name[:40]}, got {value!r:.40}")
    return known


def check_same_data(output: Path, corpus: str, fingerprint: str, per_step: int) -> None:
    """A run never goes on with another text, whatever its path; the first start records the fingerprint here."""
    known = identity(output) | {PER_STEP: per_step}
    if known.setdefault("data", fingerprint) != fingerprint:
        raise ValueError(f"corpus {corpus!r} is not the text that {str(output)!r} has been trained on: it cannot go on")
    write_json(output / IDENTITY, known)


def sequences_per_step(checkpoint: Path, per_process: int) -> int:
    """Of a run that goes on from this checkpoint: on any number of processes it stays what it was."""
    # runs from before this was recorded: a checkpoint has one such file for each process
    processes = len(list(checkpoint.glob("rng_state*.pth")))
    known: int = identity(checkpoint.parent).get(PER_STEP, per_process * processes)
    return known


def goes_on(output: Path, resume: Resume) -> bool:
    """Whether a run resumes: "auto" where there is something to resume from."""
    return bool(checkpoints(output)) if resume == "auto" else resume


def step_of(checkpoint: Path) -> int | None:
    """None for a folder that only looks like a checkpoint."""
    match = NAME.fullmatch(checkpoint.name)
    return int(match[1]) if match and checkpoint.is_dir() else None


def checkpoints(output: Path) -> list[Path]:
    """By step."""
    found = {step: path for path in output.glob("checkpoint-*") if (step := step_of(path)) is not None}
    return [found[step] for step in sorted(found)]


def last_whole(output: Path) -> Path | None:
    """The newest checkpoint that training can resume from; damaged ones are named. None if there are none at all."""
    why = ""
    for checkpoint in reversed(checkpoints(output)):
        try:
            check(checkpoint)
        except ValueError as error:
            print(f"maclaurin: {error}; looking for the checkpoint before it", file=sys.stderr)
            why = why or str(error)
            continue
        return checkpoint
    if why:
        raise ValueError(f"no checkpoint in {str(output)!r} is whole: {why}")
    return None


def check(checkpoint: Path) -> None:
    """Refuses a checkpoint that is not as it was written, or lacks a file that a run needs."""
    _check_needed(checkpoint)
    if (checkpoint / MANIFEST).exists():
        _check_manifest(checkpoint)
    else:
        _check_readable(checkpoint)
    _check_state(checkpoint / STATE, step_of(checkpoint))


def _check_needed(checkpoint: Path) -> None:
    weights, optimizer = (WEIGHTS, INDEX, METADATA), ("optimizer.pt", METADATA)
    for names in (("config.json",), weights, optimizer, ("scheduler.pt",), (STATE,), ("rng_state*.pth",)):
        if not any(path.is_file() for name in names for path in checkpoint.glob(name)):
            raise ValueError(f"{checkpoint} lacks {names[0].replace('*', '')}")


def _check_manifest(checkpoint: Path) -> None:
    file = checkpoint / MANIFEST
    files = read_json(file).get("files")
    if not isinstance(files, dict):
        raise ValueError(f"{file} must have an object as files, got {type(files).__name__}")
    for name, entry in files.items():
        path = checkpoint / Path(name).name  # never one outside
        if not path.is_file():
            raise ValueError(f"{checkpoint} lacks {path.name}")
        if not isinstance(entry, dict) or _measured(path, entry.get("bytes")) != entry:
            raise ValueError(f"{path} is not as it was written: it is damaged or was changed")


def _measured(path: Path, expected_bytes: Any) -> dict[str, Any]:
    """Size and checksum; a file of another size need not be read."""
    size = path.stat().st_size
    if size != expected_bytes:
        return {"bytes": size}
    with open(path, "rb") as stream:
        return {"bytes": size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}


def _check_readable(checkpoint: Path) -> None:
    read_json(checkpoint / "config.json")
    for file in (checkpoint / "optimizer.pt", checkpoint / "scheduler.pt", *checkpoint.glob("rng_state*.pth")):
        with naming(file), safe_globals():
            torch.load(file, map_location="meta", weights_only=True)
    for file in checkpoint.glob("*.safetensors"):
        with naming(file), safe_open(file, framework="pt"):
            pass


def _check_state(file: Path, step: int | None) -> None:
    state = read_json(file)
    known = {field.name for field in dataclasses.fields(TrainerState)}
    for name in state:
        if name not in known:
            raise ValueError(f"{file} has a field {name[:40]!r} that no state of a trainer has")
    for name in ("epoch", "global_step", "max_steps", "num_train_epochs", "num_input_tokens_seen", "total_flos"):
        if not _number(state.get(name, 0)):
            raise ValueError(f"{file} must have a number as {name}, got {str(state[name])[:40]}")
    if state.get("global_step") != step or type(state["global_step"]) is not int:
        raise ValueError(f"{file} must have global_step {step}, got {str(state.get('global_step'))[:40]}")
    batch = state.get("train_batch_size")
    if type(batch) is not int or not _number(batch):
        raise ValueError(f"{file} must have a whole number as train_batch_size, got {str(batch)[:40]}")
    best = state.get("best_model_checkpoint")
    if best is not None and not isinstance(best, str):
        raise ValueError(f"{file} must have a name as best_model_checkpoint, got {type(best).__name__}")
    logs = state.get("log_history")
    if not isinstance(logs, list) or not all(
        isinstance(entry, dict) and all(isinstance(value, int | float) for value in entry.values()) for entry in logs
    ):
        raise ValueError(f"{file} must have a list of objects of numbers as log_history")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def seal(checkpoint: Path, run: str) -> None:
    """Written last: from now on the checkpoint is complete."""
    files = {file.name: _measured(file, file.stat().st_size) for file in sorted(checkpoint.iterdir()) if file.is_file()}
    write_json(checkpoint / MANIFEST, {"run": run, "step": step_of(checkpoint), "files": files})


def made_by(checkpoint: Path, run: str) -> bool:
    """Whether this run wrote it at this path: not a folder made or renamed by hand, nor one of another run."""
    try:
        manifest = read_json(checkpoint / MANIFEST)
    except (OSError, ValueError):
        return False
    return manifest.get("run") == run and manifest.get("step") == step_of(checkpoint)


def put(checkpoint: Path, output: Path, run: str) -> None:
    """From the staging folder to its place. What the run itself had there goes to the staging folder, never to return."""
    final = output / checkpoint.name
    if final.exists():
        if made_by(final, run):
            os.rename(final, checkpoint.with_name(f"{final.name}-before"))
        else:
            kept = final.with_name(f"{final.name}-kept-{secrets.token_hex(4)}")
            os.rename(final, kept)
            print(f"maclaurin: {final} was not made by this run: it is {kept} now", file=sys.stderr)
    os.rename(checkpoint, final)


def remove_old(output: Path, staging: Path, run: str, step: int, keep: int) -> None:
    """All but the last `keep` that this run has made up to this step, by way of the staging folder."""
    mine = [path for path in checkpoints(output) if (step_of(path) or 0) <= step and made_by(path, run)]
    for old in mine[:-keep]:
        os.rename(old, staging / old.name)


def remove_own(output: Path) -> None:
    """All that the run in this folder has made: it is finished, and its model is there."""
    run = run_of(output)
    for checkpoint in checkpoints(output):
        if made_by(checkpoint, run):
            shutil.rmtree(checkpoint)


def deliver(staging: Path, output: Path) -> None:
    """A finished model, file by file; the configuration comes last and says that it is all there."""
    for file in sorted(staging.iterdir(), key=lambda file: file.name == "config.json"):
        os.replace(file, output / file.name)
    staging.rmdir()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Every library reports a full disk in its own way: all become one sentence."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        raise OSError(f"{path} could not be written: {_first_line(error)}; is the disk full?") from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
