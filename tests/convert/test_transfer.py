"""Transfer layer by layer: states on disk are those of the source, an interruption changes nothing, costs have an order."""

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from maclaurin.convert.run import convert
from maclaurin.convert.sensitivity import costliest, layer_costs
from maclaurin.convert.states import LayerInputs
from maclaurin.convert.teacher_student import TracedTeacher, mixing_layers, student_of
from maclaurin.convert.transfer import LayerTransfer
from maclaurin.models.linearised import linearise
from maclaurin.training.conversion import Plan
from tests.convert.conftest import build
from tests.convert.test_stages import plan, silent

IDS = torch.randint(3, 60, (5, 12), generator=torch.Generator().manual_seed(0))


def bits(folder):
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in Path(folder).glob("*.safetensors")}


def test_streamed_states_are_those_of_the_source(tmp_path):
    traced = TracedTeacher.of(build("llama").eval())
    inputs = LayerInputs(tmp_path, traced, IDS)
    inputs.compute(2, lambda done: None)
    assert inputs.nbytes == sum(file.stat().st_size for file in tmp_path.glob("*.f16"))
    calls = traced.run({"input_ids": IDS})
    for layer, call in enumerate(calls):
        direct = call.kwargs["hidden_states"] if not call.args else call.args[0]
        streamed = inputs.read(layer, [0, 1, 2, 3, 4])
        torch.testing.assert_close(streamed, direct.half().float(), atol=0, rtol=0)
        torch.testing.assert_close(inputs.read(layer, [3, 1]), streamed[[3, 1]], atol=0, rtol=0)
        with torch.no_grad():
            output = mixing_layers(traced.model)[layer](streamed, **inputs.arguments[layer])[0]
        torch.testing.assert_close(output, call.output, atol=5e-3, rtol=5e-3)


def test_states_that_were_cut_off_go_on_and_others_begin_again(tmp_path):
    traced = TracedTeacher.of(build("llama").eval())

    def stop(done):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LayerInputs(tmp_path, traced, IDS).compute(2, stop)
    seen = []
    inputs = LayerInputs(tmp_path, traced, IDS)
    inputs.compute(2, seen.append)
    assert seen == [4, 5]
    LayerInputs(tmp_path / "whole", traced, IDS).compute(2, lambda done: None)
    for file in tmp_path.glob("*.f16"):
        assert file.read_bytes() == (tmp_path / "whole" / file.name).read_bytes()
    LayerInputs(tmp_path, traced, IDS.flip(0)).compute(2, seen.append)
    assert seen == [4, 5, 2, 4, 5]


def test_a_transfer_that_was_stopped_ends_with_the_same_bits(source, corpus, tmp_path, monkeypatch):
    options = {"student": "hedgehog", "num_features": 8, "window": 4, "accumulate": 2, "recover_steps": 0}
    whole = plan(source("llama"), corpus, tmp_path / "whole", **options)
    convert(whole, silent)
    again = plan(source("llama"), corpus, tmp_path / "again", **options)
    train = LayerTransfer._train

    def stop_at_the_second(self, layer, *args):
        if layer == 1:
            raise KeyboardInterrupt
        return train(self, layer, *args)

    monkeypatch.setattr(LayerTransfer, "_train", stop_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        convert(again, silent)
    assert (tmp_path / "again/transfer/layer-00.safetensors").exists()
    monkeypatch.setattr(LayerTransfer, "_train", train)
    convert(again, silent)
    assert bits(tmp_path / "again/transfer") == bits(tmp_path / "whole/transfer")
    assert bits(tmp_path / "again") == bits(tmp_path / "whole")
    assert not (tmp_path / "again/transfer/states").exists()


def test_transfer_trains_students_alone_and_brings_them_nearer(source, corpus, tmp_path):
    mine = plan(source("llama"), corpus, tmp_path / "out", student="taylor", transfer_steps=12, recover_steps=0)
    stages = convert(mine, silent).figures.stages
    before, after = (sum(row.error for row in stages[name].layers) for name in ("untrained", "transfer"))
    assert after < before
    weights = load_file(source("llama") / "model.safetensors")
    kept = load_file(tmp_path / "out/model.safetensors")
    assert all(torch.equal(kept[name], tensor) for name, tensor in weights.items())


@torch.no_grad()
def test_the_cost_of_a_layer_is_that_of_the_model_with_this_one_replaced(tmp_path):
    teacher = build("llama").eval()
    students = student_of(teacher, Plan(source="x", output="y", student="elu", num_features=8)).eval()
    batches = [{"input_ids": IDS[:2]}, {"input_ids": IDS[2:4]}]
    costs = layer_costs(tmp_path, TracedTeacher.of(teacher), students, batches, lambda layer: None)
    for layer in range(2):
        mixed = linearise(
            teacher, ["elu" if place == layer else "softmax" for place in range(2)], {"num_features": 8}
        ).eval()
        mixing_layers(mixed)[layer].student.load_state_dict(mixing_layers(students)[layer].student.state_dict())
        kl = []
        for batch in batches:
            wanted, got = (model(**batch, use_cache=False).logits.log_softmax(-1) for model in (teacher, mixed))
            kl.append((wanted.exp() * (wanted - got)).sum(-1).mean().item())
        assert costs[layer] == pytest.approx(sum(kl) / 2, rel=1e-4)


def test_the_costliest_layers_are_kept():
    assert costliest({0: 0.3, 1: 0.1, 2: 0.7, 3: 0.3}, 2) == [0, 2]
    assert costliest({0: 0.3, 1: 0.1, 2: 0.7, 3: 0.3}, 3) == [0, 2, 3]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"keep_softmax": "auto:0"}, "auto:N with a number N above 0"),
        ({"keep_softmax": "auto"}, "auto:N with a number N above 0"),
        ({"accumulate": 3}, "accumulate must divide the batch_size 32"),
    ],
)
def test_plans_that_make_no_sense_are_refused(changes, says):
    with pytest.raises(ValueError, match=says):
        Plan(source="x", output="y", **changes)


def test_layers_are_not_chosen_where_there_is_no_transfer_by_layer(source, corpus, tmp_path):
    with pytest.raises(ValueError, match="needs a decoder of transformers"):
        convert(plan(source("bert"), corpus, tmp_path / "out", keep_softmax="auto:1"), silent)
    with pytest.raises(ValueError, match="must leave some of the 2 layers"):
        convert(plan(source("llama"), corpus, tmp_path / "other", keep_softmax="auto:2"), silent)
