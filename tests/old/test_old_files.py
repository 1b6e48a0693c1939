"""Files that older code has written are read and gone on from as if it had stayed: `README.md` says which code that was."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from maclaurin import build_mixer, cli
from maclaurin.convert.result import Figures
from maclaurin.convert.run import convert_all
from maclaurin.evals.results import SuiteResult
from maclaurin.evals.summary import summary
from maclaurin.models import MaclaurinForCausalLM
from maclaurin.ops import State
from maclaurin.report import build
from maclaurin.training import Recipe, train
from maclaurin.training.conversion import Plan
from tests.old.cases import AFTER, CASES, NAMELESS, after, suite

HERE = Path(__file__).parent
EXPECTED = json.loads((HERE / "expected.json").read_text())
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
# ten steps of training, in which another order of the same sums grows
TRAINED = {"rtol": 1e-3, "atol": 1e-4}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A copy of the old files as the working directory, which their paths are relative to."""
    for name in ("run", "conversion"):
        shutil.copytree(HERE / name, tmp_path / name)
    shutil.copy(HERE / "songs.txt", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MACLAURIN_CACHE", str(tmp_path / "cache"))
    return tmp_path


def assert_same_weights(folder, expected):
    got, wanted = (load_file(path / "model.safetensors") for path in (folder, expected))
    assert got.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(got[name], wanted[name], **TRAINED)


@torch.no_grad()
@pytest.mark.parametrize("at_once", [True, False], ids=["at-once", "token-by-token"])
@pytest.mark.parametrize(
    ("folder", "name"), [*(("states", name) for name in CASES), *(("nameless", name) for name in NAMELESS)]
)
def test_an_old_state_goes_on(folder, name, at_once):
    state = State.load(HERE / folder / f"{name}.safetensors")
    mixer = CASES[name].build()
    outputs = []
    for tokens in after().split(AFTER if at_once else 1, dim=1):
        y, state = mixer(tokens, state)
        outputs.append(y)
    torch.testing.assert_close(torch.cat(outputs, dim=1), load_file(HERE / folder / "expected.safetensors")[name], **CLOSE)


@torch.no_grad()
def test_an_old_state_is_still_known_to_belong_to_its_mixer():
    with pytest.raises((TypeError, ValueError), match="gated-softmax"):
        build_mixer("softmax", 8, 2)(after(), State.load(HERE / "states" / "gated-softmax.safetensors"))


def test_a_loaded_old_state_is_one_of_today(tmp_path):
    """Saved again, joined with others and cut in rows, which reads every field of it."""
    for name in CASES:
        state = State.load(HERE / "states" / f"{name}.safetensors")
        state.save(tmp_path / "again.safetensors")
        again = State.load(tmp_path / "again.safetensors")
        both = State.cat([state, again]).select([3, 0])
        mixer = CASES[name].build()
        with torch.no_grad():
            y, _ = mixer(after().flip(0), both)
        torch.testing.assert_close(y, load_file(HERE / "states" / "expected.safetensors")[name].flip(0), **CLOSE)


@pytest.mark.parametrize("sealed", [True, False])
def test_an_old_run_goes_on_to_the_end_that_it_would_have_had(here, sealed):
    if not sealed:  # as still older code left its checkpoints
        (here / "run" / "checkpoint-110" / "manifest.json").unlink()
    result = train(Recipe.load(here / "run"), resume=True)
    assert result.finished and result.steps == 120
    assert_same_weights(here / "run", HERE / "model")
    steps = [json.loads(line)["step"] for line in (here / "run" / "log.jsonl").read_text().splitlines()]
    assert steps[0] == 6 and steps[-1] == 120 and steps == sorted(steps)


def test_an_old_model_writes_what_it_wrote():
    model = MaclaurinForCausalLM.from_pretrained(HERE / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(HERE / "model")
    prompt = tokenizer(EXPECTED["prompt"], return_tensors="pt", return_token_type_ids=False)
    tokens = model.generate(**prompt, do_sample=False, max_new_tokens=EXPECTED["new_tokens"])
    assert tokenizer.decode(tokens[0], skip_special_tokens=True) == EXPECTED["prompt"] + EXPECTED["text"]


@torch.no_grad()
def test_an_old_conversion_gives_the_logits_that_it_gave():
    model = AutoModelForCausalLM.from_pretrained(HERE / "conversion" / "model").eval()
    logits = model(torch.tensor(EXPECTED["ids"])).logits[0, -1]
    torch.testing.assert_close(logits, torch.tensor(EXPECTED["logits"]), **CLOSE)


def test_an_old_conversion_goes_on_to_the_end_that_it_would_have_had(here, monkeypatch):
    monkeypatch.chdir(here / "conversion")
    plan = json.loads(Path("begun/conversion.json").read_text())
    steps = Path("begun/transfer/losses.jsonl")
    assert json.loads(steps.read_text().splitlines()[-1])["step"] == 2
    (result,) = convert_all(Plan(**plan), print)
    assert result.finished
    assert [json.loads(line)["step"] for line in steps.read_text().splitlines()].count(1) == 1
    assert_same_weights(Path("begun"), HERE / "conversion" / "model")


def test_old_figures_of_a_conversion_are_written_as_they_were():
    stored = json.loads((HERE / "conversion" / "begun" / "evaluation.json").read_text())
    again = Figures.from_json(stored).to_json()
    assert again | {"plan": again["plan"] | stored["plan"]} == again  # fields that came since have their defaults
    assert again | {"plan": stored["plan"]} == stored


def test_a_report_shows_an_old_run(here):
    with pytest.raises(SystemExit) as ended:
        cli.main(["report", "run", "--no-measure", "--output", "page.html"])
    assert not ended.value.code
    page = (here / "page.html").read_text()
    assert "2mamba" in page and "108 of 120 steps" in page


def test_old_results_of_a_suite_are_those_of_today():
    """Read from its file, and from its cells, which are not trained again: the same table, written in the same way."""
    stored = json.loads((HERE / "suite" / "results.json").read_text())
    (table,) = SuiteResult.from_json(stored).tables
    errors = {cell.key: table.rows[-1].errors[0] for cell in suite().cells(2) if cell.label == "gla"}
    again = summary(suite(), HERE / "suite", errors)
    assert again.to_json() == table.to_json()
    assert table.to_json() == stored["tables"][0] | {"rows": [row.to_json() for row in table.rows]}
    for row, old in zip(table.rows, stored["tables"][0]["rows"], strict=True):
        assert row.to_json() | old == row.to_json()  # all that was there, and for a row without points what it lacked


def test_a_report_shows_an_old_suite():
    text = build([HERE / "suite"], measure=False).html()
    assert "mqar-pairs" in text and "no luck" in text and "cannot be read" not in text
