"""The language model: its layout, its loss, its gradients, and what it refuses."""

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForCausalLM

import maclaurin
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM, decoder
from tests.models.test_generate import every_mixer, small


@pytest.mark.parametrize(
    ("size", "mixer", "millions"),
    [
        ("small", "softmax", 275.29),
        ("small", "2mamba", 275.81),
        ("small", "mamba2s", 276.15),
        ("small", "mamba2-single-head", 259.60),
        ("medium", "softmax", 735.40),
        ("medium", "2mamba", 736.77),
    ],
)
def test_parameter_counts_are_the_published_ones(size, mixer, millions):
    with torch.device("meta"):
        model = MaclaurinForCausalLM(MaclaurinConfig.of_size(size, mixer=mixer))
    assert round(sum(parameter.numel() for parameter in model.parameters()) / 1e6, 2) == millions


def test_the_loss_is_token_weighted_and_shifted(monkeypatch):
    monkeypatch.setattr(decoder, "LOSS_CHUNK", 7)
    model = small("2mamba")
    ids = torch.randint(1, 50, (2, 20))
    labels = ids.clone()
    labels[0, :9] = -100
    logits = model(ids).logits
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
    for training in (True, False):
        model.train(training)
        torch.testing.assert_close(model(ids, labels=labels).loss, expected)
        torch.testing.assert_close(model(ids, labels=labels, num_items_in_batch=40).loss, expected * 30 / 40)


@every_mixer
def test_packed_documents_have_the_loss_of_documents_alone(mixer):
    model = small(mixer)
    ids = torch.randint(1, 50, (1, 30))
    bounds = [0, 11, 12, 30]
    packed = model(ids, labels=ids, cu_seqlens=bounds).loss
    alone = [model(ids[:, a:b], labels=ids[:, a:b], num_items_in_batch=27).loss for a, b in ((0, 11), (12, 30))]
    torch.testing.assert_close(packed, sum(alone))


@every_mixer
def test_right_padding_does_not_change_the_loss(mixer):
    model = small(mixer)
    ids = torch.randint(1, 50, (1, 12))
    padded = torch.cat([ids, torch.zeros(1, 5, dtype=torch.long)], dim=1)
    mask = (torch.arange(17) < 12).long()[None]
    torch.testing.assert_close(model(padded, labels=padded, attention_mask=mask).loss, model(ids, labels=ids).loss)


@every_mixer
def test_gradient_checkpointing_changes_nothing(mixer):
    model = small(mixer).train()
    ids = torch.randint(1, 50, (2, 13))
    model(ids, labels=ids).loss.backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model.gradient_checkpointing_enable()
    model(ids, labels=ids).loss.backward()
    for parameter, wanted in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, wanted)


def test_a_round_trip_keeps_weights_and_configuration(tmp_path):
    model = small(["2mamba", "softmax"], num_key_value_heads=2)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).mixer == ["2mamba", "softmax"]
    assert loaded.model.layers[1].mixer.num_kv_heads == 2
    for (name, got), (_, expected) in zip(loaded.named_parameters(), model.named_parameters(), strict=True):
        assert torch.equal(got, expected), name


def test_tied_embeddings_are_one_tensor(tmp_path):
    model = small("linear", tie_word_embeddings=True)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


def test_a_checkpoint_of_another_mixer_is_refused(tmp_path):
    small("linear").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"the checkpoint does not fit this configuration: .* keys, such as"):
        MaclaurinForCausalLM.from_pretrained(tmp_path, config=small("2mamba").config)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mixer": "2mambo"}, "unknown mixer '2mambo'"),
        ({"mixer": ["softmax"] * 4, "num_hidden_layers": 2}, "one mixer for each of the 2 layers, or .*, got 4"),
        ({"mixer": []}, "one mixer for each of the 20 layers, or .*, got 0"),
        ({"init": "zeros"}, "init must be one of"),
    ],
)
def test_bad_configurations(fields, message):
    with pytest.raises(ValueError, match=message):
        MaclaurinConfig(**fields)


def test_heads_cannot_be_grouped_where_a_mixer_has_none():
    config = MaclaurinConfig.of_size("tiny", mixer="mamba2", num_key_value_heads=2)
    with pytest.raises(ValueError, match="mixer 'mamba2' cannot group heads"):
        MaclaurinForCausalLM(config)


@pytest.mark.parametrize("init", ["torch", "llama"])
def test_initialisation_is_as_described(init):
    """Embedding and head N(0, 0.02); the layers U(±1/√fan_in), or N(0, 0.02) as well."""
    torch.manual_seed(0)
    model = MaclaurinForCausalLM(MaclaurinConfig.of_size("tiny", vocab_size=1000, init=init))
    for weight in (model.model.embed_tokens.weight, model.lm_head.weight):
        assert abs(weight.std().item() - 0.02) < 1e-3
    for layer in model.model.layers:
        for weight in (layer.mlp.up_proj.weight, layer.mixer.out_proj.weight):
            expected = 0.02 if init == "llama" else weight.shape[1] ** -0.5 / 3**0.5
            assert abs(weight.std().item() / expected - 1) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("mixer", ["softmax", "2mamba", "mamba2"])
def test_a_compiled_model_gives_the_same_loss_and_gradients(mixer):
    model = small(mixer).train()
    ids = torch.randint(1, 50, (2, 40))
    expected = model(ids, labels=ids).loss
    expected.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    loss = torch.compile(model)(ids, labels=ids).loss
    loss.backward()
    torch.testing.assert_close(loss, expected)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], atol=1e-5, rtol=1e-3)


def test_a_language_model_does_not_see_the_future():
    config = MaclaurinConfig.of_size("tiny", mixer="linear", mixer_options={"causal": False})
    with pytest.raises(ValueError, match="must not hold causal=False"):
        MaclaurinForCausalLM(config)


def test_the_old_name_of_an_initialisation_is_known_for_one_release():
    with pytest.warns(FutureWarning, match="init='torch'"):
        config = MaclaurinConfig(vocab_size=16, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, init="thesis")
    assert config.init == "torch"
    torch.manual_seed(0)
    with pytest.warns(FutureWarning, match="init='torch'"):
        old = maclaurin.build_mixer("2mamba", 8, 2, init="thesis")
    torch.manual_seed(0)
    new = maclaurin.build_mixer("2mamba", 8, 2, init="torch")
    assert all(torch.equal(a, b) for a, b in zip(old.parameters(), new.parameters(), strict=True))
