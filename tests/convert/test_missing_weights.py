"""Weights that a folder lacks are named, wherever a model is loaded; they are never drawn at random."""

import shutil

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, LlamaForCausalLM

from maclaurin.convert.sources import recognise
from maclaurin.models.folder import open_model


def spoiled(folder, target, spoil):
    copy = shutil.copytree(folder, target)
    weights = load_file(copy / "model.safetensors")
    spoil(weights)
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    return copy


@pytest.mark.parametrize("name", ["bert", "bert-classes", "distilbert", "vit", "llama", "qwen3", "maclaurin"])
def test_a_source_without_one_of_its_weights_is_refused_by_name(source, tmp_path, name):
    lost = sorted(key for key in load_file(source(name) / "model.safetensors") if "pooler" not in key)[3]
    with pytest.raises(ValueError, match=lost.split(".", 1)[1]) as caught:
        recognise(str(spoiled(source(name), tmp_path / name, lambda weights: weights.pop(lost)))).load()
    assert len(str(caught.value).splitlines()) == 1


def test_a_weight_of_another_shape_is_refused_by_name(source, tmp_path):
    def shorten(weights):
        weights["model.norm.weight"] = weights["model.norm.weight"][:-1].clone()

    with pytest.raises(ValueError, match=r"other shapes than its config\.json says for model\.norm\.weight"):
        recognise(str(spoiled(source("llama"), tmp_path / "llama", shorten))).load()


def test_a_pooler_that_nothing_looks_at_may_be_missing(source, tmp_path):
    def drop(weights):
        for key in [key for key in weights if key.startswith("pooler.")]:
            del weights[key]

    recognise(str(spoiled(source("bert"), tmp_path / "bert", drop))).load()


def test_a_head_that_is_the_embedding_may_be_missing(source, tmp_path):
    copy = shutil.copytree(source("llama"), tmp_path / "tied")
    config = AutoConfig.from_pretrained(copy)
    config.tie_word_embeddings = True
    LlamaForCausalLM(config).save_pretrained(copy)
    assert "lm_head.weight" not in load_file(copy / "model.safetensors")
    recognise(str(copy)).load()


@pytest.mark.parametrize("name", ["llama", "maclaurin"])
def test_a_model_that_is_opened_has_all_its_weights(source, tmp_path, name):
    with pytest.raises(ValueError, match=r"model\.norm\.weight"):
        open_model(spoiled(source(name), tmp_path / name, lambda weights: weights.pop("model.norm.weight")))


def test_an_unfinished_run_is_pointed_at_whatever_lies_beside_it(tmp_path):
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-best", "checkpoint-12-best"):
        (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match="checkpoint-10 is its last checkpoint"):
        open_model(tmp_path)
