"""A run whose parameters are spread over processes takes the steps of one, and goes on from checkpoints of any layout."""

import os
import shutil

import pytest
from transformers import TrainerCallback

from maclaurin.common.files import read_json
from maclaurin.models import MaclaurinForCausalLM
from maclaurin.training import train
from maclaurin.training.trainer import LanguageTrainer, NonFiniteLossError
from tests.ranks import on_ranks
from tests.shell import typed
from tests.training.test_ranks import assert_same, losses, recipe, weights

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forks")
LONG = {"steps": 50, "save_every": 10, "keep": 5, "eval_every": 50}
SHARDED = {"batch_size": 1, "shard_parameters": True}


def goes_on_from(folder, name, step, copy):
    """The run as it was after so many steps, in another folder."""
    shutil.copytree(folder / name, folder / copy)
    for checkpoint in (folder / copy).glob("checkpoint-*"):
        if int(checkpoint.name.partition("-")[2]) > step:
            shutil.rmtree(checkpoint)
    return {"output": str(folder / copy)}


def assert_close(folder, name, expected):
    found = losses(folder, name)
    assert found.keys() == expected.keys()
    assert max(abs(found[step] - loss) for step, loss in expected.items()) <= 1e-5, name


class Shares(TrainerCallback):
    """How many numbers of the parameters and of Adam's two averages this process has, of how many."""

    def on_train_end(self, args, state, control, model, optimizer, **kwargs):
        parameters = [*model.parameters()]
        averages = [of[name] for of in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
        self.own = [sum(one.to_local().numel() for one in some) for some in (parameters, averages)]
        self.whole = sum(one.numel() for one in parameters)


def test_two_processes_share_parameters_and_take_the_steps_of_one(folder):
    one = {"num_hidden_layers": 2, "mixer": "2mamba,softmax"}
    train(recipe(folder, **one, batch_size=4, output=str(folder / "one")))

    def work(rank):
        shares = Shares()
        train(recipe(folder, **one, shard_parameters=True), callbacks=[shares])
        return shares.own, shares.whole

    ended = on_ranks(2, work)
    for (parameters, averages), whole in ended:
        assert parameters < 0.6 * whole and averages == 2 * parameters
    assert sum(own[0] for own, _ in ended) == ended[0][1]
    for figure in ("loss", "eval_loss", "eval_tokens", "grad_norm"):
        assert losses(folder, "run", figure) == pytest.approx(losses(folder, "one", figure), abs=1e-5), figure
    assert len(list((folder / "run" / "tensorboard").iterdir())) == 1

    checkpoint, whole = folder / "run" / "checkpoint-6", folder / "whole"
    assert typed("consolidate", checkpoint, whole).returncode == 0
    model = MaclaurinForCausalLM.from_pretrained(whole)
    assert_same(model.state_dict(), weights(folder))

    (folder / "run" / "config.json").unlink()  # the run stopped between its last checkpoint and the end
    train(recipe(folder, **one), resume=True)
    assert_same(weights(folder), model.state_dict())


def test_processes_that_share_sequences_share_parameters_too(folder):
    fields = {"steps": 3, "eval_every": 3, "mixer": "2mamba,softmax", "num_hidden_layers": 2}
    train(recipe(folder, **fields, batch_size=4, output=str(folder / "one")))
    cut = {"sequence_parallel": 2, "sequence_exchange": "gather", "gradient_checkpointing": True}
    on_ranks(4, lambda rank: train(recipe(folder, **fields, **cut, batch_size=2, shard_parameters=True)))
    for figure in ("loss", "eval_loss", "eval_tokens", "grad_norm"):
        assert losses(folder, "run", figure) == pytest.approx(losses(folder, "one", figure), abs=1e-5), figure


@pytest.mark.parametrize(("ranks", "heads"), [pytest.param(2, 2, marks=pytest.mark.slow), (4, 2)])
def test_processes_that_share_heads_take_the_steps_of_one_and_go_on_in_any_layout(folder, ranks, heads):
    """A mixer whose projections are fused, one that stays whole, softmax; each process has one head."""
    one = {"num_hidden_layers": 3, "mixer": "2mamba,s6,softmax", "eval_every": 6}
    train(recipe(folder, **one, batch_size=4, output=str(folder / "one")))
    split = {"shard_parameters": True, "tensor_parallel": heads, "gradient_checkpointing": ranks == 4}
    on_ranks(ranks, lambda rank: train(recipe(folder, **one, **split, batch_size=4 * heads // ranks)))
    for figure in ("loss", "eval_loss", "eval_tokens", "grad_norm"):
        assert losses(folder, "run", figure) == pytest.approx(losses(folder, "one", figure), abs=1e-5), figure
    assert read_json(folder / "run" / "run.json")["sequences_per_step"] == 4

    assert typed("consolidate", folder / "run" / "checkpoint-6", folder / "whole").returncode == 0
    assert_same(MaclaurinForCausalLM.from_pretrained(folder / "whole").state_dict(), weights(folder))

    layouts = {
        "again": ("run", ranks, split),
        "on-one": ("run", 1, {}),
        "spread": ("run", 2, {"shard_parameters": True}),
        "from-one": ("one", ranks, split),
    }
    for name, (before, processes, fields) in layouts.items():
        same = {"batch_size": 4 if before == "one" else 4 * heads // ranks}
        own = one | fields | same | goes_on_from(folder, before, 3, name)
        on_ranks(processes, lambda rank, own=own: train(recipe(folder, **own), resume=True))
        assert_close(folder, name, losses(folder, "one"))
    assert_same(weights(folder, "again"), weights(folder))


def test_heads_that_cannot_be_shared_are_refused(folder):
    with pytest.raises(ValueError, match="tensor_parallel needs shard_parameters, and whole sequences"):
        recipe(folder, tensor_parallel=2)
    with pytest.raises(ValueError, match="tensor_parallel needs shard_parameters, and whole sequences"):
        recipe(folder, tensor_parallel=2, shard_parameters=True, sequence_parallel=2)

    def refused(rank):
        for fields, message in (
            ({"tensor_parallel": 4}, "tensor_parallel must divide the 2 processes of the run, got 4"),
            ({"mixer": "s6", "tensor_parallel": 2}, "would split no mixer of this model"),
        ):
            with pytest.raises(ValueError, match=message):
                train(recipe(folder, **fields, shard_parameters=True))

    on_ranks(2, refused)


def test_a_loss_that_is_not_finite_in_one_process_ends_all(folder, monkeypatch):
    """All of them are needed to look for the place."""
    step = LanguageTrainer.compute_loss

    def compute_loss(self, *args, **kwargs):
        loss = step(self, *args, **kwargs)
        return loss * float("nan") if os.environ["RANK"] == "1" and self.state.global_step == 4 else loss

    def work(rank):
        monkeypatch.setattr(LanguageTrainer, "compute_loss", compute_loss)
        with pytest.raises(NonFiniteLossError, match=r"at step 5.*the loss itself; last good checkpoint: .*checkpoint-3"):
            train(recipe(folder, shard_parameters=True))

    on_ranks(2, work)


@pytest.mark.slow
def test_fifty_steps_on_two_and_four_processes_and_runs_that_go_on_in_any_layout(folder):
    train(recipe(folder, **LONG, batch_size=4, output=str(folder / "one")))
    expected = losses(folder, "one")
    assert len(expected) == 50
    for processes in (2, 4):
        own = LONG | SHARDED | {"batch_size": 4 // processes, "output": str(folder / f"on-{processes}")}
        on_ranks(processes, lambda rank, own=own: train(recipe(folder, **own)))
        assert_close(folder, f"on-{processes}", expected)
        parts = [path.name for path in (folder / f"on-{processes}" / "checkpoint-20").glob("*.distcp")]
        assert len(parts) == processes and not list((folder / f"on-{processes}").glob("checkpoint-*/*.safetensors"))

    for before, after, processes, fields in (
        ("on-4", "on-one", 1, {"batch_size": 1}),
        ("on-4", "whole-on-2", 2, {"batch_size": 1}),
        ("on-4", "sharded-on-2", 2, SHARDED),
        ("one", "sharded-on-4", 4, SHARDED | {"batch_size": 4}),
    ):
        own = LONG | fields | goes_on_from(folder, before, 20, after)
        on_ranks(processes, lambda rank, own=own: train(recipe(folder, **own), resume=True))
        assert_close(folder, after, expected)

    own = LONG | SHARDED | {"batch_size": 2} | goes_on_from(folder, "on-2", 20, "again-on-2")
    on_ranks(2, lambda rank: train(recipe(folder, **own), resume=True))
    assert_same(weights(folder, "again-on-2"), weights(folder, "on-2"))
