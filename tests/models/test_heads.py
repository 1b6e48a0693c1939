"""One folder serves every task of a decoder: the head that it lacks is new, a layer that it lacks is an error."""

import json
import logging
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from maclaurin.models import (
    MaclaurinConfig,
    MaclaurinForCausalLM,
    MaclaurinForImageClassification,
    MaclaurinModel,
    MaclaurinVisionConfig,
)
from maclaurin.models.folder import open_model
from tests.models.test_generate import every_mixer, small

TASKS = (AutoModelForCausalLM, AutoModelForSequenceClassification, AutoModelForTokenClassification)
IDS = torch.randint(1, 50, (2, 9), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def saved(tmp_path):
    small("2mamba").save_pretrained(tmp_path)
    return tmp_path


def change_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_the_folder_of_a_language_model_is_that_of_its_base(saved):
    base = AutoModel.from_pretrained(saved)
    assert type(base) is MaclaurinModel
    expected = small("2mamba").model(IDS).last_hidden_state
    torch.testing.assert_close(base(IDS).last_hidden_state, expected)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)
def test_a_base_model_gets_a_new_head_and_transformers_says_so(task, tmp_path, caplog):
    base = small("2mamba").model
    base.save_pretrained(tmp_path)
    monitored = logging.getLogger("transformers")
    monitored.addHandler(caplog.handler)
    try:
        model = task.from_pretrained(tmp_path)
    finally:
        monitored.removeHandler(caplog.handler)
    head = "lm_head.weight" if task is AutoModelForCausalLM else "score.weight"
    assert re.search(rf"{re.escape(head)}.*MISSING", caplog.text)
    torch.testing.assert_close(model.model(IDS).last_hidden_state, base(IDS).last_hidden_state)
    assert 0.3 < model.get_parameter(head).std() < 0.7  # initializer_range
    if task is AutoModelForTokenClassification:
        assert not model.score.bias.any()


@pytest.mark.parametrize("task", TASKS[1:], ids=lambda task: task.__name__)
def test_a_language_model_becomes_a_classifier(task, saved, tmp_path):
    model = task.from_pretrained(saved, num_labels=3).eval()
    size = (2, 3) if task is AutoModelForSequenceClassification else (2, 9, 3)
    output = model(IDS, labels=torch.ones(size[:-1], dtype=torch.long))
    assert output.logits.shape == size and output.loss.isfinite()
    output.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.save_pretrained(tmp_path / "classifier")
    again = task.from_pretrained(tmp_path / "classifier").eval()
    assert torch.equal(again(IDS).logits, output.logits)
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "classifier")
    torch.testing.assert_close(back.model(IDS).last_hidden_state, model.model(IDS).last_hidden_state)


@every_mixer
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_does_not_change_a_class(mixer, side, tmp_path):
    small(mixer).save_pretrained(tmp_path)
    sequences, tokens = (task.from_pretrained(tmp_path, num_labels=3).eval() for task in TASKS[1:])
    lengths = (9, 4)
    batch, mask = torch.zeros(2, 9, dtype=torch.long), torch.zeros(2, 9, dtype=torch.long)
    for row, length in enumerate(lengths):
        where = slice(9 - length, 9) if side == "left" else slice(length)
        batch[row, where], mask[row, where] = IDS[row, :length], 1
    with torch.no_grad():
        classes, labels = (model(batch, attention_mask=mask).logits for model in (sequences, tokens))
        for row, length in enumerate(lengths):
            alone = IDS[row : row + 1, :length]
            torch.testing.assert_close(classes[row], sequences(alone).logits[0], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(labels[row, mask[row] == 1], tokens(alone).logits[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("task", [AutoModel, *TASKS], ids=lambda task: task.__name__)
@pytest.mark.parametrize("damage", ["missing", "unexpected", "mismatched"])
def test_a_damaged_decoder_is_refused_by_every_task(task, damage, saved):
    name = "model.layers.1.mlp.up_proj.weight"

    def change(weights):
        weight = weights.pop(name)
        if damage != "missing":
            weights[name] = weight[:-1].clone() if damage == "mismatched" else weight
        if damage == "unexpected":
            weights[name.replace("up", "other")] = weight.clone()

    change_weights(saved, change)
    with pytest.raises(ValueError, match=f"does not fit this configuration: 1 {damage} keys, such as .*layers.1.mlp"):
        task.from_pretrained(saved)


@pytest.mark.parametrize("change", [lambda weights: weights.pop("lm_head.weight"), lambda weights: weights.clear()])
def test_a_language_model_without_its_own_head_is_damaged(saved, change):
    change_weights(saved, change)
    with pytest.raises(ValueError, match=r"does not fit|hold 0 tensors|holds? 0"):
        AutoModelForCausalLM.from_pretrained(saved)


@pytest.mark.parametrize("classes", [3, None, ["Another"], [[]]])
def test_a_configuration_that_does_not_know_its_class_is_taken_for_another(saved, classes):
    file = saved / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"architectures": classes}))
    if classes in (None, ["Another"]):
        assert AutoModelForCausalLM.from_pretrained(pretrained_model_name_or_path=saved).training is False
    else:
        with pytest.raises(ValueError, match=r"architectures must be a list of names|architectures' with value"):
            MaclaurinForCausalLM.from_pretrained(saved)


def test_what_generates_has_a_trained_head(saved, tmp_path):
    small("2mamba").model.save_pretrained(tmp_path / "base")
    with pytest.raises(ValueError, match=r"lacks lm_head\.weight"):
        open_model(tmp_path / "base")


def test_tied_embeddings_come_with_the_base_model(tmp_path):
    small("linear", tie_word_embeddings=True).model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert torch.equal(loaded.lm_head.weight, small("linear", tie_word_embeddings=True).lm_head.weight)


def test_shapes_that_may_differ_are_new(tmp_path):
    """Fine-tuning an image classifier on other classes, or a language model with another vocabulary."""
    config = MaclaurinVisionConfig(image_size=8, patch_sizes=[4], num_labels=7)
    torch.manual_seed(0)
    trained = MaclaurinForImageClassification(config)
    trained.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"2 mismatched keys, such as classifier\.bias"):
        AutoModelForImageClassification.from_pretrained(tmp_path, num_labels=3)
    model = AutoModelForImageClassification.from_pretrained(tmp_path, num_labels=3, ignore_mismatched_sizes=True)
    assert model.classifier.weight.shape[0] == 3 and 0 < model.classifier.weight.std() < 0.1
    for name, parameter in model.model.named_parameters():
        assert torch.equal(parameter, trained.model.get_parameter(name)), name

    language = small("linear")
    language.save_pretrained(tmp_path)
    wider = MaclaurinConfig.from_pretrained(tmp_path, vocab_size=60)
    with pytest.raises(ValueError, match=r"2 mismatched keys, such as lm_head\.weight"):
        MaclaurinForCausalLM.from_pretrained(tmp_path, config=wider)
    model, info = MaclaurinForCausalLM.from_pretrained(
        tmp_path, config=wider, ignore_mismatched_sizes=True, output_loading_info=True
    )
    assert model(torch.tensor([[59]])).logits.shape == (1, 1, 60)
    assert {name for name, *_ in info["mismatched_keys"]} == {"lm_head.weight", "model.embed_tokens.weight"}
    assert torch.equal(model.model.norm.weight, language.model.norm.weight)
    assert 0 < model.model.embed_tokens.weight.std() < 1


def test_layers_never_differ(saved):
    """They would hold whatever was in memory."""
    wider = MaclaurinConfig.from_pretrained(saved, intermediate_size=64)
    with pytest.raises(ValueError, match=r"6 mismatched keys, such as model\.layers\.0\.mlp"):
        MaclaurinForCausalLM.from_pretrained(saved, config=wider, ignore_mismatched_sizes=True)
