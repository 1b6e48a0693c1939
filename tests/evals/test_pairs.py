"""One answer for two documents: the Arena's retrieval, on papers made here."""

import numpy as np
import pytest
import torch

from maclaurin.data.tasks import Labelled
from maclaurin.evals.budget import matched, parameters
from maclaurin.evals.cells import Cell, Problem, Row, Setting
from maclaurin.evals.learn import learn
from maclaurin.evals.models import build
from maclaurin.evals.planning import plan

SETTING = Setting("pairs", width=16, heads=2, layers=1, inner=16, steps=150, batch=32)


@pytest.fixture
def papers(tmp_path):
    """Texts of one letter; one cites the other if the letters agree. Lengths differ, so most are padded."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "aan"
    folder.mkdir()
    for name, count in (("train", 400), ("eval", 60), ("test", 300)):
        lines = []
        for label in rng.integers(2, size=count):
            first, second = rng.choice(4, 2, replace=False)
            texts = ("abcd"[letter] * rng.integers(3, 9) for letter in (first, first if label else second))
            lines.append("\t".join([f"{label}.0", "A", "B", *texts]))
        (folder / f"new_aan_pairs.{name}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def problem(folder, **options):
    return Problem("aan", {"source": str(folder), "length": 8, **options})


def cell(folder, label):
    train, test = (problem(folder),), (problem(folder, split="test"),)
    return Cell("pairs", label, Row((label,)), SETTING, train, test, 1e-2, 0)


def test_pairs_are_learned(papers):
    outcome = learn(cell(papers, "2mamba"))
    (score,) = outcome.scores
    assert score.examples == 300 and score.length == 8  # all of the test, in two parts; the length of one document
    assert score.accuracy > 0.95


def test_the_two_documents_go_through_one_encoder_and_padding_is_not_seen(papers):
    torch.manual_seed(0)
    model = build(Row(("2mamba",)), SETTING, problem(papers).task()).eval()
    tokens = torch.randint(1, 257, (3, 2, 8))
    lengths = torch.tensor([[8, 3], [5, 8], [8, 8]])
    heard = []
    model.classifier.register_forward_pre_hook(lambda _, inputs: heard.append(inputs[0]))
    logits, _ = model(Labelled(tokens, torch.zeros(3).long(), lengths))
    x, y, product, difference = heard[0].chunk(4, -1)
    torch.testing.assert_close(product, x * y)
    torch.testing.assert_close(difference, x - y)
    model(Labelled(tokens.flip(1), torch.zeros(3).long(), lengths.flip(1)))
    torch.testing.assert_close(heard[1].chunk(4, -1)[0], y)
    torch.testing.assert_close(heard[1].chunk(4, -1)[1], x)
    padded = torch.where(torch.arange(8) < lengths[..., None], tokens, 7)
    again, _ = model(Labelled(padded, torch.zeros(3).long(), lengths))
    torch.testing.assert_close(again, logits)
    alone = model.model(tokens[0, 1:, :3], use_cache=False).last_hidden_state.mean(1)
    torch.testing.assert_close(y[0], alone[0])
    changed = tokens.clone()
    changed[:, 1, 0] = 1 + changed[:, 1, 0] % 256
    assert not torch.allclose(model(Labelled(changed, torch.zeros(3).long(), lengths))[0], logits)


def test_an_empty_document_is_an_answer_too(papers):
    model = build(Row(("linear",)), SETTING, problem(papers).task()).eval()
    logits, _ = model(Labelled(torch.zeros(1, 2, 8).long(), torch.zeros(1).long(), torch.zeros(1, 2).long()))
    assert logits.isfinite().all()


def test_pairs_have_equal_parameters(papers):
    task, row, softmax = problem(papers).task(), Row(("2mamba",)), Row(("softmax",))
    wide = Setting("pairs", width=64, heads=4, layers=2, inner=128)
    assert parameters(row, matched(row, wide, task, softmax), task) == pytest.approx(
        parameters(softmax, wide, task), rel=0.01
    )


def test_the_arena_reads_the_folder_of_its_data(papers):
    planned = {experiment.name: experiment for experiment in plan("lra", "paper", data=papers.parent)}
    assert planned["aan"].setting.model == "pairs"
    assert [found.options["source"] for found in (*planned["aan"].train, *planned["aan"].test)] == [str(papers)] * 2
    assert planned["aan"].test[0].options["split"] == "test"
    assert "source" not in planned["imdb"].train[0].options  # not in the folder: from the hub
    with pytest.raises(ValueError, match="data must be a folder"):
        plan("lra", "paper", data=papers / "nowhere")
