"""The mLSTM layer: its published initialisation and sizes, and `transformers`' xLSTM on the same weights."""

import math

import pytest
import torch
import torch.nn.functional as F

import maclaurin
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM
from maclaurin.ops import mlstm


@pytest.mark.parametrize("init", ["torch", "llama"])
def test_gates_start_as_published_whatever_the_init(init):
    config = MaclaurinConfig.of_size("tiny", vocab_size=50, mixer="mlstm", init=init)
    for layer in MaclaurinForCausalLM(config).model.layers:
        mixer = layer.mixer
        assert mixer.key_dim == mixer.head_dim // 2
        assert (mixer.gates.weight == 0).all()
        assert (mixer.out_gate.weight == 0).all()
        assert mixer.gates.bias.tolist() == [-10.0] * 4 + [3.0, 4.0, 5.0, 6.0]
        if init == "llama":
            assert abs(mixer.qkv_proj.weight.std().item() - 0.02) < 1e-3


def test_forget_gates_start_with_half_lives_from_14_to_207_tokens():
    mixer = maclaurin.build_mixer("mlstm", 64, 4)
    capped = 15 * torch.tanh(mixer.gates.bias / 15)
    half_lives = math.log(2) / -F.logsigmoid(capped[4:])
    assert half_lives[0].item() == pytest.approx(13.7, abs=0.1)
    assert half_lives[-1].item() == pytest.approx(207, abs=1)
    assert capped[:4].exp().max().item() == pytest.approx(1.6e-4, abs=1e-5)


@pytest.mark.parametrize(("input_gate", "cell", "after_norm"), [(0.0, 2.9, 1.0), (-8.74, 9e-4, 0.62), (-10.0, 2.6e-4, 0.24)])
def test_the_initial_input_bias_mutes_the_layer(input_gate, cell, after_norm):
    """Root mean squares of the cell's output and of its LayerNorm, whose ε of 1e-6 is then as large as the output."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, 512, 4, 64, generator=generator) for _ in range(2))
    v = torch.randn(2, 512, 4, 128, generator=generator)
    forget = (15 * torch.tanh(torch.linspace(3, 6, 4) / 15)).expand(2, 512, 4)
    h, _ = mlstm(q, k, v, torch.full((2, 512, 4), input_gate), forget)
    assert h.square().mean().sqrt().item() == pytest.approx(cell, rel=0.5)
    normed = F.layer_norm(h, (128,), eps=1e-6)
    assert normed.square().mean().sqrt().item() == pytest.approx(after_norm, abs=0.15)


@pytest.mark.parametrize(("d_model", "heads", "floats"), [(512, 1, 131_072), (2048, 4, 524_288)])
def test_the_state_is_as_large_as_a_window_of_128_tokens(d_model, heads, floats):
    """With heads of 512 channels C is exactly 128 keys and values; n and m come on top, a window of 128 keeps 127 tokens."""
    with torch.device("meta"):
        mixer = maclaurin.build_mixer("mlstm", d_model, heads)
        window = maclaurin.build_mixer("sliding-window", d_model, heads)
    n, m = 4 * heads * mixer.key_dim, 8 * heads
    assert mixer.state_nbytes(10**6) == 4 * floats + n + m
    token, position = 4 * 2 * d_model, 8
    assert window.state_nbytes(10**6) == 4 * floats - token + position
    assert 128 * token == 4 * floats


@pytest.mark.parametrize(
    "options", [{"norm": "rms"}, {"input_gate": "sigmoid"}, {"gate_cap": None}, {"rotary": "rope"}, {"conv_width": 4}]
)
def test_forms_and_states_agree_with_every_option(options):
    torch.manual_seed(0)
    mixer = maclaurin.build_mixer("mlstm", 32, 4, num_kv_heads=2, **options).double()
    torch.nn.init.normal_(mixer.gates.weight)
    x = torch.randn(2, 30, 32, dtype=torch.float64)
    with torch.no_grad():
        expected, _ = mixer(x, form="parallel")
        for form in ("chunked", "recurrent", "auto"):
            left, state = mixer(x[:, :13], mixer.init_state(2), form=form)
            right, end = mixer(x[:, 13:], state, form=form)
            torch.testing.assert_close(torch.cat([left, right], 1), expected, rtol=1e-10, atol=1e-10)
            assert end.nbytes == 2 * mixer.state_nbytes(30)


def test_the_layer_of_transformers_on_the_same_weights():
    xlstm = pytest.importorskip("transformers.models.xlstm.modeling_xlstm", reason="a transformers with xLSTM is needed")
    from transformers.models.xlstm.configuration_xlstm import xLSTMConfig

    if not hasattr(xlstm, "xLSTMLayer"):
        pytest.skip("transformers takes its xLSTM from the package of the authors here")
    torch.manual_seed(0)
    config = xLSTMConfig(
        hidden_size=64,
        num_heads=4,
        num_hidden_layers=1,
        chunkwise_kernel="chunkwise--native_autograd",
        sequence_kernel="native_sequence__native",
        step_kernel="native",
        chunk_size=16,
        autocast_kernel_dtype="float32",
    )
    theirs = xlstm.xLSTMLayer(config).eval()
    ours = maclaurin.build_mixer("mlstm", 64, 4)
    with torch.no_grad():
        ours.qkv_proj.weight.copy_(torch.cat([theirs.q.weight, theirs.k.weight, theirs.v.weight]))
        ours.gates.weight.copy_(torch.cat([theirs.igate_preact.weight, theirs.fgate_preact.weight]) * 3)
        ours.gates.bias.copy_(torch.cat([theirs.igate_preact.bias, theirs.fgate_preact.bias]) + 2)
        theirs.igate_preact.weight *= 3
        theirs.fgate_preact.weight *= 3
        theirs.igate_preact.bias += 2
        theirs.fgate_preact.bias += 2
        ours.out_gate.weight.copy_(theirs.ogate_preact.weight)
        theirs.multihead_norm.weight.uniform_(0.5, 1.5)
        ours.norm_weight.copy_(theirs.multihead_norm.weight.view(4, 16))
        ours.out_proj.weight.copy_(theirs.out_proj.weight)
        x = torch.randn(2, 48, 64)
        expected, _ = theirs(x)
        for form in ("parallel", "chunked", "recurrent"):
            got, _ = ours(x, form=form)
            assert ((got - expected).norm() / expected.norm()).item() <= 1e-4
