"""`continue_text`: what is streamed is what is returned, and it is the model's own continuation."""

import copy

import pytest
import torch

from maclaurin.models import generation
from maclaurin.models.folder import open_model
from maclaurin.models.generation import continue_text


@pytest.fixture(scope="module")
def opened(trained):
    return open_model(trained)


def test_greedy_text_is_that_of_full_forwards(opened):
    model, tokenizer = opened
    pieces = []
    result = continue_text(model, tokenizer, "9 green", max_new_tokens=30, temperature=0, write=pieces.append)
    ids = tokenizer("9 green", return_tensors="pt")["input_ids"]
    for _ in range(30):
        with torch.no_grad():
            ids = torch.cat([ids, model(ids, use_cache=False).logits[:, -1:].argmax(-1)], dim=1)
    assert result.text == tokenizer.decode(ids[0, 7:], skip_special_tokens=True) == "".join(pieces)
    assert (result.prompt_tokens, result.new_tokens) == (7, 30)
    assert result.prefill_seconds > 0 and result.tokens_per_second > 0
    # 36 tokens read or written: keys and values of 4 layers of width 128, beside decays and inputs of convolutions
    keys_and_values = 2 * 4 * 36 * 128 * 4
    assert keys_and_values < result.state_bytes < 1.2 * keys_and_values


def test_a_seed_decides_the_draws(opened):
    texts = [continue_text(*opened, "9 green", max_new_tokens=40, temperature=1.5, seed=seed).text for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]


def test_a_long_prompt_is_read_in_chunks(opened, monkeypatch):
    whole = continue_text(*opened, "8 green bottles " * 4, max_new_tokens=20, temperature=0).text
    monkeypatch.setattr(generation, "PREFILL_CHUNK", 7)
    lengths = []
    opened[0].model.register_forward_pre_hook(
        lambda module, args, kwargs: lengths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    assert continue_text(*opened, "8 green bottles " * 4, max_new_tokens=20, temperature=0).text == whole
    assert lengths[:10] == [7] * 9 + [1]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": ""}, "the prompt is empty"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        ({"temperature": -1}, "temperature must not be negative"),
        ({"top_p": 0}, "top_p must lie in"),
    ],
)
def test_bad_requests(opened, fields, message):
    with pytest.raises(ValueError, match=message):
        continue_text(*opened, **{"prompt": "x", **fields})


def test_weights_that_are_not_finite_are_a_sentence(opened):
    model, tokenizer = opened
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.lm_head.weight.fill_(torch.nan)
    for temperature in (0, 0.8):
        with pytest.raises(ValueError, match="not finite"):
            continue_text(broken, tokenizer, "green", max_new_tokens=2, temperature=temperature)
