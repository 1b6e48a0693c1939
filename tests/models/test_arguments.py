"""A model's call keeps the contract of transformers: outputs as tuples, logits for whoever reads them, no unknown words."""

import pytest
import torch
import torch.nn.functional as F
from accelerate.utils import convert_outputs_to_fp32

from maclaurin.models import MaclaurinForImageClassification, MaclaurinForSequenceClassification, MaclaurinVisionConfig
from maclaurin.models.decoder import MaclaurinModel
from tests.models.test_generate import small

IDS = torch.randint(1, 50, (2, 20), generator=torch.Generator().manual_seed(0))


def vision():
    return MaclaurinForImageClassification(MaclaurinVisionConfig(image_size=8, patch_sizes=[4], num_labels=3)).eval()


@pytest.mark.parametrize(
    ("word", "meant"),
    [("attention_maks", "attention_mask"), ("label", "labels"), ("output_hidden_state", "output_hidden_states"), ("x", "")],
)
def test_an_unknown_argument_is_refused_by_name(word, meant):
    with pytest.raises(
        TypeError, match=f"^unknown argument '{word}'" + (rf" \(did you mean '{meant}'\?\)$" if meant else "$")
    ):
        small("linear")(IDS, **{word: 1})
    with pytest.raises(TypeError, match=f"^unknown argument '{word}'"):
        vision()(torch.zeros(1, 3, 8, 8), **{word: 1})


def test_what_cannot_be_returned_is_refused():
    for model in (small("linear"), small("linear").model):
        with pytest.raises(ValueError, match=r"^output_attentions must not be True"):
            model(IDS, output_attentions=True)
    with pytest.raises(ValueError, match=r"^output_hidden_states must not be True"):
        vision()(torch.zeros(1, 3, 8, 8), output_hidden_states=True)
    with pytest.raises(ValueError, match=r"^is_causal must not be False"):
        small("linear")(IDS, is_causal=False)


def test_what_callers_of_every_model_pass_changes_nothing():
    model = small("linear")
    expected = model(IDS).logits
    said = {
        "attention_mask": torch.ones_like(IDS),
        "cache_position": torch.arange(20),
        "max_length_q": 20,
        "max_length_k": 20,
        "num_items_in_batch": torch.tensor(3),
        "output_attentions": False,
        "output_hidden_states": None,
        "output_router_logits": None,
        "position_ids": torch.arange(20)[None],
        "return_dict": True,
        "token_type_ids": torch.zeros_like(IDS),
    }
    assert torch.equal(model(IDS, **said).logits, expected)
    assert torch.equal(model.model(IDS, **said).last_hidden_state, model.model(IDS).last_hidden_state)


@pytest.mark.parametrize("where", ["argument", "configuration"])
@pytest.mark.parametrize("training", [False, True])
def test_outputs_are_tuples_where_return_dict_is_false(where, training):
    model = small("linear").train(training)
    expected = model(IDS, labels=IDS, use_cache=False)
    if where == "configuration":
        model.config.return_dict = False
    said = {"return_dict": False} if where == "argument" else {}
    loss, logits = model(IDS, labels=IDS, use_cache=False, **said)
    assert torch.equal(loss, expected.loss) and torch.equal(logits, expected.logits)
    (hidden,) = model.model(IDS, use_cache=False, **said)
    assert hidden.shape == (2, 20, 32)


def test_images_are_classified_into_tuples_too():
    model = vision()
    for part in (model, model.model):
        outputs = part(torch.zeros(1, 3, 8, 8), return_dict=False)
        assert isinstance(outputs, tuple) and torch.equal(outputs[0], part(torch.zeros(1, 3, 8, 8))[0])


def test_the_configuration_asks_for_hidden_states():
    model = small("linear")
    assert model(IDS).hidden_states is None
    model.config.output_hidden_states = True
    assert len(model(IDS).hidden_states) == 3


@pytest.mark.parametrize("training", [False, True])
def test_logits_are_there_for_whoever_reads_them(training):
    model = small("linear").train(training)
    expected = model(IDS).logits
    for read in (lambda out: out.logits, lambda out: out["logits"], lambda out: out.get("logits"), lambda out: out[1]):
        assert torch.equal(read(model(IDS, labels=IDS)), expected)
    assert torch.equal(model(IDS, labels=IDS, logits_to_keep=3).logits, model(IDS, logits_to_keep=3).logits)
    got, wanted = (
        torch.autograd.grad(F.cross_entropy(logits[:, :-1].flatten(0, 1), IDS[:, 1:].flatten()), model.lm_head.weight)[0]
        for logits in (model(IDS, labels=IDS).logits, expected)
    )
    torch.testing.assert_close(got, wanted)


def test_a_training_step_has_logits_of_a_chunk_only(monkeypatch):
    monkeypatch.setattr("maclaurin.models.decoder.LOSS_CHUNK", 5)
    model = small("linear").train()
    rows = []
    model.lm_head.register_forward_hook(lambda module, args, output: rows.append(output.shape[:-1].numel()))
    output = model(IDS, labels=IDS)
    for part in (output.loss, output[0], output["loss"], output.get("loss")):
        assert part is output.loss
    assert max(rows) == 5
    assert output.logits is output.logits and rows[-1] == 40 and rows.count(40) == 1


def test_logits_can_be_read_after_mixed_precision():
    """accelerate computes under autocast, then copies outputs in float32, outside of it."""
    model = small("linear").train()

    def step(*args, **kwargs):
        with torch.autocast("cpu", torch.bfloat16):
            return model(*args, **kwargs)

    rows = []
    model.lm_head.register_forward_hook(lambda module, args, output: rows.append(output.shape[:-1].numel()))
    output = convert_outputs_to_fp32(step)(IDS, labels=IDS)
    assert 40 not in rows
    assert (output.logits - model(IDS).logits).abs().max() < 0.3
    assert output.get("nothing") is None


def test_a_missing_argument_is_still_a_sentence():
    with pytest.raises(ValueError, match="give exactly one of input_ids and inputs_embeds"):
        small("linear")()
    with pytest.raises(TypeError, match="past_key_values must be a StateCache"):
        small("linear")(IDS, past_key_values=3)


def test_classification_refuses_unknown_words_too():
    model = MaclaurinForSequenceClassification(small("linear").config)
    assert isinstance(model.model, MaclaurinModel)
    with pytest.raises(TypeError, match=r"unknown argument 'lables' \(did you mean 'labels'\?\)"):
        model(IDS, lables=1)
