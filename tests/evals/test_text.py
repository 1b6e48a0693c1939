"""The score of a text is that of its tokens one by one, and a code length that anyone can recompute."""

import json
import math
import os
import subprocess
import sys

import pytest
import torch

from maclaurin.evals import score_text
from maclaurin.models.folder import open_model


@pytest.fixture(scope="module")
def opened(trained):
    return open_model(trained)


def token_by_token(model, tokenizer, texts, context):
    """−log p of every token but the first, each from the tokens of its window."""
    nats = []
    for text in texts:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        for position in range(1, ids.shape[1]):
            start = (position - 1) // context * context
            with torch.no_grad():
                logits = model(ids[:, start:position], use_cache=False).logits[0, -1]
            nats.append(-logits.log_softmax(-1)[ids[0, position]].item())
    return nats


@pytest.mark.parametrize("context", [1, 5, 16, 1000])
def test_every_token_but_a_documents_first_is_predicted_once(opened, context):
    model, tokenizer = opened
    texts = ["7 green bottles", "é", "x", "hanging on the wall, all of them"]
    nats = token_by_token(model, tokenizer, texts, context)
    score = score_text(model, tokenizer, texts, context=context)
    size = sum(len(text.encode()) for text in texts)
    assert (score.tokens, score.bytes, score.documents) == (len(nats), size, 4)
    assert score.loss == pytest.approx(sum(nats) / len(nats), rel=1e-5)
    assert score.perplexity == pytest.approx(math.exp(score.loss))
    assert score.bits_per_byte == pytest.approx((sum(nats) + 4 * math.log(257)) / math.log(2) / size, rel=1e-5)


@pytest.mark.parametrize("texts", [[], [""], ["x"], ["", "x", ""]])
def test_a_text_with_nothing_to_predict_is_refused(opened, texts):
    with pytest.raises(ValueError, match="the text is too short"):
        score_text(*opened, texts, context=8)


def test_context_must_be_positive(opened):
    with pytest.raises(ValueError, match="context must be at least 1"):
        score_text(*opened, ["some text"], context=0)


def test_the_harness_takes_a_saved_folder(trained, tmp_path):
    """`lm_eval --model hf`, offline, on a task made here whose right answers are what the model was trained on."""
    rows = [
        {"question": f"{i} green bottles hanging on the", "choices": [" wall", "\x01\x02\x03\x04\x05"]} for i in range(4)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "wall.yaml").write_text(
        "task: wall\ndataset_path: json\ntest_split: test\noutput_type: multiple_choice\n"
        f"dataset_kwargs: {{data_files: {{test: {tmp_path / 'rows.jsonl'}}}}}\n"
        'doc_to_text: "{{question}}"\ndoc_to_choice: "{{choices}}"\ndoc_to_target: 0\n'
        "metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]\n"
    )
    flags = ["--model_args", f"pretrained={trained}", "--tasks", "wall", "--include_path", str(tmp_path)]
    command = [sys.executable, "-m", "maclaurin.cli", "lm_eval", "--model", "hf", *flags]
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf"), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [*command, "--device", "cpu", "--batch_size", "2", "--output_path", str(tmp_path / "out")],
        env={**os.environ, **offline},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
    (figures,) = (tmp_path / "out").rglob("results*.json")
    assert json.loads(figures.read_text())["results"]["wall"]["acc,none"] == 1
