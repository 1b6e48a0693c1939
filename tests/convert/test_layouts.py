"""Published checkpoints compute here what their own formulas say, and leave as they came."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from maclaurin.convert.layouts import LAYOUTS, export_layout, import_layout
from maclaurin.models import MaclaurinForCausalLM
from tests.convert import recurrent_gemma

WIDTH, LAYERS, VOCAB, EPS = 32, 2, 48, 1e-5
Weights = dict[str, Tensor]


def draw(seed: int, shapes: dict[str, tuple[int, ...]]) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) * (shape[-1] ** -0.5) for name, shape in shapes.items()}


# --- the formulas, token by token


def rms(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * (1 + weight)


def conv(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, active: bool = True) -> Tensor:
    width = weight.shape[-1]
    y = F.conv1d(x.mT, weight, bias, padding=width - 1, groups=len(weight))[..., : x.shape[1]].mT
    return F.silu(y) if active else y


def scanned(x: Tensor, step: Callable[[Tensor, int], tuple[Tensor, Tensor]], state: Tensor) -> Tensor:
    outputs = []
    for t in range(x.shape[1]):
        state, y = step(state, t)
        outputs.append(y)
    return torch.stack(outputs, dim=1)


def mamba2(x: Tensor, w: Weights) -> Tensor:
    H, P, G, N = 8, 8, 2, 4
    z, xbc, dt = (x @ w["in_proj.weight"].mT).split([H * P, H * P + 2 * G * N, H], dim=-1)
    v, b, c = conv(xbc, w["conv1d.weight"], w["conv1d.bias"]).split([H * P, G * N, G * N], dim=-1)
    v, dt = v.unflatten(-1, (H, P)), F.softplus(dt + w["dt_bias"])
    b, c = (part.unflatten(-1, (G, N)).repeat_interleave(H // G, dim=2) for part in (b, c))
    decay = (-w["A_log"].exp() * dt).exp()

    def step(S: Tensor, t: int) -> tuple[Tensor, Tensor]:
        S = S * decay[:, t, :, None, None] + (dt[:, t, :, None] * v[:, t])[..., None] * b[:, t, :, None]
        return S, (S * c[:, t, :, None]).sum(-1) + w["D"][:, None] * v[:, t]

    y = scanned(x, step, x.new_zeros(len(x), H, P, N)).flatten(2) * F.silu(z)
    groups = y.unflatten(-1, (G, -1))
    y = (groups * (groups.square().mean(-1, keepdim=True) + EPS).rsqrt()).flatten(2) * w["norm.weight"]
    return y @ w["out_proj.weight"].mT


def mamba(x: Tensor, w: Weights) -> Tensor:
    N, rank = 4, 2
    u, z = (x @ w["in_proj.weight"].mT).chunk(2, dim=-1)
    u = conv(u, w["conv1d.weight"], w["conv1d.bias"])
    r, b, c = (u @ w["x_proj.weight"].mT).split([rank, N, N], dim=-1)
    dt = F.softplus(r @ w["dt_proj.weight"].mT + w["dt_proj.bias"])

    def step(S: Tensor, t: int) -> tuple[Tensor, Tensor]:
        S = S * (-dt[:, t, :, None] * w["A_log"].exp()).exp() + (dt * u)[:, t, :, None] * b[:, t, None]
        return S, (S * c[:, t, None]).sum(-1) + w["D"] * u[:, t]

    return (scanned(x, step, x.new_zeros(len(x), 2 * WIDTH, N)) * F.silu(z)) @ w["out_proj.weight"].mT


def heads(x: Tensor, w: Weights, name: str, count: int, convolved: bool = True) -> Tensor:
    x = x @ w[f"{name}_proj.weight"].mT
    return (conv(x, w[f"{name}_conv1d.weight"]) if convolved else x).unflatten(-1, (count, -1))


def unit(x: Tensor) -> Tensor:
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


def delta(x: Tensor, w: Weights) -> Tensor:
    """Both delta rules: the gated one has a_proj and g_proj, and a key for every two heads of values."""
    gated, H = "a_proj.weight" in w, 4
    K = 2 if gated else 4
    q, k = (unit(heads(x, w, name, K)).repeat_interleave(H // K, dim=2) for name in "qk")
    v, beta = heads(x, w, "v", H), torch.sigmoid(x @ w["b_proj.weight"].mT)
    decay = torch.ones_like(beta)
    if gated:
        decay = (-w["A_log"].exp() * F.softplus(x @ w["a_proj.weight"].mT + w["dt_bias"])).exp()

    def step(S: Tensor, t: int) -> tuple[Tensor, Tensor]:
        S = S * decay[:, t, :, None, None]
        missing = v[:, t] - torch.einsum("bhkv,bhk->bhv", S, k[:, t])
        S = S + torch.einsum("bhk,bhv->bhkv", k[:, t] * beta[:, t, :, None], missing)
        return S, torch.einsum("bhkv,bhk->bhv", S, q[:, t]) * k.shape[-1] ** -0.5

    y = scanned(x, step, x.new_zeros(len(x), H, k.shape[-1], v.shape[-1]))
    y = y * (y.square().mean(-1, keepdim=True) + EPS).rsqrt() * w["o_norm.weight"]
    y = y.flatten(2) * F.silu(x @ w["g_proj.weight"].mT) if gated else y.flatten(2)
    return y @ w["o_proj.weight"].mT


def gla(x: Tensor, w: Weights) -> Tensor:
    H = 4
    q, k, v = (heads(x, w, name, H, convolved=False) for name in "qkv")
    low = x @ w["gk_proj.0.weight"].mT @ w["gk_proj.1.weight"].mT + w["gk_proj.1.bias"]
    decay = (F.logsigmoid(low) / 16).exp().unflatten(-1, (H, -1))

    def step(S: Tensor, t: int) -> tuple[Tensor, Tensor]:
        S = S * decay[:, t, ..., None] + k[:, t, ..., None] * v[:, t, :, None]
        return S, torch.einsum("bhkv,bhk->bhv", S, q[:, t]) * k.shape[-1] ** -0.5

    y = scanned(x, step, x.new_zeros(len(x), H, k.shape[-1], v.shape[-1]))
    y = y * (y.square().mean(-1, keepdim=True) + EPS).rsqrt() * w["g_norm_swish_gate.weight"]
    return (y.flatten(2) * F.silu(x @ w["g_proj.weight"].mT)) @ w["o_proj.weight"].mT


def retnet(x: Tensor, w: Weights) -> Tensor:
    """Rotated by halves; head h forgets 2^(-5-h) of what it holds."""
    H = 4
    q, k, v = (heads(x, w, name, H, convolved=False) for name in "qkv")
    half = q.shape[-1] // 2
    angle = torch.arange(x.shape[1])[:, None].double() * 10000.0 ** (-torch.arange(half).double() / half)
    turn = torch.polar(torch.ones_like(angle), angle)[:, None]
    q, k = (torch.cat([z.real, z.imag], -1) for z in (torch.complex(y[..., :half], y[..., half:]) * turn for y in (q, k)))
    decay = 1 - 2.0 ** (-5 - torch.arange(H).double())

    def step(S: Tensor, t: int) -> tuple[Tensor, Tensor]:
        S = S * decay[:, None, None] + k[:, t, ..., None] * v[:, t, :, None]
        return S, torch.einsum("bhkv,bhk->bhv", S, q[:, t]) * k.shape[-1] ** -0.5

    y = scanned(x, step, x.new_zeros(len(x), H, k.shape[-1], v.shape[-1]))
    y = y * (y.square().mean(-1, keepdim=True) + EPS).rsqrt() * w["g_norm_swish_gate.weight"]
    return (y.flatten(2) * F.silu(x @ w["g_proj.weight"].mT)) @ w["o_proj.weight"].mT


def bounds(weights: Weights) -> Tensor:
    """Of all layers: the sum of the shares of a softmax over layers, without that of the first."""
    shares = weights["model.lower_bounds"].exp() / weights["model.lower_bounds"].exp().sum(0)
    return shares.cumsum(0) - shares[0]


def hgrn2(x: Tensor, w: Weights) -> Tensor:
    H = 2
    q, z, v = (conv(x @ w[f"{name}_proj.weight"].mT, w[f"{name}_conv1d.weight"], active=False) for name in "qfi")
    forget = w["bound"] + (1 - w["bound"]) * torch.sigmoid(z)
    q, forget, v = (part.unflatten(-1, (H, -1)) for part in (F.silu(q), forget, v))

    def step(S: Tensor, t: int) -> tuple[Tensor, Tensor]:
        S = S * forget[:, t, ..., None] + (1 - forget[:, t])[..., None] * v[:, t, :, None]
        return S, torch.einsum("bhkv,bhk->bhv", S, q[:, t]) * q.shape[-1] ** -0.5

    y = scanned(x, step, x.new_zeros(len(x), H, q.shape[-1], v.shape[-1]))
    return rms(y.flatten(2), w["g_norm.weight"] - 1) @ w["o_proj.weight"].mT


def xlstm(x: Tensor, w: Weights) -> Tensor:
    """Without stabilisation: the input gates of a small model are no large numbers."""
    H = 4
    q, k, v = ((x @ w[f"{name}.weight"].mT).unflatten(-1, (H, -1)) for name in "qkv")
    i, f = (15 * torch.tanh((x @ w[f"{g}.weight"].mT + w[f"{g}.bias"]) / 15) for g in ("igate_preact", "fgate_preact"))

    def step(S: Tensor, t: int) -> tuple[Tensor, Tensor]:
        new = torch.cat([v[:, t], torch.ones_like(v[:, t, :, :1])], -1)
        S = S * torch.sigmoid(f[:, t])[..., None, None]
        S = S + torch.einsum("bh,bhk,bhv->bhkv", i[:, t].exp(), k[:, t], new)
        y = torch.einsum("bhkv,bhk->bhv", S, q[:, t]) * k.shape[-1] ** -0.5
        return S, y[..., :-1] / (y[..., -1:].abs().clamp(min=1) + 1e-6)

    y = scanned(x, step, x.new_zeros(len(x), H, k.shape[-1], v.shape[-1] + 1))
    y = F.layer_norm(y, y.shape[-1:], eps=EPS).flatten(2) * w["multihead_norm.weight"]
    return (torch.sigmoid(x @ w["ogate_preact.weight"].mT) * y) @ w["out_proj.weight"].mT


def fused_xlstm(x: Tensor, w: Weights) -> Tensor:
    own = dict(zip(("q", "k", "v", "ogate_preact"), w["qkv_opreact.weight"].split([16, 16, WIDTH, WIDTH]), strict=True))
    for part in ("weight", "bias"):
        own["igate_preact." + part], own["fgate_preact." + part] = w["ifgate_preact." + part].chunk(2)
    return xlstm(x, w | {name if "." in name else f"{name}.weight": tensor for name, tensor in own.items()})


# --- checkpoints: config.json, shapes of a layer's mixer, the mixer, the words of its layout

INNER = 2 * WIDTH
MAMBA_2 = {
    "A_log": (8,),
    "D": (8,),
    "dt_bias": (8,),
    "in_proj.weight": (2 * INNER + 16 + 8, WIDTH),
    "conv1d.weight": (INNER + 16, 1, 4),
    "conv1d.bias": (INNER + 16,),
    "norm.weight": (INNER,),
    "out_proj.weight": (WIDTH, INNER),
}
MAMBA = {
    "A_log": (INNER, 4),
    "D": (INNER,),
    "in_proj.weight": (2 * INNER, WIDTH),
    "x_proj.weight": (10, INNER),
    "dt_proj.weight": (INNER, 2),
    "dt_proj.bias": (INNER,),
    "conv1d.weight": (INNER, 1, 4),
    "conv1d.bias": (INNER,),
    "out_proj.weight": (WIDTH, INNER),
}
STATE_SPACES = {"d_model": WIDTH, "d_intermediate": 0, "n_layer": LAYERS, "vocab_size": VOCAB - 3, "rms_norm": True}
STATE_SPACES |= {"pad_vocab_size_multiple": 8, "tie_embeddings": True}
TRANSFORMERS = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "vocab_size": VOCAB, "state_size": 4, "expand": 2}
TRANSFORMERS |= {"tie_word_embeddings": False, "layer_norm_epsilon": EPS, "bos_token_id": 0, "eos_token_id": 1}
FLA = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "vocab_size": VOCAB, "norm_eps": EPS, "num_heads": 4}
FLA |= {"bos_token_id": 0, "eos_token_id": 1}
XLSTM = {"model_type": "xlstm", "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "vocab_size": VOCAB, "num_heads": 4}
XLSTM |= {"norm_eps": EPS, "output_logit_soft_cap": 5.0, "bos_token_id": 0, "eos_token_id": 1}
XLSTM |= {"ffn_proj_factor": 0.75, "ffn_round_up_to_multiple_of": 8}


def projections(keys: int, values: int, gate: bool, width: int = 4) -> dict[str, tuple[int, ...]]:
    sizes = {"q": keys, "k": keys, "v": values}
    shapes: dict[str, tuple[int, ...]] = {f"{name}_proj.weight": (size, WIDTH) for name, size in sizes.items()}
    if width:
        shapes |= {f"{name}_conv1d.weight": (size, 1, width) for name, size in sizes.items()}
    return shapes | {"o_proj.weight": (WIDTH, values)} | ({"g_proj.weight": (values, WIDTH)} if gate else {})


CHECKPOINTS: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]], Callable[[Tensor, Weights], Tensor]]] = {
    "state-spaces-mamba2": (
        STATE_SPACES | {"ssm_cfg": {"layer": "Mamba2", "d_state": 4, "ngroups": 2, "headdim": 8}},
        MAMBA_2,
        mamba2,
    ),
    "state-spaces-mamba": (STATE_SPACES | {"ssm_cfg": {"d_state": 4}}, MAMBA, mamba),
    "transformers-mamba2": (
        TRANSFORMERS | {"model_type": "mamba2", "num_heads": 8, "head_dim": 8, "n_groups": 2},
        MAMBA_2,
        mamba2,
    ),
    "transformers-mamba": (TRANSFORMERS | {"model_type": "mamba"}, MAMBA, mamba),
    "fla-gated-deltanet": (
        FLA | {"model_type": "gated_deltanet", "num_heads": 2, "num_v_heads": 4, "head_dim": 8, "expand_v": 1.5},
        projections(16, 48, gate=True)
        | {"b_proj.weight": (4, WIDTH), "a_proj.weight": (4, WIDTH), "A_log": (4,), "dt_bias": (4,), "o_norm.weight": (12,)},
        delta,
    ),
    "fla-deltanet": (
        FLA | {"model_type": "delta_net"},
        projections(32, 32, gate=False) | {"b_proj.weight": (4, WIDTH), "o_norm.weight": (8,)},
        delta,
    ),
    "fla-gla": (
        FLA | {"model_type": "gla"},
        projections(16, 32, gate=True, width=0)
        | {"gk_proj.0.weight": (6, WIDTH), "gk_proj.1.weight": (16, 6), "gk_proj.1.bias": (16,)}
        | {"g_norm_swish_gate.weight": (8,)},
        gla,
    ),
    "fla-retnet": (
        FLA | {"model_type": "retnet"},
        projections(32, 64, gate=True, width=0) | {"g_norm_swish_gate.weight": (16,)},
        retnet,
    ),
    "fla-hgrn2": (
        FLA | {"model_type": "hgrn2", "num_heads": None, "expand_ratio": 16, "use_short_conv": True, "norm_eps": 1e-4},
        {f"{name}_proj.weight": (WIDTH, WIDTH) for name in "qfio"}
        | {f"{name}_conv1d.weight": (WIDTH, 1, 4) for name in "qfi"}
        | {"g_norm.weight": (WIDTH,)},
        hgrn2,
    ),
    "transformers-xlstm": (
        XLSTM,
        {f"{name}.weight": (16, WIDTH) for name in "qk"}
        | {f"{name}.weight": (WIDTH, WIDTH) for name in ("v", "ogate_preact", "out_proj")}
        | {f"{name}.weight": (4, WIDTH) for name in ("igate_preact", "fgate_preact")}
        | {f"{name}.bias": (4,) for name in ("igate_preact", "fgate_preact")}
        | {"multihead_norm.weight": (WIDTH,)},
        xlstm,
    ),
    "transformers-xlstm-fused": (
        XLSTM | {"weight_mode": "fused"},
        {"qkv_opreact.weight": (2 * 16 + 2 * WIDTH, WIDTH), "ifgate_preact.weight": (8, WIDTH), "ifgate_preact.bias": (8,)}
        | {"out_proj.weight": (WIDTH, WIDTH), "multihead_norm.weight": (WIDTH,)},
        fused_xlstm,
    ),
}


@dataclass(frozen=True)
class Words:
    """What a layout calls the parts of a model."""

    embeddings: str
    layer: str
    mixer: str
    norm: str
    last_norm: str
    mlp: tuple[str, ...] = ()  # its norm, then its projections: gate and up, or both in one, and down


def words(layout: str) -> Words:
    if layout.endswith("fused"):
        mlp = ("norm_ffn", "ffn.proj_up_gate_z", "ffn.proj_down")
        return dataclasses.replace(words("transformers-xlstm"), mlp=mlp)
    if layout.startswith("fla"):
        mlp = ("mlp_norm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
        return Words("model.embeddings", "model.layers", "attn", "attn_norm", "model.norm", mlp)
    if layout == "transformers-xlstm":
        mlp = ("norm_ffn", "ffn.proj_up_gate", "ffn.proj_up", "ffn.proj_down")
        return Words("backbone.embeddings", "backbone.blocks", "mlstm_layer", "norm_mlstm", "backbone.out_norm", mlp)
    embeddings = "backbone.embeddings" if layout.startswith("transformers") else "backbone.embedding"
    return Words(embeddings, "backbone.layers", "mixer", "norm", "backbone.norm_f")


GEMMA = "transformers-recurrent-gemma"  # has formulas of its own for all that is around its mixers
each_layout = pytest.mark.parametrize("layout", [*sorted(CHECKPOINTS), GEMMA])


def checkpoint(folder: Path, layout: str) -> Weights:
    described = recurrent_gemma.DESCRIBED if layout == GEMMA else CHECKPOINTS[layout][0]
    weights = draw(3, recurrent_gemma.shapes() if layout == GEMMA else shapes_of(layout))
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(described))
    (folder / "tokenizer.json").write_text("{}")
    save_file(weights, folder / "model.safetensors")
    return weights


def shapes_of(layout: str) -> dict[str, tuple[int, ...]]:
    described, mixer, _ = CHECKPOINTS[layout]
    named = words(layout)
    shapes: dict[str, tuple[int, ...]] = {
        f"{named.embeddings}.weight": (VOCAB, WIDTH),
        f"{named.last_norm}.weight": (WIDTH,),
    }
    if layout == "fla-hgrn2":
        shapes["model.lower_bounds"] = (LAYERS, WIDTH)
    if not described.get("tie_embeddings"):
        shapes["lm_head.weight"] = (VOCAB, WIDTH)
    for index in range(LAYERS):
        layer = f"{named.layer}.{index}."
        shapes |= {f"{layer}{named.mixer}.{name}": shape for name, shape in mixer.items()}
        shapes[f"{layer}{named.norm}.weight"] = (WIDTH,)
        if named.mlp:
            norm, *up, down = named.mlp
            shapes |= {f"{layer}{norm}.weight": (WIDTH,), f"{layer}{down}.weight": (WIDTH, 24)}
            shapes |= {f"{layer}{name}.weight": (48 // len(up), WIDTH) for name in up}
    return shapes


def logits(layout: str, weights: Weights, ids: Tensor) -> Tensor:
    """Of the whole model, in double precision."""
    w = {name: tensor.double() for name, tensor in weights.items()}
    if layout == GEMMA:
        return recurrent_gemma.logits(w, ids)
    described, _, mix = CHECKPOINTS[layout]
    named = words(layout)
    x, eps = w[f"{named.embeddings}.weight"][ids], described.get("norm_eps", EPS)
    for index in range(LAYERS):
        prefix = f"{named.layer}.{index}."
        layer = {name.removeprefix(prefix): tensor for name, tensor in w.items() if name.startswith(prefix)}
        own = f"{named.mixer}."
        inner = {name.removeprefix(own): tensor for name, tensor in layer.items() if name.startswith(own)}
        if layout == "fla-hgrn2":
            inner["bound"] = bounds(w)[index]
        x = x + mix(rms(x, layer[f"{named.norm}.weight"] - 1, eps), inner)
        if named.mlp:
            norm, *projections = (layer[f"{name}.weight"] for name in named.mlp)
            gate, up = torch.cat(projections[:-1]).mT.chunk(2, dim=-1)
            down = projections[-1].mT
            y = rms(x, norm - 1, eps)
            x = x + (F.silu(y @ gate) * (y @ up)) @ down
    z = rms(x, w[f"{named.last_norm}.weight"] - 1, eps) @ w.get("lm_head.weight", w[f"{named.embeddings}.weight"]).mT
    cap = described.get("output_logit_soft_cap")
    return z if cap is None else cap * torch.tanh(z / cap)


def tokens(*shape: int) -> Tensor:
    return torch.randint(2, VOCAB, shape, generator=torch.Generator().manual_seed(5))


@each_layout
def test_a_checkpoint_computes_its_formula(layout: str, tmp_path: Path) -> None:
    weights = checkpoint(tmp_path / "theirs", layout)
    *unknown, summary, _ = import_layout(tmp_path / "theirs", tmp_path / "ours")
    assert unknown == [] and summary.startswith(layout)
    assert (tmp_path / "ours" / "tokenizer.json").read_text() == "{}"
    model = MaclaurinForCausalLM.from_pretrained(tmp_path / "ours").eval()
    ids = tokens(2, 40)
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits.double(), logits(layout, weights, ids), rtol=0, atol=1e-5)


@each_layout
def test_greedy_generation_is_that_of_the_formula(layout: str, tmp_path: Path) -> None:
    weights = checkpoint(tmp_path / "theirs", layout)
    list(import_layout(tmp_path / "theirs", tmp_path / "ours"))
    model = MaclaurinForCausalLM.from_pretrained(tmp_path / "ours").eval()
    ids = expected = tokens(1, 6)
    for _ in range(8):
        expected = torch.cat([expected, logits(layout, weights, expected)[:, -1:].argmax(-1)], dim=1)
    given = model.generate(ids, max_new_tokens=8, do_sample=False, eos_token_id=VOCAB + 1, pad_token_id=0)
    assert given.tolist() == expected.tolist()


@each_layout
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_way_there_and_back_changes_no_bit(layout: str, dtype: torch.dtype, tmp_path: Path) -> None:
    weights = {name: tensor.to(dtype) for name, tensor in checkpoint(tmp_path / "theirs", layout).items()}
    save_file(weights, tmp_path / "theirs" / "model.safetensors")
    list(import_layout(tmp_path / "theirs", tmp_path / "ours"))
    list(export_layout(tmp_path / "ours", tmp_path / "back", layout))
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert set(back) == set(weights)
    for name, tensor in weights.items():
        assert back[name].dtype == dtype and torch.equal(back[name], tensor), name
    assert (tmp_path / "back" / "tokenizer.json").exists()
    list(import_layout(tmp_path / "back", tmp_path / "again"))  # config.json says the same
    first, second = ((tmp_path / folder / "config.json").read_text() for folder in ("ours", "again"))
    assert first == second


@pytest.mark.parametrize("layout", ["transformers-mamba", "transformers-mamba2", "transformers-xlstm", GEMMA])
def test_transformers_agrees_and_reads_what_is_exported(layout: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    checkpoint(tmp_path / "theirs", layout)
    list(import_layout(tmp_path / "theirs", tmp_path / "ours"))
    list(export_layout(tmp_path / "ours", tmp_path / "back", layout))
    ids = tokens(2, 30)
    ours, back = (AutoModelForCausalLM.from_pretrained(tmp_path / folder).eval() for folder in ("ours", "back"))
    with torch.no_grad():
        expected = back(ids, use_cache=False).logits
        torch.testing.assert_close(ours(ids).logits, expected, rtol=0, atol=1e-5)


def test_unknown_tensors_are_listed(tmp_path: Path) -> None:
    weights = checkpoint(tmp_path / "theirs", "fla-gla")
    save_file(weights | {"model.layers.0.attn.extra": torch.zeros(1)}, tmp_path / "theirs" / "model.safetensors")
    said = list(import_layout(tmp_path / "theirs", tmp_path / "ours"))
    assert said[0] == "unknown and left out: model.layers.0.attn.extra"


def test_what_the_mixers_do_not_compute_is_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path / "theirs", "fla-gla")
    file = tmp_path / "theirs" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"feature_map": "relu"}))
    with pytest.raises(ValueError, match="feature_map"):
        list(import_layout(tmp_path / "theirs", tmp_path / "ours"))
    file.write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ValueError, match="known layout"):
        list(import_layout(tmp_path / "theirs", tmp_path / "ours"))


def test_every_layout_is_tested() -> None:
    assert {*CHECKPOINTS, GEMMA} == set(LAYOUTS)
