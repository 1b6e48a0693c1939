"""DeltaNet, Gated DeltaNet and 2Mamba's delta rule: each against its formula, written out a second time."""

import pytest
import torch
import torch.nn.functional as F

import maclaurin
from maclaurin.ops import reference

FORMS = ("parallel", "chunked", "recurrent")


def build(name, d_model=24, num_heads=4, dtype=torch.float64, **options):
    torch.manual_seed(0)
    return maclaurin.build_mixer(name, d_model, num_heads, **options).to(dtype)


def tokens(mixer, T=30, B=2):
    return torch.randn(B, T, mixer.d_model, generator=torch.Generator().manual_seed(1), dtype=next(mixer.parameters()).dtype)


def by_hand(mixer, x, rule, activation):
    """The layer from its parameters alone. `rule(q, k, v, beta, log_decay)` has the scale 1."""
    H, W = mixer.num_heads, mixer.conv.kernel_size[0]
    u = F.linear(x, mixer.qkv_proj.weight).mT
    u = F.conv1d(F.pad(u, (W - 1, 0)), mixer.conv.weight, mixer.conv.bias, groups=u.shape[1]).mT
    q, k, v = (part.unflatten(-1, (H, -1)) for part in activation(u).chunk(3, dim=-1))
    q, k = (part / (part.square().sum(-1, keepdim=True) + 1e-6).sqrt() for part in (q, k))
    beta = F.linear(x, mixer.beta_proj.weight).sigmoid()
    log_decay = None
    if mixer.decay == "mamba":
        log_decay = -mixer.A_log.exp() * F.softplus(F.linear(x, mixer.dt_proj.weight) + mixer.dt_bias)
    elif mixer.decay == "softplus":
        log_decay = -F.softplus(F.linear(x, mixer.decay_proj.weight))
    y = rule(q, k, v, beta, log_decay)
    y = mixer.out_norm.weight * y / (y.square().mean(-1, keepdim=True) + mixer.out_norm.eps).sqrt()
    y = y.flatten(2)
    if mixer.gate_proj is not None:
        y = y * F.silu(F.linear(x, mixer.gate_proj.weight))
    return F.linear(y, mixer.out_proj.weight)


@pytest.mark.parametrize("form", [*FORMS, "auto"])
@pytest.mark.parametrize(
    ("name", "order", "activation"),
    [("delta", 1, F.silu), ("gated-delta", 1, F.silu), ("2mamba-delta", 2, lambda u: u)],
    ids=["delta", "gated-delta", "2mamba-delta"],
)
def test_the_layer_is_its_formula(name, order, activation, form):
    mixer = build(name)
    x = tokens(mixer)
    with torch.no_grad():
        expected = by_hand(mixer, x, lambda *given: reference.delta_rule(*given, order=order, scale=1.0), activation)
        torch.testing.assert_close(mixer(x, form=form)[0], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["delta", "gated-delta"])
def test_the_layer_with_the_recurrence_of_flash_linear_attention(name):
    naive = pytest.importorskip(
        "fla.ops.gated_delta_rule.naive", reason="flash-linear-attention (the extra `peers`) is not installed"
    )

    def rule(q, k, v, beta, log_decay):
        log_decay = torch.zeros_like(beta) if log_decay is None else log_decay
        return naive.naive_recurrent_gated_delta_rule(q, k, v, beta, log_decay, scale=1.0)[0]

    mixer = build(name, d_model=64, dtype=torch.float32)
    x = tokens(mixer, 150)
    with torch.no_grad():
        torch.testing.assert_close(mixer(x)[0], by_hand(mixer, x, rule, F.silu), rtol=1e-4, atol=1e-5)


def test_negative_eigenvalues_double_beta():
    plain, negative = build("delta"), build("delta", allow_negative_eigenvalues=True)
    x = tokens(plain)
    with torch.no_grad():
        doubled = by_hand(
            plain, x, lambda q, k, v, beta, _: reference.delta_rule(q, k, v, 2 * beta, scale=1.0), activation=F.silu
        )
        torch.testing.assert_close(negative(x)[0], doubled, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["delta", "gated-delta", "2mamba-delta"])
def test_rotary_positions_survive_every_split(name):
    mixer = build(name, rotary="rope")
    x = tokens(mixer)
    with torch.no_grad():
        whole, end = mixer(x, form="parallel")
        assert (build(name)(x)[0] - whole).norm() > 1e-3 * whole.norm()
        for form in FORMS:
            left, state = mixer(x[:, :11], form=form)
            right, final = mixer(x[:, 11:], state, form=form)
            torch.testing.assert_close(torch.cat([left, right], 1), whole, rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(final.attention.recurrent, end.attention.recurrent, rtol=1e-10, atol=1e-10)
    assert end.nbytes == 2 * mixer.state_nbytes(30)


@pytest.mark.parametrize("options", [{"norm": "none"}, {"gate": True}, {"key_dim": 4, "head_dim": 8}], ids=str)
@pytest.mark.parametrize("name", ["delta", "gated-delta", "2mamba-delta"])
def test_options_keep_the_forms_together(name, options):
    mixer = build(name, **options)
    x = tokens(mixer)
    with torch.no_grad():
        results = [mixer(x, form=form) for form in FORMS]
    for y, state in results[1:]:
        torch.testing.assert_close(y, results[0][0], rtol=1e-10, atol=1e-10)
        assert state.nbytes == 2 * mixer.state_nbytes(30)


def test_the_state_has_its_full_size_from_the_first_token():
    """Per head d·d numbers in the first order and d(d+1)/2·d in the second, and what the convolution carries."""
    for name, features, carried in (("delta", 64, 3), ("gated-delta", 64, 3), ("2mamba-delta", 2080, 1)):
        mixer = build(name, 256, 4, torch.float32)
        expected = 4 * (4 * features * 64 + carried * 3 * 256)
        assert [mixer.state_nbytes(length) for length in (0, 1, 10**6)] == [expected] * 3
    assert build("delta", 256, 4, torch.bfloat16).state_nbytes(1) == 4 * 4 * 64 * 64 + 2 * 3 * 3 * 256
