"""Probes on a language model from its folder: what they need is a folder and a text."""

from __future__ import annotations

import pytest
import torch
import transformers

import maclaurin
from maclaurin.data import byte_tokenizer
from maclaurin.lab.experiments.injectivity import confusion
from maclaurin.lab.experiments.locality import local_mass, masking
from maclaurin.lab.experiments.series.orders import layer_orders
from maclaurin.lab.traces import checkpoint, of_tokens
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM
from maclaurin.ops.softmax import softmax_attention

SIZE = {
    "vocab_size": 259,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
GPT2 = {"vocab_size": 259, "n_embd": 32, "n_layer": 1, "n_head": 2}
IDS = torch.arange(42).view(2, 21)


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("\n\n".join(f"Document {n}: " + "to be or not to be, that is the question. " * 20 for n in range(3)))
    return str(file)


def test_probes_on_a_language_model(trained, text) -> None:
    traced = checkpoint(str(trained), text, tokens=32, texts=2)
    for layer in traced.layers():
        weight = layer.weights()
        assert (weight.triu(1) == 0).all()
        torch.testing.assert_close(weight.sum(-1), torch.ones_like(weight.sum(-1)))
    assert all(0 < share < 1 for share in local_mass(traced).layers)
    assert confusion(traced).of > 0
    masked = masking(traced, [2, 4], seed=0, draws=1)
    assert len(masked.lost) == 2


def test_hiding_nothing_changes_nothing(trained, text) -> None:
    traced = checkpoint(str(trained), text, tokens=32, texts=1)
    with torch.no_grad():
        before = traced.run()
        with traced.hiding(lambda: torch.zeros(32, 32, dtype=torch.bool)):
            assert torch.equal(traced.run(), before)


def test_documents_that_are_too_short_are_refused(trained, text) -> None:
    with pytest.raises(ValueError, match="has more than 1000000 tokens"):
        checkpoint(str(trained), text, tokens=10**6, texts=1)


def test_what_a_layer_projects_is_what_it_attends_with() -> None:
    torch.manual_seed(0)
    model = MaclaurinForCausalLM(MaclaurinConfig(**SIZE, mixer=["softmax", "s6"])).eval()
    seen: list[torch.Tensor] = []
    model.model.layers[0].mixer.out_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    (layer,) = of_tokens("tiny", model, IDS).layers()
    assert (layer.index, layer.kind) == (0, "softmax")
    y, _ = softmax_attention(layer.q, layer.k, layer.v)
    torch.testing.assert_close(y.flatten(2), seen[0], atol=1e-5, rtol=1e-4)


@pytest.fixture
def llama() -> transformers.LlamaForCausalLM:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZE, num_key_value_heads=2, attn_implementation="eager")
    return transformers.LlamaForCausalLM(config).eval()


def test_a_model_of_transformers_is_read_off_its_attention(llama) -> None:
    traced = of_tokens("llama", llama, IDS)
    expected = llama(IDS[:, :-1], output_attentions=True)
    layers = traced.layers()
    assert [(layer.index, layer.kind) for layer in layers] == [(0, "softmax"), (1, "softmax")]
    for layer, attention in zip(layers, expected.attentions, strict=True):
        found = layer.weights()
        torch.testing.assert_close(found, attention.double(), atol=1e-5, rtol=1e-4)
    assert torch.equal(traced.run(), (expected.logits.argmax(-1) == IDS[:, 1:]).flatten())


def test_keys_of_it_can_be_hidden(llama) -> None:
    """A token that nobody sees might as well be another one, for all that come behind it."""
    hidden = torch.zeros(20, 20, dtype=torch.bool)
    hidden[6:, 5] = True
    other = IDS.clone()
    other[:, 5] += 1
    answers = []
    for ids in (IDS, other):
        traced = of_tokens("llama", llama, ids)
        with torch.no_grad(), traced.hiding(lambda: hidden):
            answers.append(traced.model(ids[:, :-1], use_cache=False).logits[:, 6:])
    torch.testing.assert_close(*answers)
    with torch.no_grad():
        seen = traced.model(other[:, :-1], use_cache=False).logits[:, 6:]
    assert (seen - answers[1]).abs().max() > 1e-3


def test_folders_of_transformers(tmp_path, llama, text) -> None:
    for name, model in (("llama", llama), ("gpt2", transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)))):
        model.save_pretrained(tmp_path / name)
        byte_tokenizer().save_pretrained(tmp_path / name)
    traced = checkpoint(str(tmp_path / "llama"), text, tokens=32, texts=2)
    assert confusion(traced).of > 0 and len(masking(traced, [2], seed=0, draws=1).lost) == 1
    assert [layer.dominant for layer in layer_orders(traced)] == [0, 0]  # untrained: scores near 0
    with pytest.raises(ValueError, match="'gpt2': the lab looks into models of this project and into llama, mistral"):
        checkpoint(str(tmp_path / "gpt2"), text, tokens=32, texts=2)
    card = maclaurin.lab.card(str(tmp_path / "llama"), quick=True, tokens=48)
    assert "of 48 tokens" in card.table()
