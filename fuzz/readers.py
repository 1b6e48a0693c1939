"""Who reads the files: the commands of the shell, called in this process, and the functions behind them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fuzz.case import Failure
from fuzz.specimens import recall

AMOUNTS = ("--steps", "3", "--length", "16", "--batch_size", "2", "--eval_rows", "2", "--accumulation", "1")


def shell(*arguments: str | Path) -> None:
    from maclaurin.cli import main

    main([str(argument) for argument in arguments])


def generate(home: Path) -> None:
    shell("generate", home / "model", "--prompt", "1 green", "--max-new-tokens", "2")


def generate_sharded(home: Path) -> None:
    shell("generate", home, "--prompt", "1 green", "--max-new-tokens", "2")


def evaluate(home: Path) -> None:
    shell("eval", home / "model", "--context", "16")


def resume(home: Path) -> None:
    """For one more step. Flags say how much is trained: a recipe may ask for years of it."""
    shell("train", "--output", home / "model", "--resume", *AMOUNTS)


def report(home: Path) -> None:
    shell("report", home, "--no-measure", "--output", home / "report.html")


def report_run(home: Path) -> None:
    shell("report", home / "model", "--no-measure", "--output", home / "model" / "report.html")


CONVERT = ("--corpus", "{home}/words.txt", "--max_length", "16", "--batch_size", "2", "--eval_rows", "4", "--lengths", "")


def convert(home: Path) -> None:
    """Again: the command goes on where it stopped, which is at the end."""
    _convert(home, home / "model", steps=1)


def convert_anew(home: Path) -> None:
    _convert(home, home / "anew", steps=0)


def _convert(home: Path, output: Path, steps: int) -> None:
    flags = [flag.format(home=home) for flag in CONVERT]
    flags += ["--transfer_steps", str(steps), "--recover_steps", str(steps)]
    shell("convert", home / "source", "--output", output, *flags)


def state(home: Path) -> None:
    """Loaded, and given to the mixer that made it."""
    import maclaurin

    torch.manual_seed(0)
    mixer = maclaurin.build_mixer("2mamba", 8, 2, rotary="rope", fold_at=3, fold_every=2)
    loaded = maclaurin.State.load(home / "state.safetensors")
    with torch.no_grad():
        mixer(torch.randn(2, 3, 8), loaded)


def cells(home: Path) -> None:
    """What a suite that goes on finds: a cell that cannot be read is run again."""
    from maclaurin.evals.runner import load
    from maclaurin.evals.summary import summary

    experiment = recall()
    for cell in experiment.cells(experiment.seeds):
        load(cell, home / "suite")
    summary(experiment, home / "suite", {})


def tokens(home: Path) -> None:
    """They are those of the text, made again if need be."""
    from maclaurin.data import open_corpus, open_tokenizer, tokenise

    corpus = open_corpus(str(home / "songs.jsonl"), text_field="text")
    tokenizer = open_tokenizer("bytes", corpus.documents("train"))
    cached = tokenise(corpus, "train", tokenizer, home / "cache" / "tokens")
    fresh = tokenise(corpus, "train", tokenizer, home / "fresh")
    for name in ("tokens", "ends"):
        if not np.array_equal(getattr(cached, name), getattr(fresh, name)):
            raise Failure(f"the {name} of a damaged cache are not those of the text")


def recipe_of_yaml(home: Path) -> None:
    from maclaurin.training.configured import train_recipe

    train_recipe({"output": str(home / "run")}, home / "config.yaml").config(vocab_size=10)


def tuned(home: Path) -> None:
    """Measured lines are a hint: without them, or with wild ones, every call works."""
    from maclaurin import ops
    from maclaurin.ops import crossover

    crossover._tuned.cache_clear()
    try:
        x = torch.randn(1, 40, 1, 4)
        for backend in ("auto", "torch"):
            ops.power_attention(x, x, x, backend=backend)
        ops.bidirectional_power(x, x, x)
        ops.bidirectional_linear(x.abs(), x.abs(), x)
    finally:
        crossover._tuned.cache_clear()
