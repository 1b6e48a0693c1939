"""Conversions from end to end on tiny models: what is trained, what is kept, and what an interruption changes (nothing)."""

import dataclasses
import hashlib
import json
import shlex
import shutil
import signal
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from maclaurin.cli import app, main
from maclaurin.commands.convert import plan_of
from maclaurin.convert import objectives
from maclaurin.convert.evaluate import fidelity
from maclaurin.convert.maclaurin_student import OPEN_FORGET
from maclaurin.convert.objectives import with_low_rank
from maclaurin.convert.run import convert
from maclaurin.convert.sources import recognise
from maclaurin.convert.stage import Stage, rate_factor
from maclaurin.convert.teacher_student import (
    TracedTeacher,
    keep_inputs_alone,
    mixing_layers,
    new_parameters,
    student_of,
)
from maclaurin.machine.bfloat16 import has_bf16
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM
from maclaurin.models.folder import open_model
from maclaurin.models.generation import continue_text
from maclaurin.models.linearised.students import STUDENTS
from maclaurin.processes.lock import locked
from maclaurin.processes.stopping import Terminated
from maclaurin.report import build
from maclaurin.training.callbacks import StopOnInterrupt
from maclaurin.training.conversion import DECODER, OWN, Plan
from maclaurin.training.recipe import Recipe
from tests.convert.conftest import SMALL, TEXT


def silent(line):
    pass


def plan(source, corpus, output, **changes):
    small = {"max_length": 24, "batch_size": 8, "eval_rows": 16, "transfer_steps": 6, "recover_steps": 6, "save_every": 2}
    return Plan(source=str(source), output=str(output), corpus=corpus, **small | changes)


def hashes(folder):
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def converted(source, corpus, tmp_path_factory):
    """A converted BERT, its plan, its figures, and its source's folder before and after."""
    folder = source("bert")
    before = hashes(folder)
    mine = plan(folder, corpus, tmp_path_factory.mktemp("converted") / "bert", student="taylor")
    result = convert(mine, silent)
    return mine, result.figures, before, hashes(folder)


def test_the_source_is_never_written_to(converted):
    _, _, before, after = converted
    assert before == after


def test_what_comes_out_loads_and_keeps_the_tokenizer(converted):
    mine, _, _, _ = converted
    model, tokenizer = AutoModel.from_pretrained(mine.output), AutoTokenizer.from_pretrained(mine.output)
    outputs = model(**tokenizer(["A CAT"], return_tensors="pt"))
    assert type(model).__name__ == "LinearBertModel" and outputs.last_hidden_state.shape[-1] == 32


def test_transfer_trains_maps_only_and_brings_the_attention_nearer(converted):
    mine, figures, _, _ = converted
    source = load_file(recognise(mine.source).path / "model.safetensors")
    after = load_file(f"{mine.output}/transfer/model.safetensors")
    assert all(torch.equal(after[name], tensor) for name, tensor in source.items())
    error = {stage: sum(row.error for row in figures.stages[stage].layers) for stage in ("untrained", "transfer")}
    assert error["transfer"] < error["untrained"]
    moved = load_file(f"{mine.output}/recover/model.safetensors")
    assert any(not torch.equal(moved[name], tensor) for name, tensor in source.items())


def test_the_page_has_every_stage_and_layer(converted):
    mine, figures, _, _ = converted
    page = build([Path(mine.output)])
    html = page.html()
    assert "Conversions" in html and f"{figures.stages['recover'].cosine:.4f}" in page.headline
    assert all(f"{row.error:.4f}" in html for row in figures.stages["transfer"].layers)
    assert "Spearman" in html and "same token" not in html  # an encoder has no tokens to predict


def test_the_page_has_a_command_that_plans_the_same_again(converted, monkeypatch):
    mine, figures, _, _ = converted
    _, _, folder, *words = shlex.split(figures.plan.command())
    flags = dict(zip(words[::2], words[1::2], strict=True))
    assert "--student" in flags and "--recover-rate" not in flags
    planned = []
    monkeypatch.setattr("maclaurin.commands.convert._convert", lambda plan, *_, **__: planned.append(plan))
    monkeypatch.setattr("maclaurin.commands.convert.write_report", lambda *_: None)
    with pytest.raises(SystemExit, match="0"):
        main(["convert", folder, *words])
    assert planned == [mine]


def test_a_finished_conversion_is_not_run_again(converted):
    mine, figures, _, _ = converted
    before = hashes(recognise(mine.source).path)
    again = convert(mine, silent)
    assert again.figures == figures and before == hashes(recognise(mine.source).path)
    with pytest.raises(ValueError, match="recover_steps"):
        convert(dataclasses.replace(mine, recover_steps=7), silent)


@pytest.mark.parametrize(("stage", "number"), [("transfer", signal.SIGINT), ("recover", signal.SIGTERM)])
def test_an_interrupted_conversion_goes_on_as_if_nothing_had_been(converted, stage, number, tmp_path, monkeypatch):
    mine, *_ = converted
    other = dataclasses.replace(mine, output=str(tmp_path / "again"))
    begin = StopOnInterrupt.on_step_end
    runs = []

    def interrupted(self, args, state, control, **kwargs):
        if stage in args.output_dir and state.global_step == 3 and not runs:
            runs.append(stage)
            signal.raise_signal(number)
        begin(self, args, state, control, **kwargs)

    monkeypatch.setattr(StopOnInterrupt, "on_step_end", interrupted)
    if number == signal.SIGTERM:
        with pytest.raises(Terminated):
            convert(other, silent)
    else:
        assert not convert(other, silent).finished
    (Path(other.output) / stage / "checkpoint-best").mkdir()  # nothing of a user's is removed
    with locked(Path(other.output) / "run.lock"), pytest.raises(ValueError, match="in use by process"):
        convert(other, silent)
    assert convert(other, silent).finished and runs
    assert (Path(other.output) / stage / "checkpoint-best").is_dir()
    mine_weights, other_weights = (load_file(f"{folder}/model.safetensors") for folder in (mine.output, other.output))
    assert all(torch.equal(mine_weights[name], tensor) for name, tensor in other_weights.items())


def test_an_output_inside_the_source_is_refused(source, corpus):
    folder = source("bert")
    before = hashes(folder)
    with pytest.raises(ValueError, match="never written to"):
        convert(plan(folder, corpus, folder / "linear"), silent)
    assert hashes(folder) == before


def test_layers_can_keep_softmax(source, corpus, tmp_path):
    mine = plan(source("bert"), corpus, tmp_path / "hybrid", keep_softmax="1", transfer_steps=0, recover_steps=0)
    figures = convert(mine, silent).figures.untrained.layers
    assert figures[0].error > 1e-2 and figures[0].kl > 1e-3
    assert figures[1].error < 1e-9 and abs(figures[1].kl) < 1e-6


@pytest.mark.parametrize("name", ["llama", "maclaurin"])
def test_decoders_are_converted_with_low_rank_updates_too(name, source, corpus, tmp_path):
    mine = plan(source(name), corpus, tmp_path / name, student="hedgehog", lora=2, transfer_steps=2, num_features=16)
    figures = convert(mine, silent).figures
    assert set(figures.stages) == {"untrained", "transfer", "recover"}
    model = AutoModelForCausalLM.from_pretrained(mine.output)
    assert not [key for key, _ in model.named_parameters() if "lora" in key]
    weights = load_file(recognise(mine.source).path / "model.safetensors")
    after = dict(model.named_parameters())
    changed = {key for key, tensor in weights.items() if not torch.equal(after[key], tensor)}
    assert changed and all("proj" in key and "mlp" not in key for key in changed)
    written = continue_text(*open_model(mine.output), "THE CAT", max_new_tokens=4, temperature=0)
    assert written.new_tokens and written.state_bytes


@pytest.mark.parametrize(
    ("name", "one_sum", "left", "learned"),
    [("llama", True, 0.0, "log_scale"), ("llama", False, 0.25, "near.gate"), ("maclaurin", False, 0.25, "near.gate")],
)
def test_a_window_stands_beside_the_student(name, one_sum, left, learned, source, corpus, tmp_path):
    """One that spans a row is the source's attention: all of it in one sum of weights; half of it, which leaves a quarter
    of the squared error, behind a gate."""
    error = {}
    for window in (None, 24):
        options = {"student": "elu", "transfer_steps": 0, "window": window, "one_sum": one_sum}
        mine = plan(source(name), corpus, tmp_path / str(window), **options)
        stages = convert(mine, silent).figures.stages
        error[window] = sum(row.error for row in stages["untrained"].layers)
    assert error[24] == pytest.approx(error[None] * left, rel=1e-3, abs=1e-9)
    model = AutoModelForCausalLM.from_pretrained(mine.output)
    found = {key: tensor for key, tensor in model.named_parameters() if key.endswith(learned)}
    assert len(found) == 2
    if learned == "near.gate":  # begins at 0, and recovery has moved it
        assert all(tensor.any() for tensor in found.values())
    written = continue_text(*open_model(mine.output), "THE CAT", max_new_tokens=4, temperature=0)
    assert written.new_tokens and written.state_bytes


def test_low_rank_updates_start_at_nothing_and_merge_into_what_they_were(source):
    model = recognise(str(source("llama"))).load()
    ids = torch.randint(3, 60, (1, 9))
    with torch.no_grad():
        before = model(ids).logits
        low_rank = with_low_rank(model, 2)
        torch.testing.assert_close(model(ids).logits, before)
        for layer in low_rank.layers:
            layer.lora_up.normal_(std=0.1)
        updated = model(ids).logits
        low_rank.merge()
        torch.testing.assert_close(model(ids).logits, updated, atol=1e-4, rtol=1e-4)
    assert (updated - before).abs().max() > 1e-3


def test_a_layer_is_shown_what_the_source_saw(source, corpus, tmp_path):
    """A copy that keeps softmax gives every layer's output again, from that layer's input alone."""
    found = recognise(str(source("llama")))
    teacher = found.load()
    student = student_of(teacher, plan(found.path, corpus, tmp_path, keep_softmax="0"))
    batch = {"input_ids": torch.randint(3, 60, (2, 9))}
    calls = TracedTeacher.of(teacher).run(batch)
    outputs = [call.again(layer) for call, layer in zip(calls, mixing_layers(student), strict=True)]
    torch.testing.assert_close(outputs[0], calls[0].output)
    assert (outputs[1] - calls[1].output).abs().max() > 1e-3
    assert all(".student." in name for name in new_parameters(teacher, student))


@pytest.mark.parametrize("student_name", STUDENTS)
def test_own_models_start_with_nothing_but_another_kernel(student_name, source, corpus, tmp_path):
    """The convolution passes tokens on and the decay is open: queries and keys are the source's, and only f differs."""
    found = recognise(str(source("maclaurin")))
    teacher = found.load()
    ids = torch.randint(3, 60, (1, 12))
    student = student_of(teacher, plan(found.path, corpus, tmp_path, student=student_name))
    mixer = student.model.layers[0].mixer
    x = torch.randn(1, 12, 32)
    with torch.no_grad():
        q, k = (getattr(mixer.project(x), part) for part in "qk")
        source_mixer = teacher.model.layers[0].mixer
        plain = source_mixer.project(x)
        decay = mixer.project(x).log_decay
        torch.testing.assert_close(q, plain.q)
        torch.testing.assert_close(k, plain.k)
        assert decay.abs().max() < 1e-2
        assert (student(ids).logits - teacher(ids).logits).abs().max() > 1e-4


def test_own_models_are_converted_as_they_were_trained(source, corpus, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(source("maclaurin"), folder)
    flags = {"source": str(folder), "output": "linear", "student": "elu"}
    assert plan_of(flags) == Plan(**flags, **OWN)
    Recipe(corpus=corpus, length=24, batch_size=2, accumulation=3, steps=70, learning_rate=3e-3).save(folder)
    made = plan_of(flags | {"recover_steps": 1})
    assert (made.corpus, made.max_length, made.batch_size, made.loss) == (corpus, 24, 6, "task")
    assert (made.transfer_steps, made.recover_steps, made.transfer_rate, made.recover_rate) == (7, 1, 3e-2, 1e-3)


def test_decoders_of_others_are_converted_with_a_window_and_whole_contexts(source):
    made = plan_of({"source": str(source("llama")), "output": "linear", "student": "hedgehog"})
    assert (made.max_length, made.loss, made.lora) == (TEXT["max_position_embeddings"], "distill", DECODER["lora"])
    assert made.options() == {"num_features": 16, "window": 64, "one_sum": True}  # two for each of a head's 8 channels
    assert made.precision == ("bf16" if has_bf16() else "fp32")


@pytest.mark.parametrize("family", ["llama", "maclaurin"])
def test_logits_in_slices_have_the_divergence_and_the_gradients_of_all(family, source, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(objectives, "SLICE", 5)
    folder = recognise(str(source(family)))
    teacher, mine = folder.load().double(), plan(source(family), corpus, tmp_path, student="elu")
    student = student_of(teacher, mine).double()
    ids = torch.randint(4, 60, (2, 12), generator=torch.Generator().manual_seed(0))
    loss = objectives.next_tokens(teacher)(student, {"input_ids": ids})
    loss.backward()
    found = {name: p.grad for name, p in student.named_parameters() if p.grad is not None}
    student.zero_grad()
    wanted = teacher(ids, use_cache=False).logits.detach().float()
    expected = objectives.divergence(student(ids, use_cache=False).logits, wanted)
    expected.backward()
    torch.testing.assert_close(loss, expected)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, student.get_parameter(name).grad, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("lora", [0, 4])
def test_recovery_in_bfloat16_loses_no_more_than_rounding_does(lora, source, corpus, tmp_path):
    folder = recognise(str(source("llama")))
    teacher = folder.load()
    mine = plan(source("llama"), corpus, tmp_path, student="hedgehog", window=8, one_sum=True, num_features=16, lora=lora)
    student = student_of(teacher, mine).train()
    if lora:
        with_low_rank(student, lora)
    ids = torch.randint(4, 60, (2, 24), generator=torch.Generator().manual_seed(0))
    losses = []
    for precision in ("fp32", "bf16"):
        objective = objectives.recover_objective(folder, teacher, dataclasses.replace(mine, precision=precision))
        losses.append(objective(student, {"input_ids": ids}))
    losses[1].backward()
    assert losses[0] != losses[1]
    torch.testing.assert_close(losses[1], losses[0], rtol=0.05, atol=0)
    assert all(p.grad.isfinite().all() for p in student.parameters() if p.grad is not None)


def test_no_more_than_the_input_of_a_layer_is_kept_and_gradients_are_the_same(source, corpus, tmp_path):
    teacher = recognise(str(source("llama"))).load()
    ids = torch.randint(4, 60, (1, 96), generator=torch.Generator().manual_seed(0))
    kept, gradients = [], []
    for sparing in (False, True):
        student = student_of(teacher, plan(source("llama"), corpus, tmp_path, student="hedgehog", num_features=16)).train()
        if sparing:
            keep_inputs_alone(student)
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, sizes=sizes: sizes.append(x.numel()) or x, lambda x: x):
            loss = student(ids, use_cache=False).logits.square().mean()
        loss.backward()
        kept.append(sum(sizes))
        gradients.append([p.grad for p in student.parameters()])
    assert kept[1] < kept[0] / 2
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@torch.no_grad()
def test_divergence_of_own_layers_is_that_of_the_written_out_weights(source, corpus, tmp_path):
    """Two documents in a row, a layer of 1 + x + x²/2 behind an open decay and one that keeps softmax."""
    found = recognise(str(source("maclaurin")))
    teacher = found.load().double()
    teacher.model.layers[0].mixer.qkv_proj.weight *= 10  # or no score is far from 0
    student = student_of(teacher, plan(found.path, corpus, tmp_path, student="taylor", keep_softmax="1"))
    bounds = [0, 7, 12]
    batch = {"input_ids": torch.randint(3, 60, (1, 12)), "cu_seqlens": torch.tensor(bounds)}
    x = TracedTeacher.of(teacher).run(batch)[0].args[0]
    expected = []
    for start, end in pairwise(bounds):
        p = teacher.model.layers[0].mixer.project(x[:, start:end])
        score = torch.einsum("thk,shk->hts", p.q[0], p.k[0]) / p.q.shape[-1] ** 0.5
        past = torch.ones(end - start, end - start).tril()
        steps = torch.arange(end - start, dtype=torch.float64)
        decay = ((steps[:, None] - steps) * F.logsigmoid(torch.tensor(OPEN_FORGET))).exp()
        softmax, series = score.exp() * past, (1 + score + score**2 / 2) * decay * past
        softmax, series = (weight / weight.sum(-1, keepdim=True) for weight in (softmax, series))
        expected.append(torch.xlogy(softmax, softmax / series).nansum(-1).mean(0))
    rows = fidelity(teacher, student, [batch])
    assert rows[0].kl == pytest.approx(torch.cat(expected).mean().item(), rel=1e-6) and rows[0].kl > 1e-5
    assert abs(rows[1].kl) < 1e-9 and rows[1].error < 1e-9


def test_layers_without_softmax_have_no_divergence(corpus, tmp_path):
    torch.manual_seed(0)
    config = MaclaurinConfig(**SMALL | TEXT, mixer=["mamba2", "softmax"], init="llama")
    teacher = MaclaurinForCausalLM(config).eval()
    student = student_of(teacher, plan("source", corpus, tmp_path, student="hedgehog"))
    rows = fidelity(teacher, student, [{"input_ids": torch.randint(3, 60, (1, 12)), "cu_seqlens": torch.tensor([0, 12])}])
    assert rows[0].kl is None and rows[0].error < 1e-9 and rows[1].kl > 0


def test_a_vision_model_is_converted_on_images(source, tmp_path):
    from PIL import Image

    folder = tmp_path / "images"
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    for number in range(24):
        pixels = torch.randint(256, (16, 16, 3), generator=generator, dtype=torch.uint8).numpy()
        Image.fromarray(pixels).save(folder / f"{number}.png")
    mine = plan(source("vit"), str(folder), tmp_path / "vit", student="taylor")
    figures = convert(mine, silent).figures.stages
    assert figures["recover"].layers[0].error < figures["untrained"].layers[0].error
    with pytest.raises(ValueError, match="folder of them"):
        convert(dataclasses.replace(mine, corpus="stdlib", output=str(tmp_path / "other")), silent)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"student": "nothing"}, "student"),
        ({"loss": "nothing"}, "loss"),
        ({"recover_steps": -1}, "recover_steps"),
        ({"batch_size": 0}, "batch_size"),
        ({"window": 0}, "window must be at least 1"),
        ({"num_features": 0}, "num_features must be at least 1"),
        ({"map_rate": 0.0}, "map_rate"),
        ({"keep_softmax": "first"}, "keep_softmax"),
        ({"student": "elu,relu", "layers": "elu,relu"}, "layers"),
    ],
)
def test_bad_plans_are_refused(fields, says):
    with pytest.raises(ValueError, match=says):
        Plan(source="a", output="b", **fields)


@pytest.mark.parametrize("steps", [1, 2, 20, 500])
def test_no_step_has_a_rate_of_zero(steps):
    factors = [rate_factor(step, steps) for step in range(steps)]
    peak = factors.index(1.0)
    assert peak == min(20, -(-steps // 10)) - 1 and factors[: peak + 1] == sorted(factors[: peak + 1])
    assert factors[peak:] == sorted(factors[peak:], reverse=True) and min(factors) > 0 and rate_factor(steps, steps) == 0


def test_a_stage_that_is_not_done_says_so(tmp_path):
    stage = Stage(tmp_path, lambda model, batch: None, {}, 1, 1, 1, 0)
    assert not stage.done
    (tmp_path / "config.json").write_text(json.dumps({}))
    assert stage.done


def test_the_command_compares_students_and_measures(source, corpus, tmp_path):
    arguments = ["convert", str(source("bert")), "--output", str(tmp_path), "--corpus", corpus, "--student", "taylor,elu"]
    steps = ["--transfer-steps", "2", "--recover-steps", "0", "--batch-size", "8", "--eval-rows", "16", "--lengths", "256"]
    result = CliRunner().invoke(app, [*arguments, *steps, "--json"])
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert [row["plan"]["student"] for row in figures] == ["taylor", "elu"]
    (cost,) = figures[0]["cost"]
    assert cost["length"] == 256 and cost["ratio"] > 0 and cost["source_bytes"] > 0
    assert (tmp_path / "report.html").exists() and (tmp_path / "elu" / "model.safetensors").exists()


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
def test_being_stopped_between_stages_says_how_to_go_on(source, corpus, tmp_path, monkeypatch, stop, code):
    def interrupted(*arguments):
        raise stop

    monkeypatch.setattr("maclaurin.convert.run.evaluate", interrupted)
    arguments = ["convert", str(source("bert")), "--output", str(tmp_path / "out"), "--corpus", corpus, "--batch-size", "8"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code and "stopped; go on with: " in result.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["convert"], "source"),
        (["convert", "somewhere"], "output"),
        (["convert", "./nowhere", "--output", "out"], "no folder here"),
        (["convert", "a", "--from-thesis", "b", "--output", "c"], "not both"),
    ],
)
def test_the_command_refuses_in_a_sentence(arguments, says):
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, ValueError) and says in str(result.exception)
