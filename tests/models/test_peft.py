"""peft meets every mixer: adapters of all linear layers learn, merge, and are saved and loaded."""

import pytest
import torch
from torch import nn

import maclaurin
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM
from tests.mixers.test_laws import VARIANTS

peft = pytest.importorskip("peft")

VOCAB = 40
every_mixer = pytest.mark.parametrize("name", [*maclaurin.available_mixers(), *VARIANTS])


def language_model(name, seed=0):
    torch.manual_seed(seed)
    mixer, options = VARIANTS.get(name, (name, {}))
    config = MaclaurinConfig(
        vocab_size=VOCAB, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, mixer=mixer, mixer_options=options
    )
    return MaclaurinForCausalLM(config)


def adapted(model, seed=1, **fields):
    """LoRA on all linear layers, both of its factors drawn at random."""
    torch.manual_seed(seed)
    config = peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM", **fields)
    return peft.get_peft_model(model, config)


def tokens(length=19, seed=2):
    return torch.randint(VOCAB, (2, length), generator=torch.Generator().manual_seed(seed))


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=tokens()).logits


@every_mixer
def test_linear_layers_are_called(name):
    """Whoever replaces or watches a layer relies on it: its weights are not read past its forward."""
    model = language_model(name)
    layers = {path for path, module in model.named_modules() if isinstance(module, (nn.Linear, nn.Embedding))}
    called = set()
    for path in layers:
        model.get_submodule(path).register_forward_hook(lambda *_, path=path: called.add(path))
    logits(model)
    assert layers - called == set()


@every_mixer
def test_every_adapter_gets_a_gradient_and_merging_changes_nothing(name):
    model = adapted(language_model(name))
    adapted_layers = {path for path, module in model.named_modules() if isinstance(module, peft.tuners.lora.Linear)}
    linear_layers = {path for path, module in language_model(name).named_modules() if isinstance(module, nn.Linear)}
    assert {path.removeprefix("base_model.model.") for path in adapted_layers} == linear_layers - {"lm_head"}

    model(input_ids=tokens(), labels=tokens()).loss.backward()
    factors = {path: weight for path, weight in model.named_parameters() if weight.requires_grad}
    assert len(factors) == 2 * len(adapted_layers)
    assert [path for path, weight in factors.items() if weight.grad is None or not weight.grad.any()] == []

    before = logits(model)
    with model.disable_adapter():
        assert (logits(model) - before).abs().max() > 1e-2
    assert (logits(model.merge_and_unload()) - before).abs().max() <= 1e-5 * max(1.0, before.abs().max().item())


@pytest.mark.parametrize("name", ["2mamba", "s6"])
def test_an_adapter_is_saved_and_loaded(name, tmp_path):
    model = adapted(language_model(name))
    before = logits(model)
    model.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(language_model(name), tmp_path)
    assert torch.equal(logits(loaded), before)


@pytest.mark.parametrize("name", ["2mamba", "gated-delta", "s6"])
def test_gradient_checkpointing_changes_no_gradient_of_an_adapter(name):
    def gradients(model):
        model.train()
        model(input_ids=tokens(), labels=tokens()).loss.backward()
        return [weight.grad for weight in model.parameters() if weight.requires_grad]

    plain = gradients(adapted(language_model(name)))
    prepared = peft.prepare_model_for_kbit_training(language_model(name), use_gradient_checkpointing=True)
    for got, expected in zip(gradients(adapted(prepared)), plain, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)


def test_an_adapted_model_generates():
    model = adapted(language_model("2mamba")).eval()
    prompt = tokens(5)
    made = model.generate(input_ids=prompt, min_new_tokens=6, max_new_tokens=6, do_sample=False)
    merged = model.merge_and_unload().generate(input_ids=prompt, min_new_tokens=6, max_new_tokens=6, do_sample=False)
    assert made.shape == (2, 11) and torch.equal(made, merged)
