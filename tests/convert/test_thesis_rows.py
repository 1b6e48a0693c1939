"""Checkpoints of all 38 rows of paper 1 and all 28 of paper 2, in the layout of the authors' classes.

The logits are those of the authors' formulas, which are written out here once more, or the row is refused by name.
"""

import math

import pytest
import torch
import torch.nn.functional as F

from maclaurin.convert.thesis import load_checkpoint
from maclaurin.mixers.published import PAPER_1, PAPER_2
from tests.convert.test_thesis import rms, save_checkpoint

VOCABULARY, MLP, T = 20, 24, 21

# paper 1, row by row: numerator, divisor, which gates stand where, norm
E, RELU, RAW = "capped exp", "relu", "exp"
ROWS_1 = {
    "softmax": (RAW, "sum", "", ""),
    "softmax_clamp_denom": (E, "at least 1", "", ""),
    "softmax_detach_denom": (E, "at least 1", "", ""),
    "softmax_divs": (E, "count", "", ""),
    "softmax_detach_denom_gate": (E, "sum + 1e-4", "out", ""),
    "softmax_gate": (E, "none", "out", ""),
    "softmax_divS_gate": (E, "count", "out", ""),
    "softmax_divS_gatev2": (E, "count", "out", ""),
    "softmax_divS_norm": (E, "count", "", "rms"),
    "softmax_taylor_80terms": ("taylor", "none", "", ""),
    "gated_softmax": (E, "count", "in out", "layer"),
    "gated_softmax_no_norm": (E, "count", "in out", ""),
    "gated_softmax_no_in_gate": (E, "count", "out", "layer"),
    "gated_softmax_no_out_gate": (E, "count", "in", "layer"),
    "gated_softmax_no_out_gate_no_norm": (E, "count", "in", ""),
    "gated_softmax_no_in_gate_no_norm": (E, "count", "out", ""),
    "gated_relu_no_in_gate_no_norm": ("capped relu", "count", "out", ""),
    "gated_softmax_no_gate": (E, "count", "", "layer"),
    "gated_softmax_no_gate_rmsnorm": (E, "count", "", "rms"),
    "gated_softmax_no_gate_rmsnorm_nodivS": (E, "none", "", "rms"),
    "gated_softmax_no_gate_L2norm_nodivS": (E, "none", "", "l2"),
    "gated_softmax_no_gate_L2norm_nodivS_noclamp": (RAW, "none", "", "l2"),
    "gated_ReLU_no_gate_L2norm_nodivS_noclamp": (RELU, "none", "", "l2"),
    "gated_softmax_out_gate_L2norm_nodivS_noclamp": (RAW, "count", "out", "l2"),
    "gated_softmax_post_out_gate_L2norm_nodivS_noclamp": (RAW, "count", "out again", "l2"),
    "gated_softmax_no_gate_no_norm": (E, "count", "", ""),
    "gated_softmax_no_gate_customnorm": (E, "count", "", "dh l2"),
    "gated_softmax_cumgate": (E, "cumulative", "", ""),
    "cumulative_gated_softmax": (E, "count", "1/exp", ""),
    "gated_softmax_plusplus": (E, "count", "in out", "layer"),
    "gated_softmax_plusplus_extratoks": (E, "count", "in out", "layer"),
    "linear_elu": ("elu", "sum", "", ""),
    "linear_relu": ("linear relu", "sum", "", ""),
    "linear_cosine": ("cosine", "none", "", ""),
    "linear_mamba": None,
}
REFUSED_1 = ("gated_softmax_decay", "gated_softmax_plusplus_mamba", "gated_softmax_plusplus_mamba2")


def sizes(kind):
    """d and heads: Mamba's have 64 channels whatever the model."""
    return (128, 2) if "mamba" in kind else (32, 2)


def tensors_1(kind, normal):
    d, heads = sizes(kind)
    found = {"abs_pos_enc.pe": normal(1, 8, d)}
    if kind == "linear_mamba":
        found |= mamba_tensors(d, d, d, heads, 64, normal) | {"mamba_layer.conv1d.bias": normal(d + 128)}
        return found
    found["o_proj.weight"] = normal(d, d)
    _, divisor, gates, norm = ROWS_1[kind]
    if "plusplus" in kind:
        found |= {"qkv_proj.weight": 2 * normal(3 * d, d), "conv1d.weight": normal(3 * d, 1, 4)}
    else:
        found |= {f"{part}_proj.weight": 2 * normal(d, d) for part in "qkv"}
    for gate in ("in", "out"):
        if gate in gates.split() or (gate == "out" and (gates == "1/exp" or divisor == "cumulative")):
            found |= {f"{gate}_gate_proj.weight": normal(heads, d), f"{gate}_gate_proj.bias": normal(heads)}
    if norm in ("layer", "rms"):
        found["out_norm.weight"] = 1 + 0.1 * normal(d // heads)
    if norm == "layer":
        found["out_norm.bias"] = 0.1 * normal(d // heads)
    if kind == "linear_cosine":
        found["norm_const"] = normal(1, heads, 1, 1)
    return found


def tensors_2(kind, normal):
    d, heads = sizes(kind)
    if kind == "mamba":
        return mamba_tensors(d, d, 64, 1, 128, normal)
    found = {"qkv_proj.weight": 2 * normal(3 * d, d), "o_proj.weight": normal(d, d)}
    if kind == "softmax":
        return found | {"rotary_emb.freqs": normal(d // heads // 2)}
    found["attn_mask"] = torch.ones(1, 1, T, T, dtype=torch.bool).triu(1)
    if "in_conv_k_" in kind:
        found |= {"conv1d.weight": normal(3 * d, 1, width_of(kind)), "conv1d.bias": 0.1 * normal(3 * d)}
    if "neg_softplus" in kind:
        found["A_mask_proj.weight"] = normal(heads, d)
    if "discretize" in kind:
        found["A_log"] = normal(heads)
    if "dt_on_values" in kind or "discretize" in kind:
        found["dt_proj.weight"] = normal(heads, d)
    if "D_res" in kind:
        found["D"] = normal(heads, d // heads)
    if "Z_out_gate" in kind:
        found |= {"z_gate_proj.weight": normal(d, d), "z_gate_proj.bias": normal(d)}
    if "output_norm" in kind or "out_norm" in kind:
        found["out_norm.weight"] = 1 + 0.1 * normal(d)
    return found


def mamba_tensors(d, inner, ssm, heads, state, normal):
    """heads of ssm / heads channels go through the recurrence, the other inner - ssm channels through a gated MLP."""
    projected = 2 * (inner - ssm) + ssm + (ssm + 2 * state) + heads
    return {
        "mamba_layer.in_proj.weight": normal(projected, d),
        "mamba_layer.conv1d.weight": normal(ssm + 2 * state, 1, 2),
        "mamba_layer.dt_bias": normal(heads),
        "mamba_layer.A_log": normal(heads),
        "mamba_layer.D": normal(ssm),
        "mamba_layer.norm.weight": 1 + 0.1 * normal(ssm),
        "mamba_layer.out_proj.weight": normal(d, inner),
    }


def width_of(kind):
    return int(kind.split("in_conv_k_")[1][0])


def convolved(x, weight, bias):
    width = weight.shape[-1]
    padded = F.pad(x, (0, 0, width - 1, 0))
    return bias + sum(weight[:, 0, tap] * padded[tap : tap + len(x)] for tap in range(width))


def turned(x, interleaved):
    """Rotary positions on (H, T, dh), theta 10000."""
    dh = x.shape[-1]
    angle = torch.arange(T, dtype=torch.float64)[:, None] * 10000 ** (-torch.arange(0, dh, 2, dtype=torch.float64) / dh)
    first, second = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    pair = (first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos())
    return torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)


def heads_of(x, heads):
    return x.view(T, heads, -1).transpose(0, 1)


def layer_1(kind, x, w):
    d, heads = sizes(kind)
    if kind == "linear_mamba":
        return mamba(x, w, d, heads, 64)
    numerator, divisor, gates, norm = ROWS_1[kind]
    if "plusplus" in kind:
        q, k, v = F.silu(convolved(x @ w["qkv_proj.weight"].T, w["conv1d.weight"], 0)).chunk(3, -1)
    else:
        q, k, v = (x @ w[f"{part}_proj.weight"].T for part in "qkv")
    q, k, v = (heads_of(part, heads) for part in (q, k, v))
    q, k = turned(q, False), turned(k, False)
    gate = {name: x @ w[f"{name}_gate_proj.weight"].T + w[f"{name}_gate_proj.bias"] for name in ("in", "out")
            if f"{name}_gate_proj.weight" in w}  # fmt: skip
    gate = {name: logits.T[..., None] for name, logits in gate.items()}
    scale = (d // heads) ** -0.5
    visible = torch.ones(T, T, dtype=torch.float64).tril()
    count = visible.sum(-1, keepdim=True)
    match numerator:
        case "cosine":  # over the heads, and values over a power of the number of visible keys
            q, k = (part / part.norm(dim=0, keepdim=True).clamp(min=1e-12) for part in (q, k))
            weight = q @ k.mT
            v = v / count ** torch.sigmoid(w["norm_const"][0])
        case "elu":
            weight = (F.elu(q) + 1) @ (F.elu(k) + 1).mT
        case "linear relu":
            weight = F.relu(q) @ F.relu(k).mT
        case "relu" | "capped relu":
            weight = scale * F.relu(q) @ F.relu(k).mT
            weight = weight.clamp(max=5) if numerator == "capped relu" else weight
        case "taylor":
            weight = sum((scale * q @ k.mT) ** n / float(math.factorial(n)) for n in range(80))
        case _:
            score = scale * q @ k.mT
            weight = (score.clamp(max=5) if numerator == E else score).exp()
    weight = weight * visible
    total = weight.sum(-1, keepdim=True)
    by = {"sum": total, "at least 1": total.clamp(min=1), "sum + 1e-4": total + 1e-4, "count": count, "none": 1.0}
    if divisor == "cumulative":
        by["cumulative"] = gate["out"].exp().cumsum(1).clamp(min=1)
    if "in" in gates.split():
        v = v * torch.sigmoid(gate["in"])
    y = weight @ v / by[divisor]
    if gates == "1/exp":
        y = y / gate["out"].exp()
    elif "out" in gates:
        y = y * torch.sigmoid(gate["out"])
    match norm:
        case "layer":
            y = F.layer_norm(y, y.shape[-1:], w["out_norm.weight"], w["out_norm.bias"])
        case "rms":
            y = rms(y, w["out_norm.weight"], torch.finfo(torch.float32).eps)
        case "l2" | "dh l2":
            y = F.normalize(y, dim=-1) * (y.shape[-1] if norm == "dh l2" else 1)
    if gates == "out again":
        y = y * torch.sigmoid(gate["out"])
    return y.transpose(0, 1).flatten(1) @ w["o_proj.weight"].T


def layer_2(kind, x, w):
    d, heads = sizes(kind)
    if kind == "mamba":
        return mamba(x, w, 64, 1, 128)
    qkv = x @ w["qkv_proj.weight"].T
    if "conv1d.weight" in w:
        qkv = convolved(qkv, w["conv1d.weight"], w["conv1d.bias"])
    q, k, v = (heads_of(part, heads) for part in qkv.chunk(3, -1))
    dt = F.softplus(x @ w["dt_proj.weight"].T).T if "dt_proj.weight" in w else None
    skipped = v * w["D"][:, None] if "D" in w else 0
    if "dt_on_values" in kind:
        v = v * dt[..., None]
    if kind == "linear" or "ReLU" in kind:
        q, k = F.relu(q), F.relu(k)
    elif "silu" in kind:
        q, k = F.silu(q), F.silu(k)
    elif kind == "softmax":
        q, k = turned(q, True), turned(k, True)
    score = q @ k.mT * (d // heads) ** -0.5
    power = {"squared": score.square(), "exp": score.exp(), "softmax": score.exp()}
    weight = power.get(kind.split("__")[0], score)
    if "neg_softplus" in kind or "discretize" in kind:
        a = -F.softplus(x @ w["A_mask_proj.weight"].T).T if "neg_softplus" in kind else -w["A_log"].exp()[:, None] * dt
        sums = a.cumsum(-1)
        weight = weight * (sums[:, :, None] - sums[:, None]).tril().exp()
    weight = weight.tril()
    y = weight @ v
    if "out_norm.weight" not in w:
        y = y / weight.sum(-1, keepdim=True)
    y = (y + skipped).transpose(0, 1).flatten(1)
    if "Z_out_gate" in kind:
        y = y * F.silu(x @ w["z_gate_proj.weight"].T + w["z_gate_proj.bias"])
    if "out_norm.weight" in w:
        y = rms(y, w["out_norm.weight"], torch.finfo(torch.float32).eps)
    return y @ w["o_proj.weight"].T


def mamba(x, w, ssm, heads, state):
    w = {name.removeprefix("mamba_layer."): tensor for name, tensor in w.items()}
    rest = w["out_proj.weight"].shape[1] - ssm
    z0, x0, z, xbc, dt = (x @ w["in_proj.weight"].T).split([rest, rest, ssm, ssm + 2 * state, heads], -1)
    u, key, query = F.silu(convolved(xbc, w["conv1d.weight"], w.get("conv1d.bias", 0))).split([ssm, state, state], -1)
    dt, u = F.softplus(dt + w["dt_bias"]), u.view(T, heads, -1)
    memory, rows = torch.zeros(heads, ssm // heads, state, dtype=torch.float64), []
    for t in range(T):
        memory = memory * torch.exp(-w["A_log"].exp() * dt[t])[:, None, None]
        memory = memory + (dt[t, :, None] * u[t])[..., None] * key[t]
        rows.append((memory @ query[t]).flatten() + w["D"] * u[t].flatten())
    y = rms(torch.stack(rows) * F.silu(z), w["norm.weight"], 1e-5)
    return torch.cat([F.silu(z0) * x0, y], -1) @ w["out_proj.weight"].T


def made(folder, paper, kind):
    """A checkpoint of one layer with random weights, and its logits by the formulas."""
    generator = torch.Generator().manual_seed(3)

    def normal(*shape):
        return torch.randn(*shape, generator=generator) * (shape[-1] ** -0.5 if len(shape) > 1 else 1.0)

    d, heads = sizes(kind)
    inner = (tensors_1 if paper == 1 else tensors_2)(kind, normal)
    tensors = {
        "model.embed_tokens.weight": torch.randn(VOCABULARY, d, generator=generator),
        "model.norm.weight": torch.ones(d),
        "lm_head.weight": normal(VOCABULARY, d),
        "model.layers.0.input_layernorm.weight": torch.ones(d),
        "model.layers.0.post_attention_layernorm.weight": torch.ones(d),
        "model.layers.0.mlp.gate_proj.weight": normal(MLP, d),
        "model.layers.0.mlp.up_proj.weight": normal(MLP, d),
        "model.layers.0.mlp.down_proj.weight": normal(d, MLP),
        **{f"model.layers.0.self_attn.{name}": tensor for name, tensor in inner.items()},
    }
    described = {"hidden_size": d, "num_attention_heads": heads, "num_hidden_layers": 1, "intermediate_size": MLP}
    save_checkpoint(folder, tensors, kind, vocab_size=VOCABULARY, max_position_embeddings=T, **described)
    wide = {name.removeprefix("model.layers.0."): tensor.double() for name, tensor in tensors.items()}
    ids = torch.arange(T) % VOCABULARY
    h = wide["model.embed_tokens.weight"][ids]
    w = {name.removeprefix("self_attn."): tensor for name, tensor in wide.items() if name.startswith("self_attn.")}
    h = h + (layer_1 if paper == 1 else layer_2)(kind, rms(h, 1, 1e-5), w)
    x = rms(h, 1, 1e-5)
    gated = F.silu(x @ wide["mlp.gate_proj.weight"].T) * (x @ wide["mlp.up_proj.weight"].T)
    return ids, rms(h + gated @ wide["mlp.down_proj.weight"].T, 1, 1e-5) @ wide["lm_head.weight"].T


def test_the_formulas_here_cover_every_name():
    assert len(ROWS_1) + len(REFUSED_1) == 38 and len(PAPER_2) == 28
    assert {*ROWS_1, "gated_softmax_decay"} == set(PAPER_1)


@torch.no_grad()
@pytest.mark.parametrize(("paper", "kind"), [*((1, kind) for kind in ROWS_1), *((2, kind) for kind in PAPER_2)])
def test_every_row_loads_with_the_logits_of_the_authors_code(paper, kind, tmp_path):
    ids, expected = made(tmp_path / "theirs", paper, kind)
    assert (tmp_path / "theirs" / "model.safetensors").stat().st_size < 2e6
    model, unknown = load_checkpoint(tmp_path / "theirs")
    assert not unknown
    torch.testing.assert_close(model(ids[None]).logits[0].double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", REFUSED_1)
def test_what_no_mixer_computes_is_refused_by_name(kind, tmp_path):
    made(tmp_path / "theirs", 1, "gated_softmax")
    config = tmp_path / "theirs" / "config.json"
    config.write_text(config.read_text().replace('"gated_softmax"', f'"{kind}"'))
    with pytest.raises(ValueError, match=f"{kind}.*cannot be loaded"):
        load_checkpoint(tmp_path / "theirs")
