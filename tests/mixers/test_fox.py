"""FoX against PyTorch's own attention with the bias written out, and the special cases around it."""

import pytest
import torch
from torch.nn.functional import logsigmoid, relu, scaled_dot_product_attention

import maclaurin
from maclaurin.ops import linear_attention, power_attention, rotary


def build(name, dtype, **options):
    torch.manual_seed(0)
    return maclaurin.build_mixer(name, 48, 4, **options).to(dtype)


def tokens(batch, length, dtype, seed=1):
    return torch.randn(batch, length, 48, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)], ids=str)
@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("rotation", ["none", "rope"])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_fox_is_softmax_with_a_bias(dtype, tolerance, window, rotation, kv_heads):
    T = 300
    mixer = build("fox", dtype, window=window, rotary=rotation, num_kv_heads=kv_heads)
    torch.nn.init.normal_(mixer.decay_proj.bias)
    x = tokens(2, T, dtype)
    with torch.no_grad():
        q, k, v = (part.unflatten(-1, (-1, 12)) for part in mixer.qkv_proj(x).split(mixer.qkv_sizes, dim=-1))
        if rotation == "rope":
            q, k = (rotary(part, torch.arange(T)) for part in (q, k))
        sums = logsigmoid(mixer.decay_proj(x)).double().cumsum(1).transpose(1, 2)
        bias = (sums[..., :, None] - sums[..., None, :]).to(dtype)
        lag = torch.arange(T)[:, None] - torch.arange(T)
        hidden = (lag < 0) if window is None else (lag < 0) | (lag >= window)
        bias = bias.masked_fill(hidden, -torch.inf).repeat_interleave(4 // kv_heads, dim=1)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        y = scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=kv_heads != 4)
        expected = mixer.out_proj(y.transpose(1, 2).flatten(2))
        for form in ("auto", "parallel", "chunked"):
            assert (mixer(x, form=form)[0] - expected).abs().max() <= tolerance, form


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_fox_pro_is_fox_between_a_shift_and_a_gate(kv_heads):
    """Token by token: k and v are means of their own and the one before; norms of q and k; a norm per head, a sigmoid."""
    mixer = build("fox-pro", torch.float64, num_kv_heads=kv_heads)
    for weight in (mixer.qk_norm.q_weight, mixer.qk_norm.k_weight, mixer.head_norm_weight):
        torch.nn.init.uniform_(weight, 0.5, 1.5)
    x = tokens(2, 12, torch.float64)

    def unit(z):
        return z / (z.square().mean(-1, keepdim=True) + 1e-6).sqrt()

    with torch.no_grad():
        q, k, v = mixer.qkv_proj(x).split(mixer.qkv_sizes, -1)
        of_k, of_v = mixer.shift_proj(x).sigmoid().chunk(2, -1)
        q, k, v = (part.unflatten(-1, (heads, -1)) for part, heads in ((q, 4), (k, kv_heads), (v, kv_heads)))
        before = [torch.cat([torch.zeros_like(part[:, :1]), part[:, :-1]], 1) for part in (k, v)]
        k = of_k[..., None] * before[0] + (1 - of_k[..., None]) * k
        v = of_v[..., None] * before[1] + (1 - of_v[..., None]) * v
        q, k = unit(q) * mixer.qk_norm.q_weight, unit(k) * mixer.qk_norm.k_weight
        k, v = (part.repeat_interleave(4 // kv_heads, 2) for part in (k, v))
        summed = torch.nn.functional.logsigmoid(mixer.decay_proj(x)).repeat_interleave(4 // kv_heads, 2).cumsum(1)
        scores = torch.einsum("bthk,bshk->bhts", q, k) / q.shape[-1] ** 0.5
        scores = scores + summed.transpose(1, 2)[..., None] - summed.transpose(1, 2)[:, :, None]
        hidden = torch.ones(12, 12, dtype=torch.bool).triu(1)
        y = torch.einsum("bhts,bshv->bthv", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)
        expected = mixer.out_proj((unit(y) * mixer.head_norm_weight).flatten(2) * mixer.out_gate_proj(x).sigmoid())
        assert (mixer(x)[0] - expected).abs().max() <= 1e-12


def test_fox_pro_has_a_shift_and_a_gate_of_its_own():
    for options, says in (
        ({"conv_width": 2}, "conv_width must be 0"),
        ({"shared_keys": True}, "shared_keys must be False"),
        ({"gate": True}, "gate must be False"),
    ):
        with pytest.raises(ValueError, match=says):
            build("fox-pro", torch.float32, **options)


def test_a_gate_that_forgets_nothing_is_softmax():
    fox, softmax = (build(name, torch.float64, rotary="rope") for name in ("fox", "softmax"))
    torch.nn.init.zeros_(fox.decay_proj.weight)
    torch.nn.init.constant_(fox.decay_proj.bias, 50.0)
    softmax.load_state_dict(fox.state_dict(), strict=False)
    x = tokens(2, 40, torch.float64)
    with torch.no_grad():
        assert (fox(x)[0] - softmax(x)[0]).abs().max() <= 1e-12


@pytest.mark.parametrize("init", ["torch", "llama"])
def test_the_gate_starts_without_bias(init):
    assert (build("fox", torch.float32, init=init).decay_proj.bias == 0).all()


def test_decay_zero_and_order_one_is_linear_attention():
    q, k, v = (torch.randn(2, 50, 4, 6, generator=torch.Generator().manual_seed(seed)).double() for seed in (1, 2, 3))
    q, k = relu(q), relu(k)
    weights = torch.einsum("bthk,bshk->bhts", q, k).tril()
    expected = torch.einsum("bhts,bshv->bthv", weights, v) / weights.sum(-1).transpose(1, 2)[..., None].clamp(min=1e-300)
    for form in ("parallel", "chunked", "recurrent"):
        for decay in (None, torch.zeros(2, 50, 4).double(), torch.zeros(2, 50, 4, 6).double()):
            assert (linear_attention(q, k, v, decay, form=form)[0] - expected).abs().max() <= 1e-12
        still = torch.zeros(2, 50, 4).double()
        assert (power_attention(q, k, v, still, order=1, form=form)[0] - expected).abs().max() <= 1e-12


def test_2mamba_of_order_one_without_decay_is_the_linear_mixer():
    options = {"order": 1, "decay": "none", "conv_width": 0, "feature_map": "relu"}
    squared, linear = build("2mamba", torch.float64, **options), build("linear", torch.float64)
    x = tokens(2, 40, torch.float64)
    with torch.no_grad():
        assert torch.equal(squared(x)[0], linear(x)[0])
