"""A valid specimen of every file that the project reads, made by the project itself."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HOME = "@HOME@"  # stands for the folder of a specimen in files that name it; a case finds its own folder in its place


def specimen(home: str) -> Path:
    """A folder of valid files, made again whenever the sources change: a replayed case finds the same bytes."""
    sources = sorted([*ROOT.glob("maclaurin/**/*.py"), Path(__file__)])
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    folder = ROOT / "build" / "fuzz" / digest / home
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{home}-", dir=folder.parent))
        MAKERS[home](temporary)
        _without_places(temporary)
        with contextlib.suppress(OSError):  # another process was faster
            temporary.rename(folder)
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _without_places(home: Path) -> None:
    for path in home.rglob("*.json"):
        path.write_text(path.read_text().replace(str(home), HOME))


def _run(home: Path) -> None:
    """A trained run with checkpoints, its corpus and its token cache."""
    from maclaurin.training import Recipe, train

    songs = (json.dumps({"text": f"{i} green bottles hanging on the wall\n" * (1 + i % 3)}) for i in range(60))
    (home / "songs.jsonl").write_text("\n".join(songs))
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    amounts = {"length": 16, "batch_size": 2, "eval_rows": 2, "warmup_steps": 1, "steps": 2, "track": "none"}
    recipe = Recipe(output=str(home / "model"), corpus=str(home / "songs.jsonl"), **amounts, **sizes)
    train(recipe, cache=home / "cache" / "tokens")


def _sharded(home: Path) -> None:
    """The model of the run in several files of weights."""
    from transformers import AutoTokenizer

    from maclaurin.models import MaclaurinForCausalLM

    model = specimen("run") / "model"
    MaclaurinForCausalLM.from_pretrained(model).save_pretrained(home, max_shard_size=4000)
    AutoTokenizer.from_pretrained(model).save_pretrained(home)


def _state(home: Path) -> None:
    import torch

    import maclaurin

    torch.manual_seed(0)
    mixer = maclaurin.build_mixer("2mamba", 8, 2, rotary="rope", fold_at=3, fold_every=2)
    mixer(torch.randn(2, 6, 8))[1].save(home / "state.safetensors")


def _results(home: Path) -> None:
    """Runs, a suite and the lab, for the report."""
    from maclaurin.lab.run import keep
    from maclaurin.training import Recipe
    from maclaurin.training.compare import plan
    from tests.lab.test_results import small
    from tests.report.conftest import write_run, write_suite

    for run in plan(Recipe(output="compare", steps=20, length=32), ["softmax", "2mamba"], seeds=1):
        path = home / Path(run.recipe.output)
        write_run(Recipe(**{**vars(run.recipe), "output": str(path)}), 2.4)
    (home / "compare" / "compare.json").write_text(json.dumps({"command": "maclaurin compare", "rows": []}))
    write_suite(home / "suite", recall(), "recall", lambda row, own: 0.5)
    keep(small(), home / "lab")


def recall() -> Any:
    """The experiment of the suite."""
    from maclaurin.evals.cells import Problem, Row, Setting
    from maclaurin.evals.experiment import Experiment

    tests = tuple(Problem("mqar", {"length": 32, "pairs": pairs, "vocab_size": 64}) for pairs in (2, 4))
    rows = {name: Row((name,)) for name in ("softmax", "2mamba")}
    return Experiment("mqar", "Recall", rows, Setting(width=16, heads=2, inner=32), tests, tests, (1e-3,), axis="pairs")


def _conversion(home: Path) -> None:
    """A small llama made linear."""
    from maclaurin.convert.run import convert_all
    from maclaurin.training.conversion import Plan
    from tests.convert.conftest import build, tokenizer

    source = home / "source"
    build("llama").save_pretrained(source)
    tokenizer().save_pretrained(source)
    text = home / "words.txt"
    text.write_text("\n\n".join(f"THE CAT SAW {i} DOGS." for i in range(200)))
    amounts = {"max_length": 16, "batch_size": 2, "transfer_steps": 1, "recover_steps": 1, "eval_rows": 4}
    convert_all(Plan(str(source), str(home / "model"), corpus=str(text), **amounts), print, lengths=())


def _yaml(home: Path) -> None:
    lines = ("mixer: 2mamba", "size: tiny", "length: 16", "steps: 3", "learning_rate: 1.0e-3", 'mixer_options: "{}"')
    (home / "config.yaml").write_text("\n".join((*lines, "corpus: stdlib")) + "\n")


def _tuning(home: Path) -> None:
    (home / "cache").mkdir()
    lines = {"native": [256, 1.8], "torch": [0, 0.25], "one state": [-6, 0.78]}
    (home / "cache" / "crossover.json").write_text(json.dumps(lines))


MAKERS = {
    "run": _run,
    "sharded": _sharded,
    "state": _state,
    "results": _results,
    "conversion": _conversion,
    "yaml": _yaml,
    "tuning": _tuning,
}

if __name__ == "__main__":
    for name in sys.argv[1:]:
        specimen(name)
