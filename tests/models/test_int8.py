"""int8 weights through torch's own dynamic quantisation, with and without adapters on top."""

import copy

import pytest
import torch
from torch import nn
from torch.ao.nn.quantized.dynamic import Linear as Int8Linear
from torch.ao.quantization import quantize_dynamic

from maclaurin.models.lighter import lighter
from tests.models.test_peft import adapted, every_mixer, language_model, logits, tokens

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch announces torchao, a package of its own
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def rounded_to_int8(model):
    """The same model in float32 with the weights that int8 can hold, the largest being 127."""
    model = copy.deepcopy(model)
    for module in model.modules():
        if type(module) is nn.Linear:
            step = module.weight.detach().abs().max() / 127.5
            module.weight.data = (module.weight.data / step).round().clamp(-128, 127) * step
    return model


def apart(got, expected):
    return ((got - expected).norm() / expected.norm()).item()


@every_mixer
def test_int8_weights_generate(name):
    """Activations are rounded too, to 7 bits: off by no more than a few times what rounding the weights alone does."""
    model = language_model(name).eval()
    quantised = lighter(model, int8_weights=True)
    layers = sum(type(module) is nn.Linear for module in model.modules())
    assert layers > 0 and sum(isinstance(module, Int8Linear) for module in quantised.modules()) == layers
    exact = logits(model)
    assert apart(logits(quantised), exact) <= 10 * apart(logits(rounded_to_int8(model)), exact)
    prompt = tokens(5)
    made = quantised.generate(
        prompt, attention_mask=torch.ones_like(prompt), min_new_tokens=6, max_new_tokens=6, do_sample=False
    )
    assert made.shape == (2, 11) and torch.equal(made[:, :5], prompt)


@pytest.mark.parametrize("name", ["2mamba", "gated-delta", "s6"])
def test_an_adapter_stands_on_int8_weights(name):
    """The layers under it in int8, the adapter itself in float: it can be switched off."""
    model = adapted(language_model(name)).eval()
    exact = logits(model)
    under = {path for path, module in model.named_modules() if path.endswith("base_layer") and type(module) is nn.Linear}
    quantised = quantize_dynamic(model, under, dtype=torch.qint8)
    assert sum(isinstance(module, Int8Linear) for module in quantised.modules()) == len(under) > 0
    error = apart(logits(quantised), exact)
    with quantised.disable_adapter():
        assert apart(logits(quantised), exact) > 5 * error
    made = quantised.generate(input_ids=tokens(5), min_new_tokens=4, max_new_tokens=4, do_sample=False)
    assert made.shape == (2, 9)


def test_states_in_bfloat16_are_an_option_of_the_layers():
    model = language_model("2mamba").eval()
    assert lighter(model, state_dtype="bfloat16") is model
    assert {module.state_dtype for module in model.modules() if hasattr(module, "state_dtype")} == {"bfloat16"}
    with pytest.raises(ValueError, match="state_dtype must be one of"):
        lighter(model, state_dtype="int4")
