"""A whole one of every file that the project reads, made by the project itself."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HOME = "@HOME@"  # stands for the folder of a specimen in files that name it; a case finds its own folder in its place


def specimens() -> Path:
    """Their folder, made anew whenever the sources change, so that a case finds the same bytes when it is replayed."""
    sources = sorted([*ROOT.glob("maclaurin/**/*.py"), Path(__file__)])
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    folder = ROOT / "build" / "fuzz" / digest
    if not folder.exists():
        temporary = folder.with_name(f"{folder.name}.{os.getpid()}")
        make(temporary)
        try:
            temporary.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(temporary)
    return folder


def make(folder: Path) -> None:
    folder.mkdir(parents=True)
    _model(folder)
    _state(folder / "state")
    _results(folder / "results")
    _conversion(folder / "conversion")
    for kind in ("run", "results", "conversion"):
        _without_places(folder / kind)
    (folder / "yaml").mkdir()
    lines = (
        "mixer: 2mamba",
        "size: tiny",
        "length: 16",
        "steps: 3",
        "learning_rate: 1.0e-3",
        'mixer_options: "{}"',
        "corpus: stdlib",
    )
    (folder / "yaml" / "config.yaml").write_text("\n".join(lines) + "\n")
    tuned = folder / "tuning" / "cache" / "crossover.json"
    tuned.parent.mkdir(parents=True)
    tuned.write_text(json.dumps({"native": [256, 1.8], "torch": [0, 0.25], "one memory": [-6, 0.78]}))


def _without_places(home: Path) -> None:
    for path in home.rglob("*.json"):
        path.write_text(path.read_text().replace(str(home), HOME))


def _model(folder: Path) -> None:
    """A trained run with checkpoints and its token cache, and the same model in several files of weights."""
    from transformers import AutoTokenizer

    from maclaurin.models import MaclaurinForCausalLM
    from maclaurin.training import Recipe, train

    run = folder / "run"
    run.mkdir()
    songs = (json.dumps({"text": f"{i} green bottles hanging on the wall\n" * (1 + i % 3)}) for i in range(60))
    corpus = run / "songs.jsonl"
    corpus.write_text("\n".join(songs))
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    amounts = {"length": 16, "batch_size": 2, "eval_rows": 2, "warmup_steps": 1, "steps": 2, "track": "none"}
    recipe = Recipe(output=str(run / "model"), corpus=str(corpus), **amounts, **sizes)
    train(recipe, cache=run / "cache" / "tokens")
    model = MaclaurinForCausalLM.from_pretrained(run / "model")
    model.save_pretrained(folder / "sharded", max_shard_size=4000)
    AutoTokenizer.from_pretrained(run / "model").save_pretrained(folder / "sharded")


def _state(folder: Path) -> None:
    import torch

    import maclaurin

    folder.mkdir()
    torch.manual_seed(0)
    mixer = maclaurin.build_mixer("2mamba", 8, 2, rotary="rope", fold_at=3, fold_every=2)
    mixer(torch.randn(2, 6, 8))[1].save(folder / "state.safetensors")


def _results(folder: Path) -> None:
    """Runs, a suite and the lab, for the report."""
    from maclaurin.lab.run import keep
    from maclaurin.training import Recipe
    from maclaurin.training.compare import plan
    from tests.lab.test_results import small
    from tests.report.conftest import write_run, write_suite

    for run in plan(Recipe(output="compare", steps=20, length=32), ["softmax", "2mamba"], seeds=1):
        path = folder / Path(run.recipe.output)
        write_run(Recipe(**{**vars(run.recipe), "output": str(path)}), 2.4)
    (folder / "compare" / "compare.json").write_text(json.dumps({"command": "maclaurin compare", "rows": []}))
    write_suite(folder / "suite", recall(), "recall", lambda row, own: 0.5)
    keep(small(), folder / "lab")


def recall() -> Any:
    """The experiment of the suite."""
    from maclaurin.evals.cells import Problem, Row, Setting
    from maclaurin.evals.experiment import Experiment

    tests = tuple(Problem("mqar", {"length": 32, "pairs": pairs, "vocab_size": 64}) for pairs in (2, 4))
    rows = {name: Row((name,)) for name in ("softmax", "2mamba")}
    return Experiment("mqar", "Recall", rows, Setting(width=16, heads=2, inner=32), tests, tests, (1e-3,), axis="pairs")


def _conversion(folder: Path) -> None:
    """A small llama made linear."""
    from maclaurin.convert.plan import Plan
    from maclaurin.convert.run import convert_all
    from tests.convert.conftest import build, tokenizer

    source = folder / "source"
    build("llama").save_pretrained(source)
    tokenizer().save_pretrained(source)
    text = folder / "words.txt"
    text.write_text("\n\n".join(f"THE CAT SAW {i} DOGS." for i in range(200)))
    amounts = {"max_length": 16, "batch_size": 2, "transfer_steps": 1, "recover_steps": 1, "eval_rows": 4}
    convert_all(Plan(str(source), str(folder / "model"), corpus=str(text), **amounts), print, lengths=())


if __name__ == "__main__":
    with redirect_stdout(sys.stderr):
        found = specimens()
    print(found)
