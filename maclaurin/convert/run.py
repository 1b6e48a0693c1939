"""A conversion from its plan: recognise, transfer, recover, evaluate, save. Run again, it resumes where it stopped."""

from __future__ import annotations

import dataclasses
import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from maclaurin.common.files import read_json, write_json
from maclaurin.common.progress import Status
from maclaurin.convert.cost import cost_by_length
from maclaurin.convert.data import Batch, Data, load_data
from maclaurin.convert.evaluate import evaluate, next_token_agreement
from maclaurin.convert.forecast import forecast
from maclaurin.convert.objectives import (
    recover_objective,
    recover_rates,
    transfer_objective,
    transfer_rates,
    with_low_rank,
)
from maclaurin.convert.result import FIGURES, RECOVER, UNTRAINED, Figures
from maclaurin.convert.sensitivity import costliest, layer_costs
from maclaurin.convert.sources import Source, recognise
from maclaurin.convert.stage import LOG, Objective, Stage, is_done
from maclaurin.convert.teacher_student import keep_inputs_alone, student_of
from maclaurin.convert.times import timed, times_of
from maclaurin.convert.transfer import LayerTransfer
from maclaurin.models.checked import stays_inside
from maclaurin.models.linearised.students import SOFTMAX
from maclaurin.models.weights import check_generation_config, load_whole
from maclaurin.ops.products import with_faster_products
from maclaurin.processes.lock import locked
from maclaurin.training.checkpoints import deliver, writing
from maclaurin.training.conversion import Plan

# files of the source's folder that are not copied: its weights, and what describes them
LEFT_OUT = {
    "config.json",
    "generation_config.json",
    "manifest.json",
    "model.safetensors.index.json",
    "output.txt",
    "recipe.json",
    "result.json",
    "run.json",
    "trainer_state.json",
    "versions.json",
}
SENSITIVITY_TOKENS = 2048  # of validation, at least
COPIED = {".jinja", ".json", ".model", ".txt"}


@dataclass(frozen=True)
class Result:
    figures: Figures
    finished: bool


def convert(plan: Plan, say: Callable[[str], None], *, lengths: tuple[int, ...] = ()) -> Result:
    """`say` is called with a line as each stage ends. lengths: at which cost is measured; empty for no measurement."""
    disable_progress_bar()
    source = recognise(plan.source)
    plan.students(source.config.num_hidden_layers)
    if Path(plan.output).resolve().is_relative_to(source.path.resolve()):
        raise ValueError(f"output {plan.output!r} lies in the source's folder, which is never written to")
    with locked(Path(plan.output) / "run.lock", f"output {plan.output!r}"):
        return _convert(source, plan, say, lengths)


def _convert(source: Source, plan: Plan, say: Callable[[str], None], lengths: tuple[int, ...]) -> Result:
    plan.save()
    say(f"{source.architecture.__name__} from {plan.source}")
    teacher = with_faster_products(source.load())
    data = load_data(source, plan)
    if source.kind == "decoder" and not (Path(plan.output) / "transfer").exists():
        say(forecast(teacher, student_of(teacher, plan), data, plan, recover_objective(source, teacher, plan)))
    student = student_of(teacher, plan, _students(source, teacher, data, plan, say))
    figures = _load_figures(plan, source.kind)
    if UNTRAINED not in figures.stages:
        figures = _stored(plan, figures.with_stage(UNTRAINED, evaluate(source, teacher, student, data.validation)))
    say(f"{UNTRAINED}: {figures.untrained}")

    def watch(step: int) -> None:
        nonlocal figures
        found = next_token_agreement(teacher, student, data.validation)
        figures = _stored(plan, figures.with_point(step, found))
        say(f"recover, {step} of {plan.recover_steps} steps: {found}")

    for name, make in (("transfer", _transfer), (RECOVER, _recover)):
        if not getattr(plan, f"{name}_steps"):
            continue
        folder = Path(plan.output) / name
        if not is_done(folder):
            # one that has begun with all layers at once, as it once did for decoders too, goes on so
            by_layer = name == "transfer" and source.kind == "decoder" and not (folder / LOG).exists()
            if by_layer:
                LayerTransfer(folder, teacher, student, plan).finish(data.train, say)
            else:
                stage = make(source, teacher, student, data, plan)
                if name == RECOVER and source.kind == "decoder":
                    stage = dataclasses.replace(stage, watch=watch)
                if not stage.run(student, data.train):
                    return Result(figures, finished=False)
        student = _reloaded(folder, student)
        if name not in figures.stages:
            found, times = evaluate(source, teacher, student, data.validation), times_of(folder)
            found = dataclasses.replace(found, seconds=times.seconds, cpu_seconds=times.cpu_seconds)
            figures = _stored(plan, figures.with_stage(name, found))
        found = figures.stages[name]
        say(f"{name}: {found} ({found.seconds:.0f} s, {found.cpu_seconds:.0f} s of all cores)")
    _save(source, student, plan)
    if lengths and figures.cost is None and source.kind != "vision":  # the length of an image is fixed
        cost = cost_by_length(source.path, Path(plan.output), lengths)
        figures = _stored(plan, dataclasses.replace(figures, cost=cost))
    return Result(figures, finished=True)


def convert_all(plan: Plan, say: Callable[[str], None], *, lengths: tuple[int, ...] = ()) -> list[Result]:
    """One conversion per student; stops after one that was interrupted."""
    plans = plan.each()
    results = []
    for own in plans:
        if len(plans) > 1:
            say(f"student {own.student}")
        results.append(convert(own, say, lengths=lengths))
        if not results[-1].finished:
            break
    return results


def _students(source: Source, teacher: PreTrainedModel, data: Data, plan: Plan, say: Callable[[str], None]) -> list[str]:
    """The student of every layer. Which layers cost most is only known once all of them have been transferred."""
    names = plan.students(teacher.config.num_hidden_layers)
    if not plan.kept_by_cost:
        return names
    if source.kind != "decoder" or not plan.transfer_steps:
        raise ValueError("keep_softmax auto:N needs a decoder of transformers, and a transfer of at least one step")
    folder = Path(plan.output) / "transfer"
    student = student_of(teacher, plan, names)
    transfer = LayerTransfer(folder, teacher, student, plan)
    with timed(folder):
        transfer.run(data.train, say)
        with Status() as status:
            costs = layer_costs(
                folder,
                transfer.traced,
                student,
                _some(data.validation, SENSITIVITY_TOKENS),
                lambda layer: status(f"cost of layer {layer} of {len(names)}"),
            )
    kept = costliest({layer: cost for layer, cost in costs.items() if names[layer] != SOFTMAX}, plan.kept_by_cost)
    say(f"layers that keep softmax: {', '.join(f'{layer} (KL {costs[layer]:.4f})' for layer in kept)}")
    return [SOFTMAX if layer in kept else name for layer, name in enumerate(names)]


def _some(batches: Sequence[Batch], tokens: int) -> list[Batch]:
    """From all over the text, with that many tokens at least."""
    count = min(len(batches), -(-tokens // batches[0]["input_ids"].numel()))
    return [batches[index * len(batches) // count] for index in range(count)]


def _transfer(source: Source, teacher: PreTrainedModel, student: PreTrainedModel, data: Data, plan: Plan) -> Stage:
    return _stage("transfer", transfer_objective(teacher), transfer_rates(teacher, student, plan), data, plan)


def _recover(source: Source, teacher: PreTrainedModel, student: PreTrainedModel, data: Data, plan: Plan) -> Stage:
    low_rank = None
    if source.kind == "decoder":
        keep_inputs_alone(student)
    if plan.lora:
        with torch.random.fork_rng():
            torch.manual_seed(plan.seed)
            low_rank = with_low_rank(student, plan.lora)
    stage = _stage("recover", recover_objective(source, teacher, plan), recover_rates(teacher, student, plan), data, plan)
    return stage if low_rank is None else dataclasses.replace(stage, at_end=low_rank.merge)


def _stage(name: str, objective: Objective, rates: dict[str, float], data: Data, plan: Plan) -> Stage:
    return Stage(
        Path(plan.output) / name,
        objective,
        rates,
        getattr(plan, f"{name}_steps"),
        data.tokens_per_step,
        plan.save_every,
        plan.seed + (name == "recover"),  # so that it does not begin with the batches of transfer
        accumulate=plan.accumulate,
    )


def _reloaded(folder: Path, student: PreTrainedModel) -> PreTrainedModel:
    """From a stage's folder: a resumed conversion gets the same model as an uninterrupted one."""
    loaded: PreTrainedModel = load_whole(type(student), folder)
    check_generation_config(loaded, folder)
    return loaded.eval().to(student.device)


def _save(source: Source, student: PreTrainedModel, plan: Plan) -> None:
    """The model, and all files of the source's folder but weights and what describes them: tokenizer, pooling, …"""
    output = Path(plan.output)
    staging = output / f".staging-{secrets.token_hex(8)}"
    try:
        with writing(output):
            student.save_pretrained(staging)
            deliver(staging, output)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    beside = [file for file in source.path.glob("*") if file.suffix in COPIED and file.name not in LEFT_OUT]
    for file in (*beside, *source.path.glob("[0-9]_*/config.json")):  # those are modules of sentence-transformers
        stays_inside(source.path, file)
        target = output / file.relative_to(source.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


def _load_figures(plan: Plan, kind: str) -> Figures:
    """The stored figures. If the file is damaged they are measured again: the weights are in the stages' folders."""
    output = Path(plan.output)
    begun = Plan.load(output)
    try:
        return dataclasses.replace(Figures.from_json(read_json(output / FIGURES)), plan=begun, kind=kind)
    except (OSError, ValueError):
        return Figures(begun, kind)


def _stored(plan: Plan, figures: Figures) -> Figures:
    write_json(Path(plan.output) / FIGURES, figures.to_json())
    return figures
