"""Checkpoints in the layout of the thesis's authors, against a re-computation of their formulas in float64."""

import hashlib
import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from maclaurin.cli import app
from maclaurin.convert.thesis import import_checkpoint, load_checkpoint
from maclaurin.models import MaclaurinForCausalLM

D, H, MLP, LAYERS, VOCABULARY, LENGTH = 128, 2, 96, 2, 50, 320  # heads of 64, as all of theirs
DH = D // H
SQUARED = "squared__sm_norm__A_mask_type_neg_softplus__in_conv_k_2"
EXP = "exp__sm_norm__A_mask_type_neg_softplus__in_conv_k_2"
MAMBA_2S = "linear__output_norm__A_mask_type_neg_softplus__in_conv_k_2__dt_on_values"


def attention_tensors(kind, generator):
    """Names and shapes as in their checkpoints."""

    def normal(*shape, scale=None):
        return torch.randn(*shape, generator=generator) * (shape[-1] ** -0.5 if scale is None else scale)

    if kind == "mamba":
        return {
            "mamba_layer.in_proj.weight": normal(2 * D + 257, D),
            "mamba_layer.conv1d.weight": normal(320, 1, 2),
            "mamba_layer.dt_bias": normal(1),
            "mamba_layer.A_log": normal(1).abs(),
            "mamba_layer.D": normal(64, scale=1.0),
            "mamba_layer.norm.weight": 1 + normal(64, scale=0.1),
            "mamba_layer.out_proj.weight": normal(D, D),
        }
    if kind == "paper 1":
        tensors = {f"{part}_proj.weight": normal(D, D) for part in "qkvo"}
        return tensors | {"abs_pos_enc.pe": normal(1, 1024, D)}
    tensors = {"qkv_proj.weight": 2 * normal(3 * D, D), "o_proj.weight": normal(D, D)}
    if kind == "softmax":
        return tensors | {"rotary_emb.freqs": normal(DH // 2)}
    tensors |= {
        "A_mask_proj.weight": 0.3 * normal(H, D),
        "conv1d.weight": normal(3 * D, 1, 2),
        "conv1d.bias": normal(3 * D, scale=0.1),
        "attn_mask": torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).triu(1),
    }
    if "dt_on_values" in kind:
        tensors["dt_proj.weight"] = normal(H, D)
    if "output_norm" in kind:
        tensors["out_norm.weight"] = 1 + normal(D, scale=0.1)
    return tensors


def checkpoint(folder, kind, attention_type=None, **extra):
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "model.embed_tokens.weight": torch.randn(VOCABULARY, D, generator=generator),
        "model.norm.weight": torch.ones(D),
        "lm_head.weight": torch.randn(VOCABULARY, D, generator=generator) * D**-0.5,
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        tensors |= {f"{prefix}self_attn.{name}": tensor for name, tensor in attention_tensors(kind, generator).items()}
        tensors |= {f"{prefix}{name}_layernorm.weight": torch.ones(D) for name in ("input", "post_attention")}
        for name, shape in (("gate", (MLP, D)), ("up", (MLP, D)), ("down", (D, MLP))):
            tensors[f"{prefix}mlp.{name}_proj.weight"] = torch.randn(shape, generator=generator) * shape[1] ** -0.5
    return save_checkpoint(
        folder,
        tensors | extra,
        attention_type or kind,
        vocab_size=VOCABULARY,
        hidden_size=D,
        intermediate_size=MLP,
        num_hidden_layers=LAYERS,
        num_attention_heads=H,
        max_position_embeddings=LENGTH,
    )


def save_checkpoint(folder, tensors, attention_type, **sizes):
    """The files of a checkpoint of theirs."""
    folder.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    described = {"model_type": "llama", "attention_type": attention_type, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
    (folder / "config.json").write_text(json.dumps(described | sizes))
    (folder / "optimizer.pt").write_bytes(b"a pickle that nobody opens")
    return folder


def rms(x, weight, eps):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def turned(x, positions, interleaved):
    """x (H,T,DH) as complex numbers, times e^{i·position·θ}."""
    frequency = 10000 ** (-torch.arange(0, DH, 2, dtype=torch.float64) / DH)
    turn = torch.polar(torch.ones(1, dtype=torch.float64), positions.double()[:, None] * frequency)
    if interleaved:
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turn).flatten(-2)
    first, second = x.chunk(2, -1)
    product = torch.complex(first, second) * turn
    return torch.cat([product.real, product.imag], -1)


def attention(kind, x, w, rounded):
    """Their formulas, token by token matrices in float64; x (T,D)."""
    T = x.shape[0]
    causal = torch.ones(T, T, dtype=torch.float64).tril()
    if kind == "mamba":
        return mamba(x, {name.removeprefix("mamba_layer."): tensor for name, tensor in w.items()})
    if kind == "paper 1":
        q, k, v = ((x @ w[f"{part}_proj.weight"].T).view(T, H, DH).transpose(0, 1) for part in "qkv")
    else:
        qkv = x @ w["qkv_proj.weight"].T
        if "conv1d.weight" in w:
            taps = w["conv1d.weight"][:, 0]
            qkv = w["conv1d.bias"] + taps[:, 1] * qkv + taps[:, 0] * F.pad(qkv, (0, 0, 1, 0))[:-1]
        q, k, v = (part.view(T, H, DH).transpose(0, 1) for part in qkv.chunk(3, -1))
    if kind in ("softmax", "paper 1"):
        positions = torch.arange(T, dtype=torch.bfloat16 if rounded else torch.float64)
        q, k = (turned(part, positions, interleaved=kind == "softmax") for part in (q, k))
    score = q @ k.transpose(1, 2) * DH**-0.5
    if kind in ("softmax", "paper 1"):
        weight = score.exp() * causal
        y = weight @ v / weight.sum(-1, keepdim=True)
    else:
        sums = -F.softplus(x @ w["A_mask_proj.weight"].T).T.cumsum(-1)
        decay = ((sums[:, :, None] - sums[:, None, :]).clamp(max=0)).exp() * causal
        shown = {"squared": score.square(), "exp__sm_": score.exp(), "linear_": score}
        weight = next(value for name, value in shown.items() if kind.startswith(name)) * decay
        values = v * F.softplus(x @ w["dt_proj.weight"].T).T[..., None] if "dt_proj.weight" in w else v
        y = weight @ values
        if "sm_norm" in kind:
            y = y / weight.sum(-1, keepdim=True)
    y = y.transpose(0, 1).flatten(1)
    if "out_norm.weight" in w:
        y = rms(y, w["out_norm.weight"], torch.finfo(torch.float32).eps)
    return y @ w["o_proj.weight"].T


def mamba(x, w):
    """One head of 64 channels with a state of 128, and a gated path for the other channels."""
    rest = D - 64
    z0, x0, z, xbc, dt = (x @ w["in_proj.weight"].T).split([rest, rest, 64, 320, 1], -1)
    taps = w["conv1d.weight"][:, 0]
    xbc = F.silu(taps[:, 1] * xbc + taps[:, 0] * F.pad(xbc, (0, 0, 1, 0))[:-1])
    u, key, query = xbc.split([64, 128, 128], -1)
    dt = F.softplus(dt + w["dt_bias"])
    state, outputs = torch.zeros(64, 128, dtype=torch.float64), []
    for t in range(len(x)):
        state = torch.exp(-w["A_log"].exp() * dt[t]) * state + dt[t] * u[t][:, None] * key[t]
        outputs.append(state @ query[t] + w["D"] * u[t])
    y = rms(torch.stack(outputs) * F.silu(z), w["norm.weight"], 1e-5)
    return torch.cat([F.silu(z0) * x0, y], -1) @ w["out_proj.weight"].T


def logits_of(kind, folder, ids, rounded=False):
    w = {name: tensor.double() for name, tensor in load_file(folder / "model.safetensors").items()}
    hidden = w["model.embed_tokens.weight"][ids]
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        own = {name.removeprefix(prefix): tensor for name, tensor in w.items() if name.startswith(prefix)}
        inner = {name.removeprefix("self_attn."): tensor for name, tensor in own.items() if name.startswith("self_attn.")}
        hidden = hidden + attention(kind, rms(hidden, own["input_layernorm.weight"], 1e-5), inner, rounded)
        x = rms(hidden, own["post_attention_layernorm.weight"], 1e-5)
        gated = F.silu(x @ own["mlp.gate_proj.weight"].T) * (x @ own["mlp.up_proj.weight"].T)
        hidden = hidden + gated @ own["mlp.down_proj.weight"].T
    return rms(hidden, w["model.norm.weight"], 1e-5) @ w["lm_head.weight"].T


KINDS = ("softmax", "mamba", SQUARED, SQUARED + "__dt_on_values", EXP, MAMBA_2S)


def tokens():
    return torch.randint(VOCABULARY, (1, LENGTH), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
@pytest.mark.parametrize("kind", [*KINDS, "paper 1"])
def test_logits_are_those_of_the_formulas(kind, tmp_path):
    folder = checkpoint(tmp_path / "theirs", kind, "softmax" if kind == "paper 1" else None)
    model, unknown = load_checkpoint(folder)
    assert not unknown
    torch.testing.assert_close(model(tokens()).logits[0].double(), logits_of(kind, folder, tokens()[0]), atol=1e-4, rtol=0)


@torch.no_grad()
def test_softmax_has_both_position_modes(tmp_path):
    """320 tokens: beyond 256 positions of bfloat16 step by two, and it matters."""
    folder = checkpoint(tmp_path / "theirs", "softmax")
    exact, rounded = (load_checkpoint(folder, rounded_positions=mode)[0](tokens()).logits[0] for mode in (False, True))
    torch.testing.assert_close(rounded.double(), logits_of("softmax", folder, tokens()[0], True), atol=1e-4, rtol=0)
    assert (exact - rounded).abs()[:257].max() < 1e-5
    assert (exact - rounded).abs()[257:].max() > 1e-2


@torch.no_grad()
def test_pairs_of_the_other_kind_give_other_logits(tmp_path):
    """Interleaved and half-split pairs are told apart by the layout, and mixing them up would show."""
    folder = checkpoint(tmp_path / "theirs", "softmax")
    model, _ = load_checkpoint(folder)
    for layer in model.model.layers:
        layer.mixer.rotary_interleaved = False
    assert (model(tokens()).logits[0].double() - logits_of("softmax", folder, tokens()[0])).abs().max() > 1e-2


def test_unknown_tensors_are_listed_and_masks_are_not(tmp_path):
    extra = {"model.layers.0.self_attn.surprise": torch.zeros(3)}
    folder = checkpoint(tmp_path / "theirs", SQUARED, **extra)
    before = hashes(folder)
    lines = list(import_checkpoint(folder, tmp_path / "ours"))
    listed = [line for line in lines if line.startswith("unknown")]
    assert len(listed) == 1 and "surprise" in listed[0]
    assert MaclaurinForCausalLM.from_pretrained(tmp_path / "ours").config.mixer == "2mamba"
    assert hashes(folder) == before


def hashes(folder):
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


def test_the_command_imports(tmp_path):
    folder = checkpoint(tmp_path / "theirs", "mamba")
    result = CliRunner().invoke(app, ["convert", "--from-thesis", str(folder), "--output", str(tmp_path / "ours")])
    assert result.exit_code == 0, result.output
    assert "mamba2-single-head" in result.output and (tmp_path / "ours" / "model.safetensors").exists()


def break_config(folder):
    (folder / "config.json").write_text("{")


def without(name):
    def change(folder):
        described = json.loads((folder / "config.json").read_text())
        del described[name]
        (folder / "config.json").write_text(json.dumps(described))

    return change


def without_tensor(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.self_attn.A_mask_proj.weight"]
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (break_config, "not valid JSON"),
        (without("attention_type"), "attention_type"),
        (without_tensor, "decay_proj"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"short"), "broken"),
        (lambda folder: (folder / "model.safetensors").rename(folder / "model.pt"), "pickled"),
    ],
)
def test_bad_checkpoints_are_refused_in_a_sentence(change, says, tmp_path):
    folder = checkpoint(tmp_path / "theirs", SQUARED)
    change(folder)
    with pytest.raises(ValueError, match=says):
        load_checkpoint(folder)
