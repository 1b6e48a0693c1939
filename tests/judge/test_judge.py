"""A tiny softmax model and a conversion of it, judged; what is stored is not judged again."""

import json
import math

import pytest
import torch
import torch.nn.functional as F

from maclaurin.cli import main
from maclaurin.convert import linearise
from maclaurin.judge.decoding import decoding, filled
from maclaurin.judge.result import Judgement
from maclaurin.judge.run import Question, judge
from maclaurin.judge.text import on_text
from maclaurin.models.generation import state_nbytes
from tests.convert.conftest import build, corpus, source, tokenizer  # noqa: F401 - fixtures

OPTIONS = {"num_features": 8, "window": 4}
ASKED = {"rows": 2, "length": 16, "questions": ["A CAT?", "TWO DOGS?"], "recall": [], "prompts": 2, "contexts": [24, 96]}


@pytest.fixture(scope="module")
def folders(source, tmp_path_factory):  # noqa: F811
    converted = tmp_path_factory.mktemp("judged") / "half"
    linearise(build("llama").eval(), ["hedgehog", "softmax"], OPTIONS).save_pretrained(converted)
    tokenizer().save_pretrained(converted)
    return str(source("llama")), str(converted)


@torch.no_grad()
def test_figures_on_text_are_their_formulas():
    teacher = build("llama").eval()
    other = linearise(teacher, ["hedgehog"] * 2, OPTIONS).eval()
    ids = torch.randint(3, 60, (1, 20), generator=torch.Generator().manual_seed(0))
    found = on_text({"teacher": teacher, "other": other}, teacher, [ids])
    wanted, got = (F.log_softmax(model(ids).logits[0, :-1], -1) for model in (teacher, other))
    assert found["other"].perplexity == pytest.approx(math.exp(F.nll_loss(got, ids[0, 1:])), rel=1e-4)
    assert found["other"].same_token == pytest.approx((got.argmax(-1) == wanted.argmax(-1)).double().mean().item())
    assert found["other"].kl == pytest.approx((wanted.exp() * (wanted - got)).sum(-1).mean().item(), rel=1e-4)
    assert found["teacher"].same_token == 1 and found["teacher"].kl == 0


@torch.no_grad()
@pytest.mark.parametrize("students", [None, ["hedgehog", "softmax"]])
def test_a_filled_cache_has_the_size_of_a_real_one(students):
    model = build("llama").eval()
    if students:
        model = linearise(model, students, OPTIONS).eval()
    ids = torch.randint(3, 60, (1, 96))
    assert state_nbytes(filled(model, 96)) == state_nbytes(model(ids, use_cache=True).past_key_values)
    filled_further = filled_from(model, 32, 96)
    assert filled_further.get_seq_length() == 96
    assert state_nbytes(filled_further) == state_nbytes(model(ids, use_cache=True).past_key_values)


def filled_from(model, prompt, length):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("maclaurin.judge.decoding.PROMPT", prompt)
        return filled(model, length)


def test_only_kept_layers_grow(monkeypatch):
    monkeypatch.setattr("maclaurin.judge.decoding.SECONDS", 0.0)
    teacher = build("llama").eval()
    half = linearise(teacher, ["hedgehog", "softmax"], OPTIONS).eval()
    found = decoding({"teacher": teacher, "half": half}, [64, 128])
    (small, large), (one, two) = ([step.state_bytes for step in found[name]] for name in ("teacher", "half"))
    assert two - one == pytest.approx((large - small) / 2, rel=0.1)


def test_a_judgement_goes_on_where_it_stopped(folders, corpus, tmp_path, monkeypatch):  # noqa: F811
    teacher, converted = folders
    monkeypatch.setattr("maclaurin.judge.decoding.SECONDS", 0.0)
    said = []
    asked = Question(corpus=corpus, **ASKED)
    first = judge(teacher, [converted], asked, tmp_path, said.append)
    assert len(said) == 6 and all(model.decoding and model.text and model.answers for model in first.models.values())
    again = judge(teacher, [converted], asked, tmp_path, said.append)
    assert again.to_json() == first.to_json() == Judgement.load(tmp_path).to_json() and len(said) == 6
    with pytest.raises(ValueError, match="holds a judgement with other settings"):
        judge(teacher, [converted], Question(corpus=corpus, **ASKED | {"rows": 1}), tmp_path, said.append)


def test_pass_keys_that_are_found_count(monkeypatch):
    from maclaurin.judge import answers

    prompts = []
    monkeypatch.setattr(answers, "_characters", lambda tokenizer, tokens: tokens)
    monkeypatch.setattr(answers, "_continued", lambda model, tokenizer, text, new: prompts.append(text) or text.split()[0])
    found = answers.recall(None, None, [300, 400], 3)
    assert [(one.tokens, one.right, one.prompts) for one in found] == [(300, 0, 3), (400, 0, 3)]
    keys = iter([text.split("pass key is ")[1].split(".")[0] for text in prompts])
    monkeypatch.setattr(answers, "_continued", lambda *_: next(keys))
    assert [one.right for one in answers.recall(None, None, [300, 400], 3)] == [3, 3]
    assert len(prompts) == 6


def test_the_command_writes_a_page(folders, corpus, tmp_path, monkeypatch, capsys):  # noqa: F811
    monkeypatch.setattr("maclaurin.judge.decoding.SECONDS", 0.0)
    questions = tmp_path / "questions.txt"
    questions.write_text("A CAT?\n")
    words = ["judge", *folders, "--output", str(tmp_path / "out"), "--corpus", corpus, "--rows", "2", "--length", "16"]
    words += ["--questions", str(questions), "--recall", "", "--contexts", "24", "--json"]
    with pytest.raises(SystemExit, match="0"):
        main(words)
    printed = json.loads(capsys.readouterr().out)
    html = (tmp_path / "out/report.html").read_text()
    assert all(f"{model['text']['perplexity']:.3f}" in html for model in printed["models"].values())
    assert "A CAT?" in html and "same next token" in html
