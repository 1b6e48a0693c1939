"""The names that people know from transformers: one table for the shell, YAML and Python, and nothing is taken silently."""

import dataclasses
import json

import pytest
from huggingface_hub import HfApi
from huggingface_hub.utils import filter_repo_objects
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import SchedulerType

from maclaurin.cli import main
from maclaurin.training import Recipe, train
from maclaurin.training import run as run_module
from maclaurin.training.configured import compare_recipe, train_recipe
from maclaurin.training.names import ALIASES, DECIDED, trainer_fields
from maclaurin.training.recipe import SCHEDULES

WORDS = {str: "text", int: 3, float: 0.25, bool: True}


def refused(capsys, *arguments):
    """The one sentence of a bad command line."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    error = capsys.readouterr().err
    assert ended.value.code == 2 and len(error.splitlines()) == 1, error
    return error


def test_the_fields_that_are_read_from_the_source_are_those_of_the_class():
    declared = {field.name for field in dataclasses.fields(TrainingArguments) if field.init}
    assert set(trainer_fields()) == declared - {"parallelism_config"}  # an object, which no text stands for
    assert trainer_fields()["optim"] == {str} and trainer_fields()["adam_beta2"] == {float}
    assert set(ALIASES) - {"lr", "activation_checkpointing"} <= declared  # the latter is of newer releases
    assert set(ALIASES.values()) <= set(Recipe.__dataclass_fields__)
    assert {"report_to", "hub_token", "save_strategy"} <= set(DECIDED)
    assert set(SCHEDULES) <= {one.value for one in SchedulerType}


@pytest.mark.parametrize("alias", ALIASES)
def test_every_alias_means_its_field_in_python_yaml_and_the_shell(alias, tmp_path, monkeypatch):
    field = ALIASES[alias]
    value = {"schedule": "linear", "gradient_checkpointing": True, "output": "x"}.get(field, 3)
    value = float(value) if isinstance(getattr(Recipe, field), float) else value
    expected = Recipe(**{field: value})
    assert Recipe(**{alias: value}) == expected
    (tmp_path / "run.yaml").write_text(f"{alias}: {json.dumps(value)}\n")
    assert train_recipe({}, tmp_path / "run.yaml") == expected
    got = []
    monkeypatch.setattr("maclaurin.training.child.execute", lambda recipe, resume: got.append(recipe))
    with pytest.raises(SystemExit, match="0"):
        main(["train", f"--{alias}", str(value)])
    assert got == [expected]


def test_two_names_of_one_field_are_refused(capsys, tmp_path):
    assert "learning_rate twice" in refused(capsys, "train", "--lr", "1", "--learning_rate", "2")
    (tmp_path / "run.yaml").write_text("lr: 1.0\nlearning_rate: 2.0\n")
    with pytest.raises(ValueError, match="learning_rate twice"):
        train_recipe({}, tmp_path / "run.yaml")
    with pytest.raises(ValueError, match="learning_rate twice"):
        Recipe(lr=1.0, learning_rate=2.0)
    (tmp_path / "run.yaml").write_text("lr: 1.0\n")
    assert train_recipe({"learning_rate": 2.0}, tmp_path / "run.yaml").learning_rate == 2.0  # the flag over the file


def test_every_other_field_of_training_arguments_passes_through(tmp_path, monkeypatch):
    others = {name: kinds for name, kinds in trainer_fields().items() if name not in {*ALIASES, *DECIDED}}
    others = {name: kinds for name, kinds in others.items() if name not in Recipe.__dataclass_fields__}
    assert {"optim", "adam_beta2", "torch_compile", "push_to_hub", "dataloader_num_workers"} <= set(others)
    values = {name: next(WORDS[kind] for kind in WORDS if kind in kinds) for name, kinds in others.items()}
    in_python = Recipe(**values)
    assert in_python.trainer == values
    (tmp_path / "run.yaml").write_text(json.dumps(values))
    assert train_recipe({}, tmp_path / "run.yaml") == in_python
    got = []
    monkeypatch.setattr("maclaurin.training.child.execute", lambda recipe, resume: got.append(recipe))
    flags = [f"--{name}={str(value).lower()}" for name, value in values.items()]
    with pytest.raises(SystemExit, match="0"):
        main(["train", *flags])
    assert got == [in_python]
    in_python.save(tmp_path)
    assert Recipe.load(tmp_path) == in_python


def test_values_reach_the_trainer():
    recipe = Recipe(optim="adafactor", adam_beta2=0.95, logging_steps=7, lr_scheduler_type="warmup_stable_decay", lr=1e-4)
    recipe = dataclasses.replace(recipe, trainer=recipe.trainer | {"lr_scheduler_kwargs": {"num_decay_steps": 10}})
    made = run_module._arguments(recipe)
    assert (made.optim, made.adam_beta2, made.logging_steps, made.learning_rate) == ("adafactor", 0.95, 7, 1e-4)
    assert made.lr_scheduler_type == "warmup_stable_decay" and made.lr_scheduler_kwargs == {"num_decay_steps": 10}


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--optimm", "sgd"], "No such option: --optimm (Possible options: --optim"),
        (["--adam_beta2", "high"], "'--adam_beta2': Value error, must be a number, got 'high'"),
        (["--dataloader_num_workers", "1.5"], "must be a whole number, got '1.5'"),
        (["--torch_compile=perhaps"], "torch_compile must be true or false"),
        (["--report_to", "wandb"], "must not have report_to: use track"),
        (["--num_train_epochs", "3"], "must not have num_train_epochs: use steps"),
        (["--bf16"], "must not have bf16: use precision bf16"),
        (["--hub_token", "secret"], "must not have hub_token: recipes are stored as text"),
        (["--lr_scheduler_type", "sine"], "schedule must be one of"),
        (["--trainer", "{}"], "No such option: --trainer"),
    ],
)
def test_what_is_unknown_of_another_type_or_decided_by_the_run_is_one_sentence(flags, sentence, capsys):
    assert sentence in refused(capsys, "train", *flags)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"optimm": "sgd"}, "'optimm' .did you mean 'optim'"),
        ({"adam_beta2": "high"}, "a number as adam_beta2, got 'high'"),
        ({"optim": 3}, "a text as optim, got 3"),
        ({"torch_compile": "yes"}, "true or false as torch_compile"),
        ({"save_strategy": "epoch"}, "must not have save_strategy: use save_every"),
        ({"trainer": {"lr": 1.0}}, "must not have lr in trainer: it is learning_rate"),
        ({"trainer": {"nothing": 1.0}}, "no field of TrainingArguments"),
    ],
)
def test_the_same_in_python_and_yaml(fields, sentence, tmp_path):
    with pytest.raises(ValueError, match=sentence):
        Recipe(**fields)
    (tmp_path / "run.yaml").write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=f"config .*{sentence}"):
        train_recipe({}, tmp_path / "run.yaml")


def test_a_value_that_transformers_refuses_is_said_before_any_work(folder):
    with pytest.raises(ValueError, match=r"cannot train with optim 'sgdd': .*sgdd"):
        train(Recipe(output=str(folder / "run"), corpus=str(folder / "nothing"), optim="sgdd"))


def test_a_resumed_run_keeps_its_optimizer_and_may_change_its_workers(folder):
    fields = {"length": 32, "batch_size": 2, "eval_rows": 3, "corpus": str(folder / "text"), "track": "none"}
    fields |= {"output": str(folder / "run"), "warmup_steps": 1}
    assert train(Recipe(**fields, steps=2, optim="sgd", logging_steps=1)).finished
    assert json.loads((folder / "run" / "recipe.json").read_text())["trainer"] == {"optim": "sgd", "logging_steps": 1}
    goes_on = train_recipe({"output_dir": str(folder / "run"), "max_steps": 3, "logging_steps": 2}, resume=True)
    assert goes_on.trainer == {"optim": "sgd", "logging_steps": 2}
    for trainer, sentence in (
        ({"optim": "adafactor"}, "has optim 'sgd', the recipe gives 'adafactor'"),
        ({}, "has optim 'sgd', the recipe gives None"),
        ({"optim": "sgd", "adam_beta1": 0.8}, "has adam_beta1 None, the recipe gives 0.8"),
    ):
        with pytest.raises(ValueError, match=sentence):
            train(dataclasses.replace(goes_on, trainer=trainer), resume=True)
    assert train(goes_on, resume=True).finished


def test_only_the_finished_model_is_pushed(folder, monkeypatch):
    """And never a checkpoint or a pickle."""
    pushed = []

    def upload(self, *, repo_id, folder_path, revision, **patterns):
        found = filter_repo_objects(
            sorted(path.relative_to(folder_path).as_posix() for path in folder_path.rglob("*") if path.is_file()),
            **patterns,
        )
        pushed.append((repo_id, set(found)))

    monkeypatch.setattr(HfApi, "upload_folder", upload)
    monkeypatch.setattr(Trainer, "init_hf_repo", lambda self, **_: setattr(self, "hub_model_id", self.args.hub_model_id))
    fields = {"length": 32, "batch_size": 2, "eval_rows": 3, "corpus": str(folder / "text"), "save_every": 1, "steps": 2}
    train(Recipe(**fields, output=str(folder / "run"), push_to_hub=True, hub_model_id="owner/name"))
    ((name, files),) = pushed
    assert name == "owner/name"
    assert {"model.safetensors", "config.json", "tokenizer_config.json", "recipe.json", "log.jsonl", "README.md"} <= files
    assert not any("checkpoint" in file or file.endswith((".bin", ".pt", ".pth", ".lock")) for file in files), files


def test_compare_refuses_a_mixer_wherever_it_is_given(tmp_path, capsys):
    assert "No such option: --mixer (Possible options: --mixers" in refused(capsys, "compare", "--mixer", "gla")
    (tmp_path / "run.yaml").write_text("mixer: gla\n")
    assert "must not have mixer: its contenders are --mixers" in refused(
        capsys, "compare", "--config", str(tmp_path / "run.yaml")
    )
    with pytest.raises(ValueError, match="must not have mixer_options"):
        compare_recipe({"mixer_options": "{}"})
    assert compare_recipe({"lr": 0.5, "optim": "sgd"})[0].trainer == {"optim": "sgd"}
