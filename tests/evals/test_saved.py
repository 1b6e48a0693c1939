"""A trained model answers needles."""

import json
from dataclasses import replace

import pytest
import torch

from maclaurin.cli import main
from maclaurin.evals.cells import Problem
from maclaurin.evals.learn import TEST_SEED
from maclaurin.evals.page import page
from maclaurin.evals.results import SuiteResult
from maclaurin.evals.saved import continuations, needle_table
from maclaurin.evals.suites import SUITES
from maclaurin.models.folder import open_model
from tests.evals.helpers import TINY, TRAIN, experiment


def needles(lengths, depths, examples):
    problems = tuple(Problem("passkey", {"length": length, "depth": depth}) for length in lengths for depth in depths)
    setting = replace(TINY, examples=examples)
    return experiment(name="passkey", train=problems, test=problems, axis="length", across="depth", setting=setting)


def test_a_trained_model_answers_needles(trained, tmp_path, monkeypatch, capsys):
    """Through the shell: a table, a file of figures and a page with a heat map, of a model of four steps of training."""
    monkeypatch.setitem(SUITES, "needle", lambda preset: [needles((16, 32), (0.0, 1.0), 3)])
    arguments = ["suite", "needle", "--model", str(trained), "--output", str(tmp_path)]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    printed = capsys.readouterr().out
    assert ended.value.code == 0 and trained.name in printed and "length 32" in printed and "eval.html" in printed
    results = json.loads((tmp_path / "results.json").read_text())
    (row,) = results["tables"][0]["rows"]
    assert [(point["length"], point["depth"], point["value"]) for point in row["points"]] == [
        (16, 0, 0),
        (16, 1, 0),
        (32, 0, 0),
        (32, 1, 0),
    ]
    assert row["points"][-1]["tokens"] > 200 and row["points"][-1]["state_bytes"] > 0
    charts = page(SuiteResult.from_json(results)).charts()
    (heat,) = (chart.figure for chart in charts if chart.figure.data[0].type == "heatmap")
    assert list(heat.data[0].x) == ["16", "32"] and list(heat.data[0].y) == ["0", "1"]
    html = (tmp_path / "eval.html").read_text()
    assert 'id="passkey-0"' in html and "A trained model continues every prompt" in html and "Every cell trains" not in html


def test_a_trained_model_that_says_the_key_is_right(trained, monkeypatch):
    model, tokenizer = open_model(str(trained))
    asked = needles((16, 32), (0.5,), 3)
    prompts = {prompt.text: prompt for problem in asked.test for prompt in problem.task().prompts(3, TEST_SEED)}

    def knows(self, ids, **_):
        """Says the key of every prompt but those of 32 characters of hay, where it says another one."""
        texts = tokenizer.batch_decode(ids)
        said = [prompts[text].answers[0] if len(text) < 275 else "0000" for text in texts]
        return torch.cat([ids, torch.tensor(tokenizer([f"{key}. " for key in said])["input_ids"])], 1)

    monkeypatch.setattr(type(model), "generate", knows)
    table = needle_table(model, tokenizer, "mine", asked, asked.test)
    lengths = sorted({len(text) for text in prompts})
    assert lengths[0] < 275 <= lengths[1]
    assert [point.value for point in table.rows[0].points] == [1, 0]


def test_prompts_begin_with_what_the_tokenizer_puts_in_front(trained, monkeypatch):
    """The thesis's models have seen a BOS before every text: without it they are asked something else."""
    from tokenizers.processors import TemplateProcessing

    model, tokenizer = open_model(str(trained))
    first = tokenizer.eos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{tokenizer.eos_token} $A", special_tokens=[(tokenizer.eos_token, first)]
    )
    seen = []

    def listen(self, ids, **_):
        seen.extend(ids.tolist())
        return ids

    monkeypatch.setattr(type(model), "generate", listen)
    asked = needles((16,), (0.5,), 3)
    needle_table(model, tokenizer, "mine", asked, asked.test)
    assert len(seen) == 3 and all(ids[0] == first != ids[1] for ids in seen)


def test_prompts_of_different_lengths_are_continued_as_if_alone(trained):
    model, _ = open_model(str(trained))
    prompts = [[5, 6, 7], [8, 9], [1, 2, 3], [4] * 9]
    assert continuations(model, prompts) == [continuations(model, [prompt])[0] for prompt in prompts]


def test_a_trained_model_answers_nothing_but_needles(trained):
    model, tokenizer = open_model(str(trained))
    with pytest.raises(ValueError, match="a trained model can answer needles, not 'mqar'"):
        needle_table(model, tokenizer, "mine", experiment(), TRAIN)
