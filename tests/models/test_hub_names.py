"""Models by their name on the hub: fetched without a pickle, their code never run; and how text is sampled from them."""

import json
import shutil

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from maclaurin.cli import main
from maclaurin.models.folder import open_model
from maclaurin.models.generation import continue_text
from tests.hub import serving, use


@pytest.fixture
def hub(trained, tmp_path, monkeypatch):
    """With the trained model, whose owner left a pickle; one that needs code; one of pickles only; and a stock llama."""
    ignore = shutil.ignore_patterns("checkpoint-*", "tensorboard", "*.lock")
    made = {name: shutil.copytree(trained, tmp_path / name, ignore=ignore) for name in ("model", "code", "pickled", "llama")}
    for name in ("model", "pickled"):
        (made[name] / "pytorch_model.bin").write_bytes(b"never to be seen")
    (made["pickled"] / "model.safetensors").unlink()
    described = json.loads((made["code"] / "config.json").read_text())
    (made["code"] / "config.json").write_text(json.dumps(described | {"auto_map": {"AutoConfig": "evil.Config"}}))
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=described["vocab_size"], **sizes)).save_pretrained(made["llama"])
    with serving({f"models/owner/{name}": folder for name, folder in made.items()}) as server:
        use(monkeypatch, server.address, tmp_path / "cache")
        yield server


def generated(capsys, *arguments, code=0):
    with pytest.raises(SystemExit) as ended:
        main(["generate", *map(str, arguments), "--prompt", "9 green", "--max-new-tokens", "8"])
    said = capsys.readouterr()
    assert ended.value.code == code, said.err
    return said.out if code == 0 else said.err


def test_a_name_of_the_hub_is_what_its_folder_is(hub, trained, capsys):
    by_name = generated(capsys, "owner/model", "--temperature", 0)
    assert by_name == generated(capsys, trained, "--temperature", 0)
    assert not any(name.endswith((".bin", ".py")) for name in hub.asked)
    hub.stop()
    assert generated(capsys, "owner/model", "--temperature", 0) == by_name  # from the cache


def test_a_stock_model_of_transformers_continues_a_text(hub, capsys):
    figures = json.loads(generated(capsys, "owner/llama", "--temperature", 0, "--json"))
    assert figures["new_tokens"] >= 1 and figures["state_bytes"] > 0


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("owner/none", "model 'owner/none' is no folder here, and is unknown to the hub"),
        ("owner/code", "needs code of its own, which is never run"),
        ("owner/pickled", "has no .safetensors file on the hub, and pickles are never loaded"),
        ("nothing", "model 'nothing' is no folder here and no owner/name of the hub"),
        ("a/b/c", "model 'a/b/c' is no folder here and no owner/name of the hub"),
    ],
)
def test_what_cannot_be_had_is_one_sentence(hub, capsys, name, sentence):
    error = generated(capsys, name, code=2)
    assert sentence in error and len(error.splitlines()) == 1
    assert not any(asked.endswith((".bin", ".py")) for asked in hub.asked)
    assert "owner/code/model.safetensors" not in hub.asked


def test_sampling_narrowed_to_one_token_is_greedy(trained):
    """By count, by total probability, by likelihood: each leaves the likeliest token alone."""
    model, tokenizer = open_model(trained)

    def text(**options):
        return continue_text(model, tokenizer, "9 green", max_new_tokens=8, **options).text

    greedy = text(temperature=0)
    assert text(temperature=5.0, seed=1) != greedy
    for narrow in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
        assert text(temperature=5.0, seed=1, **narrow) == greedy
    assert text(temperature=0, repetition_penalty=1e3) != greedy


def test_sampling_is_from_all_tokens_unless_narrowed(trained, monkeypatch):
    """transformers itself would keep the 50 likeliest ones."""
    model, tokenizer = open_model(trained)
    seen = []
    sample = torch.multinomial

    def watch(probabilities, *args, **kwargs):
        seen.append(int((probabilities > 0).sum()))
        return sample(probabilities, *args, **kwargs)

    monkeypatch.setattr(torch, "multinomial", watch)
    continue_text(model, tokenizer, "9 green", max_new_tokens=2, temperature=1.0)
    assert seen and min(seen) > 50
    seen.clear()
    continue_text(model, tokenizer, "9 green", max_new_tokens=2, temperature=1.0, top_k=7)
    assert set(seen) == {7}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"top_k": -1}, "top_k must not be negative"),
        ({"min_p": 2.0}, "min_p must lie between 0 and 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be positive"),
    ],
)
def test_sampling_that_cannot_be(trained, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        continue_text(*open_model(trained), "9 green", **options)
