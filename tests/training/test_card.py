"""A run ends with a model card that says what the model is, and nothing about where it was made."""

import json

import yaml
from huggingface_hub import ModelCard

from maclaurin.mixers.registry import mixer_entry
from maclaurin.models import MaclaurinForCausalLM
from maclaurin.training.card import model_card
from maclaurin.training.recipe import Recipe


def test_the_card_of_a_run_has_its_figures(trained):
    text = (trained / "README.md").read_text()
    model = MaclaurinForCausalLM.from_pretrained(trained)
    log = [json.loads(line) for line in (trained / "log.jsonl").read_text().splitlines()]
    loss = [entry["eval_loss"] for entry in log if "eval_loss" in entry][-1]
    name = model.config.layer_mixers()[0]
    for said in (name, f"{model.num_parameters():,}", f"{loss:.4f} nats", mixer_entry(name).citation, "Apache-2.0"):
        assert said in text
    data = ModelCard.load(trained / "README.md").data
    assert (data.library_name, data.pipeline_tag, data.license) == ("transformers", "text-generation", "unknown")


def test_a_card_names_the_dataset_but_no_path(tmp_path):
    (tmp_path / "secrets").mkdir()
    model = MaclaurinForCausalLM(Recipe(num_hidden_layers=2, mixer="gla,softmax").config(vocab_size=9))
    local, hub = (
        model_card(Recipe(corpus=corpus, mixer="gla,softmax"), model, None)
        for corpus in (str(tmp_path / "secrets"), "owner/name")
    )
    assert "| Data | secrets," in local and str(tmp_path) not in local and "not measured" in local
    front = yaml.safe_load(hub.split("---")[1])
    assert front["datasets"] == ["owner/name"] and front["tags"] == ["maclaurin", "gla", "softmax"]


def test_a_card_names_the_validation_text_and_the_bound(tmp_path):
    (tmp_path / "other.txt").write_text("text")
    model = MaclaurinForCausalLM(Recipe(num_hidden_layers=1, mixer="gla").config(vocab_size=9))
    recipe = Recipe(corpus="stdlib", mixer="gla", tokens=8000, validation=str(tmp_path / "other.txt"))
    card = model_card(recipe, model, 1.5)
    assert "| Data | stdlib, its first 8,000 tokens, tokenizer" in card
    assert "1.5000 nats per token, on other.txt |" in card and str(tmp_path) not in card
