"""A run on several processes is the run on one: the same steps, one log, whole checkpoints, an agreed end."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from maclaurin.common.files import read_json
from maclaurin.training import Recipe, train
from maclaurin.training import run as run_module
from maclaurin.training.checkpoints import checkpoints, step_of
from maclaurin.training.child import execute
from maclaurin.training.ranks import shared_out
from maclaurin.training.trainer import LanguageTrainer
from tests.ranks import ends_on_ranks, on_ranks

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forks")
SMALL = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "mixer": "2mamba"}


def recipe(folder, **fields):
    """Steps of 4 sequences on two processes; 13 to evaluate, which two processes cannot share equally."""
    sizes = {"length": 32, "batch_size": 2, "steps": 6, "eval_rows": 13, "save_every": 3, "eval_every": 3, "warmup_steps": 1}
    place = {"output": str(folder / "run"), "corpus": str(folder / "text"), "trainer": {"logging_steps": 1}}
    return Recipe(**{**sizes, **SMALL, **place, **fields})


def losses(folder, name, figure="loss"):
    log = [json.loads(line) for line in (folder / name / "log.jsonl").read_text().splitlines()]
    return {entry["step"]: entry[figure] for entry in log if figure in entry}


def weights(folder, name="run"):
    return load_file(folder / name / "model.safetensors")


def assert_same(got, expected):
    assert all(torch.equal(got[name], expected[name]) for name in expected)


def test_two_processes_take_the_steps_of_one_and_a_run_goes_on_with_any_number(folder):
    """The text has 1 or 2 steps more than whole epochs, so that some batches are blank."""
    one = recipe(folder, batch_size=4, output=str(folder / "one"))
    train(one)
    on_ranks(2, lambda rank: train(recipe(folder)))
    for figure in ("loss", "eval_loss", "eval_tokens"):
        assert losses(folder, "run", figure) == pytest.approx(losses(folder, "one", figure), abs=1e-5)
    assert sorted(path.name for path in (folder / "run").glob("checkpoint-*")) == ["checkpoint-3", "checkpoint-6"]
    assert len(list((folder / "run" / "tensorboard").iterdir())) == 1
    assert read_json(folder / "run" / "run.json")["sequences_per_step"] == 4

    expected = weights(folder)
    shutil.rmtree(folder / "run" / "checkpoint-6")
    shutil.copytree(folder / "run", folder / "other")
    on_ranks(2, lambda rank: train(recipe(folder), resume=True))
    assert_same(weights(folder), expected)

    train(recipe(folder, output=str(folder / "other")), resume=True)
    assert losses(folder, "other") == pytest.approx(losses(folder, "one"), abs=1e-5)
    with pytest.raises(ValueError, match="4 sequences, which 3 processes cannot share equally"):
        shared_out(4, 3, 2)


def test_fifty_steps_on_two_and_four_processes_and_runs_that_go_on_with_another_number(folder):
    long = {"steps": 50, "save_every": 10, "keep": 5, "eval_every": 50}

    def run(name, processes, batch_size, *, resume=False):
        own = recipe(folder, **long, batch_size=batch_size, output=str(folder / name))
        on_ranks(processes, lambda rank: train(own, resume=resume))

    run("on-1", 1, 4)
    run("on-2", 2, 2)
    run("on-4", 4, 1)
    for before, step, after, processes in (
        ("on-1", 20, "1-then-2", 2),
        ("1-then-2", 30, "2-then-4", 4),
        ("on-4", 20, "4-then-1", 1),
        ("on-4", 30, "4-then-2", 2),
    ):
        shutil.copytree(folder / before, folder / after)
        for checkpoint in checkpoints(folder / after):
            if step_of(checkpoint) > step:
                shutil.rmtree(checkpoint)
        run(after, processes, 1 if before == "on-4" else 4, resume=True)
    expected = losses(folder, "on-1")
    assert len(expected) == 50
    names = ("on-2", "on-4", "1-then-2", "2-then-4", "4-then-1", "4-then-2")
    worst = {name: max(abs(losses(folder, name)[step] - loss) for step, loss in expected.items()) for name in names}
    assert max(worst.values()) <= 1e-5, worst


def test_what_would_shard_nothing_is_refused(folder):
    with pytest.raises(ValueError, match="shard_parameters needs several processes"):
        train(recipe(folder, shard_parameters=True))
    with pytest.raises(ValueError, match="must not have fsdp: use shard_parameters"):
        recipe(folder, trainer={"fsdp": "full_shard"})


@pytest.mark.parametrize(
    ("sent", "ranks", "sharded"),
    [
        (signal.SIGINT, 2, False),
        (signal.SIGUSR1, 2, False),
        (signal.SIGTERM, 2, False),
        (signal.SIGTERM, 4, False),
        (signal.SIGTERM, 2, True),
        pytest.param(signal.SIGTERM, 4, True, marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_one_process_ends_all_at_the_same_step_with_one_checkpoint(folder, capfd, sent, ranks, sharded):
    def stopped(rank):
        class Signalled(LanguageTrainer):
            def training_step(self, *args, **kwargs):
                if rank == ranks - 1 and self.state.global_step == 1:
                    os.kill(os.getpid(), sent)
                return super().training_step(*args, **kwargs)

        run_module.LanguageTrainer = Signalled
        execute(recipe(folder, shard_parameters=sharded), resume="auto")

    assert ends_on_ranks(ranks, stopped) == [128 + sent] * ranks
    assert [path.name for path in (folder / "run").glob("checkpoint-*")] == ["checkpoint-2"]
    assert capfd.readouterr().out.count("stopped after step 2; go on with") == 1


def test_a_killed_process_ends_the_others_with_a_sentence(folder, capfd):
    from maclaurin.processes.exits import errors_as_sentences

    def killed(rank):
        class Killed(LanguageTrainer):
            def training_step(self, *args, **kwargs):
                if rank == 1 and self.state.global_step == 4:
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().training_step(*args, **kwargs)

        run_module.LanguageTrainer = Killed
        with errors_as_sentences():
            execute(recipe(folder), resume="auto")

    assert ends_on_ranks(2, killed) == [2, -signal.SIGKILL]
    said = capfd.readouterr().err
    assert said.count("has lost another one") == 1 and "Traceback" not in said
    assert [path.name for path in (folder / "run").glob("checkpoint-*")] == ["checkpoint-3"]


@pytest.mark.slow
def test_a_process_that_cannot_be_reached_ends_the_others_after_ddp_timeout(folder, capfd):
    """As behind a cut cable: it says nothing, and its connections stay open."""
    from maclaurin.processes.exits import errors_as_sentences

    def work(rank):
        class Unreachable(LanguageTrainer):
            def training_step(self, *args, **kwargs):
                if rank == 1 and self.state.global_step == 4:
                    (folder / "process").write_text(str(os.getpid()))
                    os.kill(os.getpid(), signal.SIGSTOP)
                return super().training_step(*args, **kwargs)

        run_module.LanguageTrainer = Unreachable
        try:
            with errors_as_sentences():
                execute(recipe(folder, trainer={"ddp_timeout": 15}), resume="auto")
        finally:
            os.kill(int((folder / "process").read_text()), signal.SIGKILL)

    assert ends_on_ranks(2, work) == [2, -signal.SIGKILL]
    said = capfd.readouterr().err
    assert said.count("has lost another one") == 1 and "Traceback" not in said
    assert [path.name for path in (folder / "run").glob("checkpoint-*")] == ["checkpoint-3"]


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("ranks", [2, 4])
def test_five_kills_of_a_random_process_change_no_bit(folder, ranks, sharded):
    """As below with torchrun, but in forks, which start at once."""
    own = {"steps": 13, "batch_size": 1, "save_every": 2, "eval_every": 13, "trainer": {}, "shard_parameters": sharded}

    def run(name, victim=-1, step=-1):
        def work(rank):
            class Killed(LanguageTrainer):
                def training_step(self, *args, **kwargs):
                    if (rank, self.state.global_step) == (victim, step):
                        os.kill(os.getpid(), signal.SIGKILL)
                    return super().training_step(*args, **kwargs)

            run_module.LanguageTrainer = Killed
            execute(recipe(folder, **own, output=str(folder / name)), resume="auto")

        return ends_on_ranks(ranks, work)

    assert run("undisturbed") == [0] * ranks
    draw = random.Random(ranks)
    for step in (3, 5, 7, 9, 11):
        victim = draw.randrange(ranks)
        ends = run("run", victim, step)
        assert ends[victim] == -signal.SIGKILL and all(ends)
    assert run("run") == [0] * ranks
    assert_same(weights(folder), weights(folder, "undisturbed"))


def test_sequences_cut_in_time_take_the_same_steps(folder):
    fields = {"batch_size": 4, "steps": 3, "eval_every": 3, "mixer": "2mamba,softmax", "num_hidden_layers": 2}
    train(recipe(folder, **fields, output=str(folder / "whole")))
    train(recipe(folder, **fields, sequence_chunks=3, output=str(folder / "chunks")))
    for exchange in ("chain", "gather"):
        own = {"sequence_parallel": 2, "sequence_exchange": exchange, "output": str(folder / exchange)}
        on_ranks(2, lambda rank, own=own: train(recipe(folder, **fields, **own)))
    for name in ("chunks", "chain", "gather"):
        for figure in ("loss", "eval_loss", "eval_tokens", "grad_norm"):
            assert losses(folder, name, figure) == pytest.approx(losses(folder, "whole", figure), abs=1e-5), (name, figure)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_torchrun_killed_five_times_ends_with_the_weights_of_an_undisturbed_run(folder, ranks):
    """A random process is killed each time, once there is another checkpoint; the same command goes on."""
    own = recipe(folder, steps=80, batch_size=1, save_every=2, eval_every=80, trainer={})
    (folder / "run.yaml").write_text(json.dumps({name: getattr(own, name) for name in own.__dataclass_fields__}))
    words = ["--config", str(folder / "run.yaml"), "--resume", "auto"]
    started = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    command = [*started, "-m", "maclaurin", "train", *words]
    subprocess.run([*command, "--output", str(folder / "undisturbed")], check=True, capture_output=True)
    draw, saved = random.Random(ranks), 0

    def last_step():
        return max((step_of(checkpoint) for checkpoint in checkpoints(folder / "run")), default=0)

    for _ in range(5):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            while last_step() == saved:
                assert process.poll() is None, process.stdout.read().decode()
                time.sleep(0.02)
            children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
            assert len(children) == ranks
            os.kill(int(draw.choice(children)), signal.SIGKILL)
            said = process.communicate()[0].decode()
        assert process.returncode == 1 and said.count("has lost another one") == 1, said
        saved = last_step()
        assert saved < 80
    subprocess.run(command, check=True, capture_output=True)
    assert_same(weights(folder), weights(folder, "undisturbed"))


@pytest.mark.slow
def test_accelerate_launch_takes_the_steps_of_one_process(folder):
    train(recipe(folder, batch_size=4, output=str(folder / "one")))
    own = recipe(folder)
    (folder / "run.yaml").write_text(json.dumps({name: getattr(own, name) for name in own.__dataclass_fields__}))
    launch = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--multi_gpu",
        "--num_processes",
        "2",
        "--mixed_precision",
        "no",
    ]
    words = ["--num_machines", "1", "--dynamo_backend", "no", "--main_process_port", "0"]
    train_it = ["-m", "maclaurin", "train", "--config", str(folder / "run.yaml"), "--resume", "auto"]
    subprocess.run([*launch, *words, *train_it], check=True, capture_output=True)
    assert read_json(folder / "run" / "run.json")["sequences_per_step"] == 4
    for figure in ("loss", "eval_loss", "eval_tokens"):
        assert losses(folder, "run", figure) == pytest.approx(losses(folder, "one", figure), abs=1e-5)
    assert len(list((folder / "run" / "tensorboard").iterdir())) == 1
