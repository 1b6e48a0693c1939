"""RecurrentGemma beside transformers' own model: random weights of any of its sizes, caches beyond the window, packing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import RecurrentGemmaConfig, RecurrentGemmaForCausalLM

from maclaurin.convert.layouts import export_layout, import_layout
from maclaurin.models import MaclaurinForCausalLM

LAYOUT = "transformers-recurrent-gemma"
SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "attention_window_size": 7,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 1,
}
CHOICES: dict[str, dict[str, Any]] = {
    "as published": {"num_key_value_heads": 1},
    "other sizes": {"lru_width": 24, "conv1d_width": 2, "logits_soft_cap": 3.0, "num_hidden_layers": 3},
    "biases": {"attention_bias": True, "num_key_value_heads": 2, "block_types": ["attention", "recurrent"]},
    "no recurrence": {"block_types": ["attention"], "num_key_value_heads": 2},
    "no attention": {"block_types": ["recurrent"], "tie_word_embeddings": False},
    "rotated": {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 1.0}},
}
# transformers' own cache fails for channels other than the model's width, and without a layer of attention
UNCACHED = ("other sizes", "no attention")
each_choice = pytest.mark.parametrize("choice", CHOICES)


def both(choice: str, tmp_path: Path) -> tuple[RecurrentGemmaForCausalLM, MaclaurinForCausalLM]:
    torch.manual_seed(0)
    theirs = RecurrentGemmaForCausalLM(RecurrentGemmaConfig(**SIZES | CHOICES[choice])).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.2)
    theirs.save_pretrained(tmp_path / "theirs")
    list(import_layout(tmp_path / "theirs", tmp_path / "ours"))
    return theirs, MaclaurinForCausalLM.from_pretrained(tmp_path / "ours").eval()


def tokens(*shape: int) -> Tensor:
    return torch.randint(3, 61, shape, generator=torch.Generator().manual_seed(5))


@each_choice
def test_logits_are_those_of_transformers(choice: str, tmp_path: Path) -> None:
    theirs, ours = both(choice, tmp_path)
    ids = tokens(2, 40)
    with torch.no_grad():
        torch.testing.assert_close(ours(ids).logits, theirs(ids, use_cache=False).logits, rtol=0, atol=1e-5)


@each_choice
def test_greedy_tokens_are_those_of_transformers_beyond_the_window(choice: str, tmp_path: Path) -> None:
    for prompt in (1, 3, 12):
        theirs, ours = both(choice, tmp_path / str(prompt))  # theirs carries states from one call to the next
        asked: dict[str, Any] = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        expected = theirs.generate(tokens(2, prompt), use_cache=choice not in UNCACHED, **asked)
        assert ours.generate(tokens(2, prompt), **asked).tolist() == expected.tolist()


@each_choice
def test_packed_documents_are_those_of_transformers_alone(choice: str, tmp_path: Path) -> None:
    theirs, ours = both(choice, tmp_path)
    lengths = (9, 1, 14, 4)
    documents = tokens(1, sum(lengths)).split(lengths, dim=1)
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    with torch.no_grad():
        packed = ours(torch.cat(documents, dim=1), cu_seqlens=bounds, use_cache=False).logits
        alone = torch.cat([theirs(document, use_cache=False).logits for document in documents], dim=1)
    torch.testing.assert_close(packed, alone, rtol=0, atol=1e-5)


@each_choice
def test_transformers_reads_what_is_exported(choice: str, tmp_path: Path) -> None:
    theirs, _ = both(choice, tmp_path)
    list(export_layout(tmp_path / "ours", tmp_path / "back", LAYOUT))
    back = RecurrentGemmaForCausalLM.from_pretrained(tmp_path / "back").eval()
    weights = back.state_dict()
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(weights[name], tensor), name
    ids = tokens(2, 30)
    with torch.no_grad():
        assert torch.equal(back(ids, use_cache=False).logits, theirs(ids, use_cache=False).logits)


@each_choice
def test_bfloat16_computes_as_well_as_theirs(choice: str, tmp_path: Path) -> None:
    theirs, ours = both(choice, tmp_path)
    ids = tokens(2, 30)
    with torch.no_grad():
        exact = theirs(ids, use_cache=False).logits
        errors = [(model.bfloat16()(ids, use_cache=False).logits - exact).norm() for model in (ours, theirs)]
    assert errors[0] <= 2 * errors[1]
