"""A saved model, loaded by the Auto classes, continues text exactly as repeated full forwards would."""

import logging

import pytest
import torch
from transformers import AutoModelForCausalLM

import maclaurin
from maclaurin.data.tokenizer import byte_tokenizer
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM, StateCache

MIXERS = maclaurin.available_mixers()
every_mixer = pytest.mark.parametrize("mixer", [*MIXERS, ["2mamba", "softmax"], ["mlstm", "sliding-window"]], ids=str)

SMALL_STATES = {
    "2mamba": {"fold_at": 9, "fold_every": 4},
    "taylor": {"fold_at": 7, "fold_every": 3},
    "sliding-window": {"window": 7},
}


def small(mixer, mixer_options=SMALL_STATES, vocab_size=50, **fields):
    torch.manual_seed(0)
    config = MaclaurinConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        mixer=mixer,
        mixer_options=mixer_options,
        eos_token_id=None,
        pad_token_id=0,
        initializer_range=0.5,
        **fields,
    )
    return MaclaurinForCausalLM(config).eval()


def greedy(model, prompt, new_tokens):
    """By full forwards, no cache."""
    ids, logits = prompt, []
    for _ in range(new_tokens):
        with torch.no_grad():
            last = model(ids, use_cache=False).logits[:, -1]
        logits.append(last)
        ids = torch.cat([ids, last.argmax(-1, keepdim=True)], dim=1)
    return ids, torch.stack(logits, dim=1)


@every_mixer
def test_generate_equals_full_forwards(mixer, tmp_path):
    model = small(mixer)
    model.save_pretrained(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} <= {".safetensors", ".json"}
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    prompt = torch.randint(1, 50, (2, 7))
    expected, logits = greedy(model, prompt, 12)
    result = loaded.generate(prompt, max_new_tokens=12, do_sample=False, return_dict_in_generate=True, output_logits=True)
    assert torch.equal(result.sequences, expected)
    assert (torch.stack(result.logits, dim=1) - logits).abs().max() <= 1e-4


@every_mixer
def test_left_padded_prompts_continue_as_if_alone(mixer):
    model = small(mixer)
    prompts = [torch.randint(1, 50, (1, length)) for length in (9, 2, 5)]
    batch, mask = torch.zeros(3, 9, dtype=torch.long), torch.zeros(3, 9, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        batch[row, 9 - prompt.shape[1] :] = prompt
        mask[row, 9 - prompt.shape[1] :] = 1
    result = model.generate(
        batch, attention_mask=mask, max_new_tokens=10, do_sample=False, return_dict_in_generate=True, output_logits=True
    )
    together = torch.stack(result.logits, dim=1)
    for row, prompt in enumerate(prompts):
        expected, logits = greedy(model, prompt, 10)
        assert torch.equal(result.sequences[row, 9:], expected[0, prompt.shape[1] :])
        assert (together[row] - logits[0]).abs().max() <= 1e-4


@every_mixer
def test_beams_and_samples(mixer):
    model = small(mixer)
    prompt = torch.randint(1, 50, (2, 6))
    with_cache, without = (
        model.generate(prompt, max_new_tokens=8, num_beams=3, num_return_sequences=2, do_sample=False, use_cache=use)
        for use in (True, False)
    )
    assert torch.equal(with_cache, without)
    samples = []
    for use in (True, False):
        torch.manual_seed(1)
        samples.append(model.generate(prompt, max_new_tokens=8, do_sample=True, num_return_sequences=3, use_cache=use))
    assert torch.equal(*samples)


@every_mixer
def test_a_cache_held_by_the_user_takes_only_new_tokens(mixer):
    model = small(mixer)
    ids = torch.randint(1, 50, (2, 15))
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        cache, pieces = None, []
        for piece in ids.split([4, 6, 1, 4], dim=1):
            output = model(piece, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            pieces.append(output.logits)
    assert isinstance(cache, StateCache)
    assert cache.get_seq_length() == 15
    assert (torch.cat(pieces, dim=1) - expected).abs().max() <= 1e-4


def test_crop_is_exact_or_refused():
    ids = torch.randint(1, 50, (1, 12))
    softmax = small("softmax")
    with torch.no_grad():
        cache = softmax(ids, use_cache=True).past_key_values
        cache.crop(-4)
        expected = softmax(ids, use_cache=False).logits[:, 8:]
        got = softmax(ids[:, 8:], past_key_values=cache).logits
        assert (got - expected).abs().max() <= 1e-4
        folded = small("2mamba")(ids, use_cache=True).past_key_values
    folded.crop(0)
    with pytest.raises(ValueError, match="cannot be cropped"):
        folded.crop(-1)
    with torch.no_grad():
        turned = small("softmax", mixer_options={"rotary": "selective"})(ids, use_cache=True).past_key_values
    with pytest.raises(ValueError, match="cannot be cropped"):
        turned.crop(-1)
    with pytest.raises(ValueError, match="minus the number of tokens"):
        cache.crop(4)


@every_mixer
def test_a_prompt_may_be_read_in_chunks(mixer):
    model = small(mixer)
    batch, mask = torch.randint(1, 50, (2, 23)), torch.ones(2, 23, dtype=torch.long)
    mask[1, :9] = 0
    whole, chunked = (
        model.generate(batch, attention_mask=mask, max_new_tokens=9, do_sample=False, prefill_chunk_size=size)
        for size in (None, 5)
    )
    assert torch.equal(whole, chunked)


def test_a_cache_made_for_keys_and_values_is_refused():
    with pytest.raises(ValueError, match="cache_implementation 'static' is for a KV cache"):
        small("2mamba").generate(torch.ones(1, 3, dtype=torch.long), max_new_tokens=2, cache_implementation="static")


def test_streaming():
    from transformers.generation.streamers import BaseStreamer

    class Collect(BaseStreamer):
        def __init__(self):
            self.tokens = []

        def put(self, value):
            self.tokens += value.flatten().tolist()

        def end(self):
            self.tokens.append("end")

    model, streamer = small("2mamba"), Collect()
    prompt = torch.randint(1, 50, (1, 5))
    result = model.generate(prompt, max_new_tokens=6, do_sample=False, streamer=streamer)
    assert streamer.tokens == [*result[0].tolist(), "end"]


def test_text_ends_at_a_stop_string():
    model, tokenizer = small("2mamba", vocab_size=257), byte_tokenizer()
    prompt = tokenizer("and so\n", return_tensors="pt")["input_ids"]
    letters = {"suppress_tokens": [*range(32), *range(127, 257)]}  # so that every token is text of its own
    whole, stopped = (
        tokenizer.decode(model.generate(prompt, max_new_tokens=16, do_sample=False, **letters, **stop)[0, prompt.shape[1] :])
        for stop in ({}, {"tokenizer": tokenizer, "stop_strings": ["never\n"]})
    )
    assert stopped == whole and len(whole) == 16
    stop = {"tokenizer": tokenizer, "stop_strings": [whole[6:9], "never\n"]}
    found = model.generate(prompt, max_new_tokens=16, do_sample=False, **letters, **stop)[0, prompt.shape[1] :]
    assert tokenizer.decode(found) == whole[: whole.index(whole[6:9]) + 3]


def test_text_beyond_the_training_length_is_no_reason_to_warn(caplog):
    """No mixer has a table of positions that could end."""
    model = small("2mamba", max_position_embeddings=8)
    monitored = logging.getLogger("transformers")
    monitored.addHandler(caplog.handler)
    try:
        result = model.generate(torch.ones(1, 5, dtype=torch.long), max_new_tokens=7, do_sample=False)
    finally:
        monitored.removeHandler(caplog.handler)
    assert result.shape == (1, 12)
    assert "maximum length" not in caplog.text
