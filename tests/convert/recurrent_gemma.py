"""A tiny RecurrentGemma: its config.json, its tensors, and its formulas, token by token."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

WIDTH, CHANNELS, HEADS, WINDOW, INNER, VOCAB = 32, 40, 4, 7, 24, 48
TURNING = WIDTH // HEADS // 2
BLOCKS = ["recurrent", "attention"]
LAYERS = 3
DESCRIBED: dict[str, Any] = {
    "model_type": "recurrent_gemma",
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 1,
    "intermediate_size": 2 * INNER,
    "lru_width": CHANNELS,
    "attention_window_size": WINDOW,
    "conv1d_width": 4,
    "logits_soft_cap": 5.0,
    "block_types": BLOCKS,
    "rope_theta": 100.0,
    "partial_rotary_factor": 0.5,
    "vocab_size": VOCAB,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
Weights = dict[str, Tensor]


def kind(layer: int) -> str:
    return BLOCKS[layer % len(BLOCKS)]


def shapes() -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, WIDTH),
        "model.final_norm.weight": (WIDTH,),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        linear = {"mlp_block.gate_proj": (INNER, WIDTH), "mlp_block.up_proj": (INNER, WIDTH)}
        linear |= {"mlp_block.down_proj": (WIDTH, INNER)}
        own: dict[str, tuple[int, ...]] = {"temporal_pre_norm.weight": (WIDTH,), "channel_pre_norm.weight": (WIDTH,)}
        block = CHANNELS // HEADS
        if kind(layer) == "recurrent":
            linear |= {f"temporal_block.{name}": (CHANNELS, WIDTH) for name in ("linear_x", "linear_y")}
            linear |= {"temporal_block.linear_out": (WIDTH, CHANNELS)}
            own |= {"temporal_block.conv_1d.weight": (CHANNELS, 1, 4), "temporal_block.conv_1d.bias": (CHANNELS,)}
            own |= {f"temporal_block.rg_lru.{name}_gate_weight": (HEADS, block, block) for name in ("input", "recurrent")}
            own |= {f"temporal_block.rg_lru.{name}_gate_bias": (HEADS, block) for name in ("input", "recurrent")}
            own["temporal_block.rg_lru.recurrent_param"] = (CHANNELS,)
        else:
            linear |= {"temporal_block.o_proj": (WIDTH, WIDTH)}
            own |= {f"temporal_block.{name}_proj.weight": (WIDTH // HEADS, WIDTH) for name in "kv"}
            own["temporal_block.q_proj.weight"] = (WIDTH, WIDTH)
        own |= {f"{name}.weight": shape for name, shape in linear.items()}
        own |= {f"{name}.bias": shape[:1] for name, shape in linear.items()}
        found |= {prefix + name: shape for name, shape in own.items()}
    return found


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * (1 + weight)


def linear(x: Tensor, w: Weights, name: str) -> Tensor:
    return x @ w[f"{name}.weight"].mT + w[f"{name}.bias"]


def gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def recurrent(x: Tensor, w: Weights) -> Tensor:
    u, gate = linear(x, w, "linear_x"), gelu(linear(x, w, "linear_y"))
    T = x.shape[1]
    past = F.pad(u, (0, 0, 3, 0))
    u = sum(w["conv_1d.weight"][:, 0, tap] * past[:, tap : tap + T] for tap in range(4)) + w["conv_1d.bias"]

    def sigmoid(name: str) -> Tensor:
        blocks = torch.einsum("bthi,hij->bthj", u.unflatten(-1, (HEADS, -1)), w[f"rg_lru.{name}_gate_weight"])
        return torch.sigmoid(blocks + w[f"rg_lru.{name}_gate_bias"]).flatten(2)

    decay = torch.exp(-8 * sigmoid("recurrent") * F.softplus(w["rg_lru.recurrent_param"]))
    scaled = sigmoid("input") * u * (1 - decay**2).sqrt()
    h, outputs = sigmoid("input")[:, 0] * u[:, 0], []  # the first token is not scaled
    for t in range(T):
        h = h if t == 0 else decay[:, t] * h + scaled[:, t]
        outputs.append(h)
    return linear(torch.stack(outputs, dim=1) * gate, w, "linear_out")


def attention(x: Tensor, w: Weights) -> Tensor:
    q, k, v = ((x @ w[f"{name}_proj.weight"].mT).unflatten(-1, (-1, WIDTH // HEADS)) for name in "qkv")
    places = torch.arange(x.shape[1])
    angle = places[:, None, None] * 100.0 ** (-torch.arange(0, TURNING, 2).double() / TURNING)

    def turned(y: Tensor) -> Tensor:
        first, second = y[..., : TURNING // 2], y[..., TURNING // 2 : TURNING]
        turn = (first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin())
        return torch.cat([*turn, y[..., TURNING:]], dim=-1)

    scores = torch.einsum("bthk,bsk->bhts", turned(q), turned(k)[:, :, 0]) * (WIDTH // HEADS) ** -0.5
    behind = places[:, None] - places
    weights = scores.masked_fill((behind < 0) | (behind >= WINDOW), -torch.inf).softmax(-1)
    return linear(torch.einsum("bhts,bsv->bthv", weights, v[:, :, 0]).flatten(2), w, "o_proj")


def logits(w: Weights, ids: Tensor) -> Tensor:
    x = w["model.embed_tokens.weight"][ids] * torch.tensor(WIDTH**0.5).bfloat16().double()
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        own = {name.removeprefix(prefix): tensor for name, tensor in w.items() if name.startswith(prefix)}
        block = {name.removeprefix("temporal_block."): tensor for name, tensor in own.items()}
        mix = recurrent if kind(layer) == "recurrent" else attention
        x = x + mix(norm(x, own["temporal_pre_norm.weight"]), block)
        y = norm(x, own["channel_pre_norm.weight"])
        gated = gelu(linear(y, own, "mlp_block.gate_proj")) * linear(y, own, "mlp_block.up_proj")
        x = x + linear(gated, own, "mlp_block.down_proj")
    z = norm(x, w["model.final_norm.weight"]) @ w["model.embed_tokens.weight"].mT
    return 5.0 * torch.tanh(z / 5.0)
