"""Mamba-2's published layer with its switches, and Mamba's, against their formulas written out token by token."""

import pytest
import torch
import torch.nn.functional as F

import maclaurin

OPTIONS = [
    {},
    {"norm_before_gate": True},
    {"rmsnorm": False},
    {"dt_limit": (0.02, 0.1)},
    {"norm_per_group": False},
    {"norm_before_gate": True, "norm_per_group": False, "dt_limit": (0.0, 0.1)},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@torch.no_grad()
def test_the_layer_is_its_formulas(options):
    torch.manual_seed(0)
    heads, groups, state, channels, tokens = 4, 2, 6, 8, 13
    mixer = maclaurin.build_mixer("mamba2", 32, heads, expand=1, d_state=state, n_groups=groups, **options).double()
    mixer.dt_bias += 2  # so that time steps lie on both sides of the limits
    x = torch.randn(1, tokens, 32, dtype=torch.float64)
    z, xbc, dt = (x[0] @ mixer.in_proj.weight.T).split([32, 32 + 2 * groups * state, heads], -1)
    padded = F.pad(xbc, (0, 0, 3, 0))
    xbc = F.silu(sum(mixer.conv1d.weight[:, 0, tap] * padded[tap : tap + tokens] for tap in range(4)) + mixer.conv1d.bias)
    u, key, query = xbc.split([32, groups * state, groups * state], -1)
    dt = F.softplus(dt + mixer.dt_bias)
    if limits := options.get("dt_limit"):
        assert dt.min() < limits[1] < dt.max()
        dt = dt.clamp(*limits)
    rows = []
    memory = torch.zeros(heads, channels, state, dtype=torch.float64)
    for t in range(tokens):
        k, q = (part[t].view(groups, state).repeat_interleave(heads // groups, 0) for part in (key, query))
        own = u[t].view(heads, channels)
        memory = memory * torch.exp(-mixer.A_log.exp() * dt[t])[:, None, None]
        memory = memory + dt[t, :, None, None] * own[..., None] * k[:, None]
        rows.append((torch.einsum("hvk,hk->hv", memory, q) + mixer.D[:, None] * own).flatten())
    y = torch.stack(rows)

    def normed(y):
        parts = y.view(tokens, groups if options.get("norm_per_group", True) else 1, -1)
        return (parts * (parts.square().mean(-1, keepdim=True) + 1e-5).rsqrt()).flatten(1) * mixer.norm.weight

    if not options.get("rmsnorm", True):
        y = y * F.silu(z)
    else:
        y = normed(y) * F.silu(z) if options.get("norm_before_gate") else normed(y * F.silu(z))
    torch.testing.assert_close(mixer(x)[0][0], y @ mixer.out_proj.weight.T, rtol=1e-10, atol=1e-10)
    whole, state_of = mixer(x[:, :7])
    rest, _ = mixer(x[:, 7:], state_of)
    torch.testing.assert_close(torch.cat([whole, rest], 1), mixer(x)[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dt_limit": (1.0, 0.1)}, "dt_limit must be"),
        ({"dt_limit": (1.0,)}, "dt_limit must be"),
        ({"rmsnorm": False, "norm_before_gate": True}, "needs a norm"),
    ],
)
def test_what_cannot_be_is_refused(options, says):
    with pytest.raises(ValueError, match=says):
        maclaurin.build_mixer("mamba2", 32, 4, **options)


@torch.no_grad()
def test_mamba_is_its_formulas():
    torch.manual_seed(0)
    mixer = maclaurin.build_mixer("mamba", 16, 4, d_state=5).double()
    x = torch.randn(1, 11, 16, dtype=torch.float64)
    u, gate = (x[0] @ mixer.in_proj.weight.T).chunk(2, -1)
    padded = F.pad(u, (0, 0, 3, 0))
    u = F.silu(sum(mixer.conv.weight[:, 0, tap] * padded[tap : tap + 11] for tap in range(4)) + mixer.conv.bias)
    r, key, query = (u @ mixer.x_proj.weight.T).split([1, 5, 5], -1)
    dt = F.softplus(r @ mixer.dt_proj.weight.T + mixer.dt_proj.bias)
    memory, rows = torch.zeros(32, 5, dtype=torch.float64), []
    for t in range(11):
        memory = torch.exp(-dt[t, :, None] * mixer.A_log.exp()) * memory + (dt[t] * u[t])[:, None] * key[t]
        rows.append(memory @ query[t] + mixer.D * u[t])
    y = (torch.stack(rows) * F.silu(gate)) @ mixer.out_proj.weight.T
    torch.testing.assert_close(mixer(x)[0][0], y, rtol=1e-10, atol=1e-10)
