"""What a model would do at a length is what its ops decide, and asking changes nothing."""

import pytest
import torch
from torch import nn

import maclaurin
from maclaurin.mixers.explain import explain
from maclaurin.ops import native
from maclaurin.ops.backends import SlowPathWarning, watching

needs_native = pytest.mark.skipif(not native.available(), reason="the native backend was not built")


def mixer(name="2mamba", **options):
    torch.manual_seed(0)
    return maclaurin.build_mixer(name, d_model=16, num_heads=2, **options)


def decided(decisions):
    return [(one.op, one.backend) for one in decisions]


@pytest.mark.parametrize("name", maclaurin.available_mixers())
def test_an_explanation_is_what_happens(name, capsys):
    """The same ops and backends as in real calls, without a change of outputs, of states, or of random numbers."""
    layer, x = mixer(name), torch.randn(1, 20, 16)
    before = layer(x)[0]
    seed = torch.get_rng_state()
    (told,) = explain(layer, 20).layers
    assert torch.equal(torch.get_rng_state(), seed)
    assert told.refused is None and told.kind == name
    with watching() as training:
        y, _ = layer(x, return_state=False)
    with torch.no_grad(), watching() as prefill:
        _, state = layer(x)
    assert torch.equal(y, before)
    assert decided(told.training) == decided(training) and decided(told.prefill) == decided(prefill)
    with torch.no_grad():
        layer(x[:, :1], state)
    assert all(one.form == "recurrent" for one in told.decoding)
    assert f"{name}\n  training" in capsys.readouterr().out


@needs_native
def test_forms_follow_the_length(capsys):
    layer = mixer()
    short, long = (explain(layer, length).layers[0] for length in (100, 10**5))
    assert short.training[-1].form == "parallel" and long.training[-1].form == "chunked"
    assert long.decoding[-1].form == "recurrent" and long.decoding[-1].backend == "native"


@needs_native
def test_the_reason_for_torch_is_printed(capsys, recwarn):
    told = explain(mixer().double(), 20)
    assert {one.backend for one in told.layers[0].training} == {"torch"}
    assert "power_attention runs in torch: the kernels need float32 or less, not torch.float64" in capsys.readouterr().out
    assert not [warning for warning in recwarn if issubclass(warning.category, SlowPathWarning)]
    with native.using_backend("torch"):
        assert {one.reason for one in explain(mixer(), 20).layers[0].training} == {"MACLAURIN_BACKEND=torch"}


def test_layers_of_any_module_are_found_and_alike_ones_stand_together(capsys):
    model = nn.ModuleDict({"a": mixer(), "b": nn.Sequential(nn.Linear(2, 2), mixer()), "c": mixer("gla")})
    told = explain(model, 20)
    assert [layer.name for layer in told.layers] == ["a", "b.1", "c"]
    printed = capsys.readouterr().out
    assert "a … b.1 (2 layers): 2mamba" in printed and "c: gla" in printed
    assert told.from_json(told.to_json()) == told


def test_other_options_are_other_layers(capsys):
    model = nn.Sequential(mixer("sliding-window", window=4), mixer("sliding-window", window=8), mixer(causal=False))
    told = explain(model, 20)
    assert told.layers[2].decoding == () and told.layers[0].decoding


def test_what_cannot_be_explained_is_one_sentence():
    with pytest.raises(ValueError, match="model must be a mixer or hold mixers, got Linear, which has none"):
        explain(nn.Linear(2, 2), 20)
    with pytest.raises(ValueError, match="length must be"):
        explain(mixer(), 0)
    with pytest.raises(TypeError, match="model must be a module, got str"):
        explain("2mamba", 20)


def test_language_models_and_students_are_explained(capsys):
    from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM
    from maclaurin.models.linearised.students import Shape, build_student

    config = MaclaurinConfig(vocab_size=8, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
    assert len(explain(MaclaurinForCausalLM(config), 20).layers) == 2
    students = nn.ModuleDict()
    for name in ("2mamba", "luna", "taylor"):
        students[name] = build_student(name, Shape(16, 4, 2, 4, True), num_features=16, window=3)
    students["softmax"] = build_student("softmax", Shape(16, 4, 2, 4, True))
    told = {layer.name: layer for layer in explain(students, 20).layers}
    assert [one.op for one in told["2mamba"].training] == ["power_attention"]
    assert [one.op for one in told["luna"].decoding] == ["linear_attention"]  # the window needs no op
    assert told["softmax"].training[0].reason == "PyTorch's own attention is faster without a decay"
