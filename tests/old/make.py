"""Makes the old files with the code that they are of, as README.md lists it; today's may lack what is imported here.

    mkdir files && cd files
    PYTHONPATH=$OLD $OLD/.venv/bin/python make.py files

OLD is the folder of that commit, with an environment of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from cases import CASES, NAMELESS, after, before, suite
from safetensors.torch import save_file

PROMPT, NEW_TOKENS = "ten green bottles", 24
MODEL = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
IDS = [[1, 5, 9, 13, 17, 21, 25, 29]]


def make_states(folder: Path, names: tuple[str, ...]) -> set[str]:
    """A file a case, and what follows from each; returns which classes of states there are in them."""
    folder.mkdir()
    seen: set[str] = set()
    outputs = {}
    for name in names:
        mixer = CASES[name].build()
        with torch.no_grad():
            _, state = mixer(before(), attention_mask=CASES[name].mask())
            state.save(folder / f"{name}.safetensors")
            outputs[name], _ = mixer(after(), state)
        assert outputs[name].isfinite().all() and outputs[name].std() > 1e-3, name
        _collect(state, seen)
    save_file(outputs, folder / "expected.safetensors")
    return seen


def _collect(state: object, seen: set[str]) -> None:
    from maclaurin.ops import State

    if isinstance(state, State):
        seen.add(type(state).__name__)
        for value in vars(state).values():
            _collect(value, seen)


@contextmanager
def interrupted_at(step: int) -> Iterator[None]:
    """Ctrl-C within this step, after which a trainer writes a checkpoint and stops."""
    from maclaurin.training.trainer import LanguageTrainer

    train = LanguageTrainer.training_step

    def interrupts(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        if self.state.global_step + 1 == step:
            os.kill(os.getpid(), signal.SIGINT)
        return train(self, *args, **kwargs)

    LanguageTrainer.training_step = interrupts
    yield
    LanguageTrainer.training_step = train


@contextmanager
def finished_as(begun: str, finished: str) -> Iterator[None]:
    """What goes on in a folder here ends as another one, which keeps the model alone; the folder stays as it was."""
    shutil.copytree(begun, "kept")
    yield
    Path(finished).mkdir()
    for path in Path(begun).iterdir():
        if path.name in MODEL:
            path.rename(Path(finished) / path.name)
    shutil.rmtree(begun)
    Path("kept").rename(begun)
    (Path(begun) / "run.lock").unlink()  # it names a process and its host


def make_run() -> str:
    """run/ after 110 of 120 steps, model/ as it is at the end; returns how the model continues a text."""
    from transformers import AutoTokenizer

    from maclaurin.generation import continue_text
    from maclaurin.models import MaclaurinForCausalLM
    from maclaurin.training import Recipe, train

    # relative paths, which name no machine
    Path("songs.txt").write_text("ten green bottles hanging on the wall\n" * 40)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    amounts = {"length": 32, "batch_size": 4, "eval_rows": 2, "warmup_steps": 10, "steps": 120, "save_every": 200}
    recipe = Recipe(output="run", corpus="songs.txt", learning_rate=0.02, track="none", **amounts, **sizes)
    with interrupted_at(110):
        assert not train(recipe, cache=Path("cache")).finished
    with finished_as("run", "model"):
        assert train(recipe, resume=True, cache=Path("cache")).finished
    shutil.rmtree("cache")
    model = MaclaurinForCausalLM.from_pretrained("model").eval()
    tokenizer = AutoTokenizer.from_pretrained("model")
    return continue_text(model, tokenizer, PROMPT, max_new_tokens=NEW_TOKENS, temperature=0.0).text


def make_conversion() -> list[float]:
    """conversion/begun after 2 of 4 steps of transfer, conversion/model as it is at the end; returns its last logits."""
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    from maclaurin.convert.plan import Plan
    from maclaurin.convert.run import convert_all
    from tests.convert.conftest import TEXT, tokenizer

    Path("conversion").mkdir()
    os.chdir("conversion")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(**sizes | TEXT, num_key_value_heads=1, initializer_range=0.3)).save_pretrained("source")
    tokenizer().save_pretrained("source")
    Path("words.txt").write_text("\n\n".join(f"THE CAT SAW {i} DOGS." for i in range(60)))
    amounts = {"max_length": 16, "batch_size": 2, "transfer_steps": 4, "recover_steps": 1, "eval_rows": 4}
    plan = Plan("source", "begun", corpus="words.txt", layers="2mamba,hedgehog", window=2, **amounts)
    with interrupted_at(2):
        assert not convert_all(plan, print)[0].finished
    with finished_as("begun", "model"):
        assert convert_all(plan, print)[0].finished
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained("model").eval()(torch.tensor(IDS)).logits[0, -1]
    os.chdir("..")
    return logits.tolist()


def make_files() -> None:
    from maclaurin.ops import State

    missing = set(State._classes) - make_states(Path("states"), tuple(CASES))
    assert not missing, missing
    text = make_run()
    expected = {"prompt": PROMPT, "new_tokens": NEW_TOKENS, "text": text, "ids": IDS, "logits": make_conversion()}
    Path("expected.json").write_text(json.dumps(expected))


def make_suite() -> None:
    """suite/cells with outcomes by formula, and suite/results.json of them."""
    from maclaurin.evals.learn import Outcome, Score
    from maclaurin.evals.runner import save
    from maclaurin.evals.summary import summary

    folder, experiment, errors = Path("suite"), suite(), {}
    for cell in experiment.cells(experiment.seeds):
        if cell.label == "gla":
            errors[cell.key] = "ValueError: no luck"
            continue
        share = 0.5 + 0.125 * cell.seed + 0.25 * (cell.label == "linear")
        scores = [Score(value, value / 2, 10, 32, 1024, [(1, 2, 3, 4), (2, 4, 1, 6)]) for value in (0.875, share)]
        save(cell, Outcome(share, scores, 1000, 4, False, 1.5), folder)
    results = {
        "command": "maclaurin eval --suite recall",
        "suite": "recall",
        "tables": [summary(experiment, folder, errors)],
    }
    (folder / "results.json").write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if sys.argv[1] == "files":
        make_files()
    elif sys.argv[1] == "suite":
        make_suite()
    else:
        make_states(Path("nameless"), NAMELESS)
