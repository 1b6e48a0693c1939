"""The shell: parse, call, print."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import shlex
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.padding import Padding
from rich.progress import track
from rich.table import Table
from rich.text import Text

from maclaurin.common.files import write_json
from maclaurin.processes.exits import errors_as_sentences
from maclaurin.processes.lock import locked
from maclaurin.processes.stopping import STOPS, exit_code, raise_on_terminate

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Attention from linear to softmax, exact in every form.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
LENGTHS = (1024, 8192, 65536)
CONTEXTS = (1024, 4096)  # at which the cost a token is counted


@app.command()
def mixers(
    name: Annotated[str | None, typer.Argument(help="Only this mixer, or a pattern such as '*mamba*'.")] = None,
    d_model: Annotated[int, typer.Option(help="Width of the model.")] = 1024,
    num_heads: Annotated[int, typer.Option(help="Number of heads.")] = 16,
    as_json: Json = False,
) -> None:
    """List the mixers: complexity, state size at 1k, 8k and 64k tokens, crossover with softmax. With a name, explain one."""
    from maclaurin.common.sizes import size_text
    from maclaurin.mixers.overview import explanation, overview

    facts = overview(name or "*", d_model, num_heads, LENGTHS)
    if name == facts[0]["name"]:
        facts[0] |= explanation(facts[0]["name"], d_model, num_heads, CONTEXTS)
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    table = Table(title=f"Mixers at d_model {d_model}, {num_heads} heads (state of one layer and sequence, float32)")
    for column in ("mixer", "training", "decoding"):
        table.add_column(column)
    for column in (*(f"{length // 1024}k tokens" for length in LENGTHS), "crossover"):
        table.add_column(column, justify="right")
    table.add_column("what it is")
    for row in facts:
        sizes = (size_text(nbytes) for nbytes in row["state_nbytes"].values())
        crossover = row["crossover"]
        table.add_row(
            row["name"],
            row["training"],
            row["decoding"],
            *sizes,
            "never" if crossover is None else str(crossover),
            row["summary"],
        )
    console = _console()
    console.print(table)
    console.print("crossover: from this many tokens on the state is no larger than softmax's keys and values\n")
    for row in facts:
        console.print(f"[bold]{row['name']}[/bold]  {row['citation']}")
        options = ", ".join(f"{option}={value!r}" for option, value in row["options"].items())
        for title, text in (("", options), *(_explained(row) if "maths" in row else ())):
            if title:
                console.print(f"\n[bold]{title}[/bold]")
            console.print(Padding(Text(text), (0, 0, 0, 4)))


def _explained(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The sections about one mixer."""
    yield "what its options mean", row["help"]
    yield "maths", row["maths"]
    shapes = (f"{tensor} {' x '.join(map(str, shape)) or '1'}" for tensor, shape in row["state"].items())
    yield f"state after {CONTEXTS[-1]} tokens", "\n".join(shapes)
    lines = (
        f"{int(context):,} tokens: {cost['training']:,} training (forward), {cost['decoding']:,} decoding"
        for context, cost in row["multiply_adds"].items()
    )
    yield "multiply-adds a token, in products of matrices", "\n".join(lines)
    both = "can" if row["bidirectional"] else "cannot"
    yield "parameters", f"{row['parameters']:,}; it {both} see whole sequences (causal=False)"


@app.command()
def doctor(
    tune: Annotated[
        bool, typer.Option("--tune", help="Measure which form is fastest at which length, and store it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print versions, devices, backends and what is missing, and check the arithmetic of this machine."""
    from maclaurin.machine.doctor import examine

    if tune:
        from maclaurin.bench.tune import measure
        from maclaurin.ops.crossover import store, tuned_file

        store(measure(partial(print, file=sys.stderr)))
        print(f"stored in {tuned_file()}", file=sys.stderr)
    report = examine()
    if as_json:
        print(json.dumps(report, indent=2))
        return
    table = Table(show_header=False)
    for section in ("versions", "devices", "backends", "checks"):
        for key, value in report[section].items():
            table.add_row(section, key, "not installed" if value is None else value)
    table.add_row("compiler", "C++", report["compiler"] or "not found")
    for sentence in report["missing"]:
        table.add_row("missing", "", sentence)
    _console().print(table)


# these commands have the fields of a dataclass as flags, which `transformers` parses
RECIPE_FLAGS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command(context_settings=RECIPE_FLAGS)
def train(context: typer.Context) -> None:
    """Train a language model: flags, or --config FILE.yaml with the same names; --resume goes on."""
    from maclaurin.training.command import execute

    execute(context.args)


@app.command(context_settings=RECIPE_FLAGS)
def compare(context: typer.Context) -> None:
    """Train several mixers at an equal budget and print which one wins; goes on where it was interrupted."""
    from maclaurin.training.compare import execute, plan, summary
    from maclaurin.training.flags import parse_compare
    from maclaurin.training.tables import LiveTable, result_table

    recipe, names, seeds = parse_compare(context.args)
    runs = plan(recipe, names, seeds)
    alone = locked(Path(recipe.output) / "compare.lock", f"comparison {recipe.output!r}")
    try:
        with alone, LiveTable(runs, recipe.steps) as table:
            for run in runs:
                if run.result() is None:
                    execute(run, partial(table.update, run))
                table.update(run, {})
    except STOPS as stop:
        print("maclaurin: stopped; the same command goes on", file=sys.stderr)
        raise SystemExit(exit_code(stop)) from None
    rows = summary(runs)
    path = Path(recipe.output) / "compare.json"
    command = shlex.join(["maclaurin", "compare", *context.args])
    write_json(path, {"command": command, "recipe": vars(recipe), "rows": rows})
    console = _console()
    console.print(result_table(rows, recipe))
    console.print(f"figures: {path}")
    _write_page(path.parent, sys.stdout)


@app.command()
def report(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders with runs of `maclaurin train`, `compare` or `eval --suite`.")
    ],
    output: Annotated[Path | None, typer.Option(help="The page; report.html in the first folder if not given.")] = None,
    png: Annotated[Path | None, typer.Option(help="Also write every figure as a PNG file into this folder.")] = None,
    measure: Annotated[bool, typer.Option(help="Time a layer of each mixer on this machine, up to 20 seconds.")] = True,
) -> None:
    """Write one self-contained HTML page about runs and suites: curves, results, cost, memory, and how they were made."""
    from maclaurin.report import build

    path = output or folders[0] / "report.html"
    page = build(folders, measure=measure, command=shlex.join(["maclaurin", *sys.argv[1:]]))
    page.write(path)
    if png is not None:
        from maclaurin.page.png import export

        for file in export(page.charts(), png):
            print(file)
    print(path)


@app.command()
def bench(
    parts: Annotated[
        list[str] | None, typer.Argument(help="limits, attention, decode, mixers, peers, memory, training; all by default.")
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads of PyTorch and of the kernels.")] = 2,
    long: Annotated[bool, typer.Option("--long", help="The longest sequences too, which take softmax minutes.")] = False,
    output: Annotated[Path, typer.Option(help="Folder of bench.json and of the page with the figures.")] = Path("results"),
) -> None:
    """Measure speed and memory against PyTorch's attention and other peers, side by side in one process."""
    from maclaurin.bench import run
    from maclaurin.bench.page import page

    results = run(parts or [], threads=threads, long=long, console=_console())
    write_json(output / "bench.json", results.to_json())
    page(results).write(output / "bench.html")
    print(output / "bench.json")
    print(output / "bench.html")


@app.command(context_settings=RECIPE_FLAGS)
def lab(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="An experiment, or all; without it, what there is.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer draws and smaller sizes: all in minutes.")] = False,
    seed: Annotated[int, typer.Option(help="Of all draws.")] = 0,
    jobs: Annotated[int | None, typer.Option(help="Of `all`: processes side by side; as many as cores.")] = None,
    output: Annotated[Path, typer.Option(help="Folder of the figures and the page.")] = Path("results/lab"),
    png: Annotated[Path | None, typer.Option(help="Also write every figure as a PNG file into this folder.")] = None,
    as_json: Json = False,
) -> None:
    """Compute claims of the theory, beside the published numbers, and say which held."""
    from maclaurin.lab import command
    from maclaurin.lab.run import keep

    if name is None or name in ("--help", "-h"):
        command.contents(_console())
        return
    if name == "all":
        results = command.everything(output, quick=quick, seed=seed, jobs=jobs)
    else:
        results = [command.one(name, context.args, quick=quick, seed=seed)]
        keep(results[0], output)
    if as_json:
        print(json.dumps([json.loads(result.to_json()) for result in results], indent=2))
    else:
        command.show(results, _console())
    for path in command.write_page(results, output, png):
        print(path, file=sys.stderr if as_json else sys.stdout)


@app.command(context_settings=RECIPE_FLAGS)
def convert(context: typer.Context) -> None:
    """Make a trained softmax model linear: transfer, recover, evaluate. The same command again goes on where it stopped."""
    from maclaurin.convert.command import execute, parse

    flags = parse(context.args)
    if (folder := execute(flags, _console())) is not None:
        _write_page(folder, sys.stderr if flags["json"] else sys.stdout)


@app.command()
def generate(
    model: Annotated[str, typer.Argument(help="Folder of a trained model.")],
    prompt: Annotated[str | None, typer.Option(help="Text to continue.")] = None,
    file: Annotated[Path | None, typer.Option(help="File with the text to continue; without both, standard input.")] = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "--max_new_tokens", help="Tokens at most.")] = 200,
    temperature: Annotated[
        float, typer.Option(help="Of the distribution tokens are drawn from; 0 for the likeliest.")
    ] = 0.8,
    top_p: Annotated[float, typer.Option("--top-p", "--top_p", help="Only the likeliest tokens of this share.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    as_json: Json = False,
) -> None:
    """Continue a text: streams it, then says how fast it was and what the state takes."""
    from maclaurin.common.sizes import size_text
    from maclaurin.models.folder import open_model
    from maclaurin.models.generation import continue_text

    if prompt is not None and file is not None:
        raise ValueError("give --prompt or --file, not both")
    text = _text_of(file) if prompt is None else prompt
    opened, tokenizer = open_model(model)
    if not as_json:
        _write(text)
    result = continue_text(
        opened,
        tokenizer,
        text,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        write=None if as_json else _write,
    )
    if as_json:
        print(json.dumps(dataclasses.asdict(result), indent=2))
        return
    print()
    speed = "" if result.tokens_per_second is None else f" at {result.tokens_per_second:,.0f} tokens/s"
    print(
        f"{result.prompt_tokens} tokens read in {result.prefill_seconds:.2f} s, {result.new_tokens} written{speed}, "
        f"state {size_text(result.state_bytes)}",
        file=sys.stderr,
    )


@app.command(name="eval")
def evaluate(
    model: Annotated[str | None, typer.Argument(help="Folder of a trained model.")] = None,
    text: Annotated[
        str | None,
        typer.Argument(
            help="A file or folder, - for standard input, or a corpus, of which the held-out part is taken; "
            "without it, that of the corpus it was trained on."
        ),
    ] = None,
    text_field: Annotated[
        str | None, typer.Option("--text-field", "--text_field", help="Field of the text in .jsonl and .parquet.")
    ] = None,
    context: Annotated[int, typer.Option(help="Tokens a prediction may look back; 0 for the length it was trained on.")] = 0,
    suite: Annotated[
        str | None, typer.Option(help="Instead of a model: train small ones for recall, track, needle, lra, vision or swax.")
    ] = None,
    preset: Annotated[str, typer.Option(help="Of the suite: quick, standard or paper.")] = "quick",
    mixers: Annotated[str | None, typer.Option(help="Rows of the suite, or any mixers, with commas between.")] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Models of each row and learning rate; the preset's if not given.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps at most; the preset's if not given.")] = None,
    learning_rates: Annotated[
        str | None, typer.Option("--learning-rates", "--learning_rates", help="The grid, with commas between.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder with the datasets of lra: aan, imdb, cifar10; else the hub.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Processes side by side; as many as cores if not given.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder of the suite; results/SUITE-PRESET if not given.")] = None,
    as_json: Json = False,
) -> None:
    """Score a model on a text: loss, perplexity, bits per byte. Or, with --suite, what mixers can do: recall, tracking, …"""
    if suite is not None:
        from maclaurin.evals.command import Command
        from maclaurin.evals.planning import plan

        experiments = plan(
            suite,
            preset,
            mixers=_comma_list(mixers),
            seeds=seeds,
            steps=steps,
            learning_rates=[_number("learning_rates", rate) for rate in _comma_list(learning_rates)],
            data=data,
        )
        command = Command(suite, experiments, output or Path("results") / f"{suite}-{preset}", _console(), as_json)
        if model is None:
            command.run(jobs)
        else:
            command.run_on(model)
        return
    if model is None:
        raise ValueError("give the folder of a trained model, or --suite recall, track, needle, lra, vision or swax")
    from maclaurin.evals import score_text
    from maclaurin.evals.text import documents_of
    from maclaurin.models.folder import open_model

    opened, tokenizer = open_model(model)
    screen = Console(stderr=True)
    texts = iter([sys.stdin.read()]) if text == "-" else documents_of(model, text, text_field)
    watched = track(texts, "documents", console=screen, transient=True, disable=not screen.is_terminal)
    score = score_text(opened, tokenizer, watched, context=context or opened.config.max_position_embeddings)
    if as_json:
        print(json.dumps(dataclasses.asdict(score), indent=2))
        return
    print(
        f"loss {score.loss:.4f} nats a token, perplexity {score.perplexity:.4g}, {score.bits_per_byte:.4f} bits a byte "
        f"({score.tokens:,} tokens, {score.bytes:,} bytes, {score.documents:,} documents)"
    )


def _comma_list(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} must be numbers with commas between, got {text!r}") from None


@app.command(name="lm_eval", context_settings=RECIPE_FLAGS)
def lm_eval(context: typer.Context) -> None:
    """The lm-evaluation-harness, which then knows the models of this package: all flags are those of lm_eval."""
    if importlib.util.find_spec("lm_eval") is None:
        raise ValueError("lm_eval is not installed: pip install 'lm-eval[hf]'")
    import lm_eval.__main__ as harness

    import maclaurin.models  # noqa: F401 - makes the Auto classes know them

    sys.argv = ["lm_eval", *context.args]
    harness.cli_evaluate()


def _text_of(file: Path | None) -> str:
    if file is not None:
        return file.read_text(encoding="utf-8")
    if sys.stdin.isatty():
        raise ValueError("give a text to continue: --prompt TEXT, --file FILE, or on standard input")
    return sys.stdin.read()


def _write_page(folder: Path, stream: TextIO) -> None:
    """The page about everything in a folder, and its path or why there is none."""
    from maclaurin.page import missing
    from maclaurin.report import build

    if sentence := missing():
        print(f"no page: {sentence}", file=stream)
        return
    page = folder / "report.html"
    build([folder], command=shlex.join(["maclaurin", "report", str(folder)])).write(page)
    print(page, file=stream)


def _write(text: str) -> None:
    print(text, end="", flush=True)


def _console() -> Console:
    """As wide as the terminal; as wide as the text where the output goes to a file."""
    return Console(width=None if sys.stdout.isatty() else 200, highlight=False)


def main(*args: Any) -> None:
    raise_on_terminate()
    with errors_as_sentences():
        app(*args)


if __name__ == "__main__":
    main()
