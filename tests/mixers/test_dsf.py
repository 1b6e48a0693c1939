"""DSF's family as what it claims to be: dynamical systems h_t = Λ_t h_{t-1} + B_t u_t, y_t = C_t h_t (arXiv 2405.15731)."""

# T time, D input channels, N states of the system (n a channel), H heads, K key channels

import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

import maclaurin
from maclaurin import ops
from maclaurin.mixers.recurrent import LARGEST_RATE, complement
from maclaurin.ops import reference

T, D, K = 9, 4, 3


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@dataclass(frozen=True)
class System:
    """A diagonal, time-varying linear system, written out."""

    Lambda_TN: torch.Tensor
    B_TND: torch.Tensor
    C_TDN: torch.Tensor

    def run(self, u_TD):
        h_N, y = torch.zeros_like(self.Lambda_TN[0]), []
        for t in range(u_TD.shape[0]):
            h_N = self.Lambda_TN[t] * h_N + self.B_TND[t] @ u_TD[t]
            y.append(self.C_TDN[t] @ h_N)
        return torch.stack(y)

    def kernel(self):
        """Φ (T, T, D, D) with y_t = Σ_s Φ_ts u_s."""
        length = self.Lambda_TN.shape[0]
        rows = []
        for t in range(length):
            left, row = torch.ones_like(self.Lambda_TN[0]), []
            for s in range(length - 1, -1, -1):
                row.append(
                    self.C_TDN[t] * left @ self.B_TND[s] if s <= t else torch.zeros_like(self.C_TDN[0] @ self.B_TND[0])
                )
                left = left * self.Lambda_TN[s] if s <= t else left
            rows.append(torch.stack(row[::-1]))
        return torch.stack(rows)


def separable_system(q_THK, k_THK, W_v, eta_TH, as_printed=False):
    """Attention φ(q)·ψ(k)/η as a system with a value channel's K states next to each other (appendix B of the paper).

    as_printed: equation (15b) of the main text, which divides the input by the η of the token before.
    """
    length, H, _ = q_THK.shape
    V = W_v.shape[0] // H
    previous_TH = torch.cat([torch.ones_like(eta_TH[:1]), eta_TH[:-1]])
    head = torch.arange(H).repeat_interleave(V)  # of each value channel
    Lambda = (previous_TH / eta_TH)[:, head].repeat_interleave(k_THK.shape[2], dim=1)
    inverse_TH = 1 / (previous_TH if as_printed else eta_TH)
    B = torch.einsum("th,thk,hvd->thvkd", inverse_TH, k_THK, W_v.view(H, V, -1)).reshape(length, -1, W_v.shape[1])
    C = torch.zeros(length, H * V, H * V * k_THK.shape[2], dtype=torch.float64)
    for channel in range(H * V):
        states = slice(channel * k_THK.shape[2], (channel + 1) * k_THK.shape[2])
        C[:, channel, states] = q_THK[:, head[channel]]
    return System(Lambda, B, C)


def selective_system(dt_TD, rate_DN, b_TN, c_TN):
    """S6: Λ = exp(-(Δ⊗I)⊙A), B = Δ⊗b, C = I⊗cᵀ."""
    eye = torch.eye(dt_TD.shape[1], dtype=torch.float64)
    Lambda = torch.exp(-dt_TD[:, :, None] * rate_DN).flatten(1)
    B = torch.einsum("td,tn,de->tdne", dt_TD, b_TN, eye).flatten(1, 2)
    C = torch.einsum("de,tn->tden", eye, c_TN).flatten(2)
    return System(Lambda, B, C)


@pytest.mark.parametrize("H", [1, 2])
@pytest.mark.parametrize("kind", ["linear", "normalised"])
def test_the_recurrent_system_is_the_masked_attention(kind, H):
    """D1: as appendix B has it, and not as equation (15b) is printed."""
    u, W_v = normal(T, D), normal(D, D)
    q, k = normal(T, H, K), normal(T, H, K)
    if kind == "linear":
        q, k = F.elu(q) + 1, F.elu(k) + 1
        eta = torch.einsum("thk,thk->th", q, k.cumsum(0))
        v = (u @ W_v.T).view(1, T, H, -1)
        expected, _ = ops.linear_attention(q[None], k[None], v, scale=1.0, form="chunked")
    else:
        eta = (u @ normal(D, H)).exp()
        v = (u @ W_v.T).view(1, T, H, -1)
        expected, _ = ops.linear_attention(q[None], k[None], v, scale=1.0, normalize=False, form="chunked")
        expected = expected / eta[None, ..., None]
    expected = expected[0].flatten(1)
    system = separable_system(q, k, W_v, eta)
    assert (system.run(u) - expected).abs().max() < 1e-12
    assert (torch.einsum("tsde,se->td", system.kernel(), u) - expected).abs().max() < 1e-12
    assert (separable_system(q, k, W_v, eta, as_printed=True).run(u) - expected).abs().max() > 1e-2


@pytest.mark.parametrize("eta", ["exp", "softplus", "sigmoid", "softplus_offset"])
def test_the_normalized_mixer_is_its_system(eta):
    """D1 and D9, of the whole layer: unnormalised linear attention, times 1/η(u)."""
    mixer = maclaurin.build_mixer("normalized", 8, 2, eta=eta, rotary="none").double()
    x = normal(1, T, 8)
    q, k, _ = (part[0].view(T, 2, 4) for part in mixer.qkv_proj(x).split(8, dim=-1))
    n = mixer.eta_proj(x)[0]
    divisor = {"exp": n.exp(), "softplus": F.softplus(n), "sigmoid": n.sigmoid()}.get(eta)
    if divisor is None:
        divisor = F.softplus(n + mixer.offset).exp()
        assert torch.equal(mixer.offset, torch.tensor([4.0, 9.0], dtype=torch.float64))
        assert (mixer.gain(100 * x) <= 1).all(), "it never amplifies"
    system = separable_system(q, k, mixer.qkv_proj.weight[16:], divisor)
    expected = mixer.out_proj(system.run(x[0]))
    torch.testing.assert_close(mixer(x)[0][0], expected, rtol=1e-10, atol=1e-12)


def test_normalised_attention_feels_the_size_of_keys_and_linear_attention_does_not():
    """D9."""
    x = normal(1, T, 8)
    for name, factor in (("normalized", 3.0), ("linear", 1.0)):
        mixer = maclaurin.build_mixer(name, 8, 2).double()
        before, _ = mixer(x)
        with torch.no_grad():
            mixer.qkv_proj.weight[8:16] *= 3
        torch.testing.assert_close(mixer(x)[0], factor * before, rtol=1e-10, atol=1e-12)


def test_a_row_is_amplified_a_bounded_number_of_times():
    """The guard on 1/η: nothing changes above n = -20, and nothing grows below it."""
    for eta in ("exp", "softplus", "sigmoid"):
        mixer = maclaurin.build_mixer("normalized", 8, 2, eta=eta, rotary="none").double()
        with torch.no_grad():
            mixer.eta_proj.weight.zero_()
            gains = []
            for n in (-19.9, -20.0, -1e3, -1e30):
                mixer.eta_proj.bias.fill_(n)
                gains.append(mixer.gain(torch.zeros(1, 1, 8, dtype=torch.float64)).max().item())
        assert gains[0] == pytest.approx(math.exp(19.9), rel=1e-6)
        assert gains[1] == gains[2] == gains[3] == pytest.approx(math.exp(20), rel=1e-6)


def test_the_selective_scan_is_its_system():
    """D2."""
    u, dt, rate = normal(T, D), F.softplus(normal(T, D)), normal(D, K).exp()
    b, c = normal(T, K), normal(T, K)
    system = selective_system(dt, rate, b, c)
    y, _ = ops.selective_scan(u[None], dt[None], rate, b[None], c[None])
    assert (system.run(u) - y[0]).abs().max() < 1e-12
    assert (torch.einsum("tsde,se->td", system.kernel(), u) - y[0]).abs().max() < 1e-12


def test_ssd_is_a_system_with_one_eigenvalue_a_head():
    mixer = maclaurin.build_mixer("mamba2", 8, 2, ssd=True, d_state=K).double()
    x = normal(1, T, 8)
    b, c, dt = mixer.in_proj(x)[0].split([K, K, 2], dim=-1)
    dt = F.softplus(dt + mixer.dt_bias)
    rate = mixer.A_log.exp().repeat_interleave(4)[:, None].expand(8, K)
    system = selective_system(dt.repeat_interleave(4, dim=1), rate, b, c)
    assert len(system.Lambda_TN[3].unique()) == 2
    expected = mixer.out_proj(system.run(x[0]) + mixer.D.repeat_interleave(4) * x[0])
    torch.testing.assert_close(mixer(x)[0][0], expected, rtol=1e-10, atol=1e-12)
    named = maclaurin.build_mixer("ssd", 8, 2, d_state=K).double()
    named.load_state_dict(mixer.state_dict())
    assert torch.equal(named(x)[0], mixer(x)[0])


@pytest.mark.parametrize("power", [0.3, 1.0, 4.0])
def test_a_softplus_rate_is_a_reversed_sigmoid_to_a_power(power):
    """D3: S6 with A = a·I has a forget gate, e^{-a·softplus(x)} = σ(-x)^a; the reversed qLSTM is that gate."""
    x = 3 * normal(1000)
    torch.testing.assert_close(torch.exp(-power * F.softplus(x)), torch.sigmoid(-x) ** power, rtol=1e-14, atol=1e-14)
    mixer = maclaurin.build_mixer("qlstm", 8, 1, forget="reversed").double()
    with torch.no_grad():
        mixer.power.fill_(power)
    torch.testing.assert_close(mixer.log_decay(x).exp(), torch.sigmoid(-x) ** power, rtol=1e-13, atol=1e-14)


def test_the_order_of_a_term_is_the_number_of_its_states():
    """D5, D6: rank of the causal block Φ[t:, :t], at most n for what has n states, all of it for softmax."""
    length, t = 40, 20
    q, k = normal(1, length, 1, K), normal(1, length, 1, K)
    eye = torch.eye(length, dtype=torch.float64)[None, :, None]  # as values: the outputs are the map itself

    def rank(scalar_map):
        return torch.linalg.matrix_rank(scalar_map[t:, :t], rtol=1e-10).item()

    linear, _ = ops.linear_attention(q.exp(), k.exp(), eye)
    plain, _ = ops.linear_attention(q, k, eye, scale=1.0, normalize=False)
    normalised = plain[0, :, 0] * torch.exp(-normal(length))[:, None]
    softmax, _ = ops.softmax_attention(q, k, eye, scale=1.0)
    assert rank(linear[0, :, 0]) == rank(normalised) == K
    assert rank(softmax[0, :, 0]) > 4 * K
    dt, b, c = F.softplus(normal(1, length, 1)), normal(1, length, K), normal(1, length, K)
    channels = eye[:, :, 0]  # as many channels as tokens, each fed at its own token
    selective, _ = ops.selective_scan(channels, dt.expand(1, length, length), normal(1, K).exp().expand(length, K), b, c)
    assert rank(selective[0]) == K
    scan, _ = ops.linear_scan(channels, -dt.expand(1, length, length))
    assert rank(scan[0]) == 1


@pytest.mark.parametrize("order", range(9))
def test_softmax_is_approached_by_the_features_of_more_orders(order):
    """D4 (lemma 1): C(m+P, P) features, and an error below e^z z^(P+1)/(P+1)! for scores up to z."""
    q, k = normal(30, K), normal(30, K)
    features = [
        torch.cat([reference.symmetric_power(x, n) / math.sqrt(math.factorial(n)) for n in range(order + 1)], dim=-1)
        for x in (q, k)
    ]
    assert features[0].shape[-1] == math.comb(K + order, order)
    z = (q @ k.T).abs().max().item()
    bound = math.exp(z) * z ** (order + 1) / math.factorial(order + 1)
    assert (features[0] @ features[1].T - (q @ k.T).exp()).abs().max() <= bound


def test_more_states_can_do_what_fewer_do():
    """D7 (lemma 2): extra states that nothing reads change nothing."""
    N, extra = 5, 3
    system = System(torch.rand(T, N, dtype=torch.float64), normal(T, N, D), normal(T, D, N))
    padded = System(
        torch.cat([system.Lambda_TN, normal(T, extra)], 1),
        torch.cat([system.B_TND, normal(T, extra, D)], 1),
        torch.cat([system.C_TDN, torch.zeros(T, D, extra, dtype=torch.float64)], 2),
    )
    u = normal(T, D)
    torch.testing.assert_close(padded.run(u), system.run(u), rtol=1e-14, atol=1e-14)


def softmax_ratios(scores_TS):
    """η_{i-1}/η_i of softmax, from log-sums of the causal scores."""
    future = torch.ones_like(scores_TS, dtype=torch.bool).triu(1)
    log_eta = scores_TS.masked_fill(future, -math.inf).logsumexp(-1)
    return (log_eta[:-1] - log_eta[1:]).exp()


def test_eigenvalues_of_attention_may_exceed_one():
    """D8: about 45 % of softmax's do, on random queries and keys."""
    above = []
    for _ in range(20):
        q, k = normal(64, 16), normal(64, 16)
        above.append((softmax_ratios(q @ k.T / 4) > 1).double().mean().item())
    assert 0.35 < sum(above) / len(above) < 0.55


def test_with_one_query_for_all_tokens_no_eigenvalue_of_attention_exceeds_one():
    """D10."""
    q, k = normal(1, 16).expand(64, 16), normal(64, 16)
    assert (softmax_ratios(q @ k.T / 4) <= 1).all()
    phi_q, phi_k = F.elu(q) + 1, F.elu(k) + 1
    eta = (phi_q * phi_k.cumsum(0)).sum(-1)
    assert (eta[:-1] <= eta[1:]).all()


def test_eigenvalues_of_the_recurrences_lie_between_zero_and_one():
    """D8: by construction, whatever the input."""
    x = 5 * normal(1, 200, 16)
    s6 = maclaurin.build_mixer("s6", 16, 1).double()
    dt = s6.time_step(s6.x_proj(x)[..., : s6.dt_rank])
    ssd = maclaurin.build_mixer("ssd", 16, 2).double()
    dt_ssd = F.softplus(ssd.in_proj(x)[..., -2:] + ssd.dt_bias)
    rglru = maclaurin.build_mixer("rglru", 16, 2).double()
    log_decays = [
        -dt[..., None] * s6.A_log.exp(),
        -dt_ssd * ssd.A_log.exp(),
        rglru.gates(x)[0],
        *(maclaurin.build_mixer("qlstm", 16, 1, forget=forget).double().log_decay(x) for forget in ("sigmoid", "reversed")),
    ]
    for log_decay in log_decays:
        assert (log_decay < 0).all() and log_decay.isfinite().all()


def test_s6_starts_as_mamba_does():
    """dt log-uniform between 1e-3 and 0.1, never 0.69: the bias survives any initialisation of linear layers."""
    for init in ("torch", "llama"):
        mixer = maclaurin.build_mixer("s6", 512, 4, init=init)
        dt = F.softplus(mixer.dt_proj.bias)
        assert 0.9e-3 < dt.min() < 2e-3 and 0.05 < dt.max() < 0.101
        assert mixer.dt_rank == 32 and mixer.dt_proj.weight.abs().max() <= 32**-0.5
        torch.testing.assert_close(mixer.A_log.exp(), torch.arange(1.0, 17).expand(512, 16))
        assert (mixer.D == 1).all()


def test_s6_is_mambas_core_in_transformers():
    """On shared weights, without what Mamba's block has around it: float32 to 1e-5."""
    mamba = pytest.importorskip("transformers.models.mamba.modeling_mamba", reason="transformers is a test extra")
    config = pytest.importorskip("transformers").MambaConfig(
        hidden_size=32, state_size=16, expand=1, conv_kernel=1, use_conv_bias=False, hidden_act="linear", num_hidden_layers=1
    )
    theirs = mamba.MambaMixer(config, layer_idx=0).eval()
    mixer = maclaurin.build_mixer("s6", 32, 4)
    own = {name: value for name, value in theirs.state_dict().items() if name in mixer.state_dict()}
    mixer.load_state_dict(own)
    with torch.no_grad():
        theirs.conv1d.weight.fill_(1)
        theirs.in_proj.weight[:32] = torch.eye(32)
        theirs.in_proj.weight[32:] = 0
        theirs.in_proj.weight[32:, 0] = 1  # the gate of all channels is the first one of x
    x = torch.randn(2, 50, 32)
    x[..., 0] = 2.0  # so that the gate is a constant, silu(2)
    with torch.no_grad():
        y, _ = mixer(x)
        expected = theirs(x) / F.silu(torch.tensor(2.0))
    assert (y - expected).norm() <= 1e-5 * expected.norm()


def test_rglru_is_that_of_transformers():
    """The recurrence on shared weights, positions from 1 on: their code treats the first token of a document otherwise."""
    gemma = pytest.importorskip(
        "transformers.models.recurrent_gemma.modeling_recurrent_gemma", reason="transformers is a test extra"
    )
    config = pytest.importorskip("transformers").RecurrentGemmaConfig(hidden_size=24, lru_width=24, num_attention_heads=3)
    theirs = gemma.RecurrentGemmaRglru(config)
    mixer = maclaurin.build_mixer("rglru", 24, 3, conv_width=0, gate=False)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.5)
        r, i = mixer.block_weight.chunk(2, dim=-1)
        r.copy_(theirs.recurrent_gate_weight)
        i.copy_(theirs.input_gate_weight)
        r, i = mixer.block_bias.chunk(2, dim=-1)
        r.copy_(theirs.recurrent_gate_bias)
        i.copy_(theirs.input_gate_bias)
        mixer.A.copy_(theirs.recurrent_param)
        mixer.in_proj.weight.copy_(torch.eye(24))
        mixer.out_proj.weight.copy_(torch.eye(24))
        x = torch.randn(2, 40, 24)
        expected = theirs(x, torch.arange(1, 41)[None])
        y, _ = mixer(x)
    assert (y - expected).norm() <= 1e-5 * expected.norm()


def test_rglru_starts_with_slow_decays_and_exact_complements():
    """λ at an open gate is uniform in [0.9, 0.999]; √(1-λ²) keeps its digits where 1-λ² would have none left."""
    mixer = maclaurin.build_mixer("rglru", 2048, 64)
    decay = torch.exp(-LARGEST_RATE * F.softplus(mixer.A))
    assert 0.899 < decay.min() < 0.902 and 0.997 < decay.max() < 0.9991
    assert abs(decay.mean().item() - 0.9495) < 0.003
    for log_decay in (-1e-3, -1e-6, -1e-9, -1e-12):
        a = torch.tensor(log_decay)
        exact = math.sqrt(-math.expm1(2 * a.double().item()))
        assert complement(a).item() == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("forget", ["sigmoid", "reversed"])
def test_qlstm_is_its_formula(forget):
    """The block as coded, written out as a loop over tokens."""
    mixer = maclaurin.build_mixer("qlstm", 6, 1, forget=forget).double()
    x = normal(1, T, 6)
    gate, u = mixer.in_proj(x).chunk(2, dim=-1)
    u = reference.short_conv(u, mixer.conv.weight.squeeze(1), mixer.conv.bias)
    f, i, o = mixer.gate_proj(u).chunk(3, dim=-1)
    decay = f.sigmoid() if forget == "sigmoid" else (-f).sigmoid() ** mixer.power.relu()
    h, outputs = torch.zeros(1, 12, dtype=torch.float64), []
    for t in range(T):
        h = decay[:, t] * h + i[:, t].sigmoid() * u[:, t]
        outputs.append(mixer.out_proj(F.gelu(gate[:, t]) * o[:, t].sigmoid() * h))
    torch.testing.assert_close(mixer(x)[0], torch.stack(outputs, dim=1), rtol=1e-12, atol=1e-13)


VARIANTS = [
    ("normalized", {"eta": "softplus"}),
    ("normalized", {"eta": "sigmoid", "rotary": "none", "num_kv_heads": 2}),
    ("normalized", {"eta": "softplus_offset", "feature_map": "elu", "conv_width": 4}),
    ("normalized", {"decay": "softplus", "key_dim": 4}),
    ("ssd", {"d_state": 5, "n_groups": 2, "skip_per_channel": True}),
    ("s6", {"d_state": 3, "dt_rank": 1}),
    ("qlstm", {"forget": "reversed", "expand": 1}),
    ("qlstm", {"conv_width": 0}),
    ("rglru", {"width": 32, "conv_width": 2}),
    ("rglru", {"conv_width": 0, "gate": False}),
    ("rglru", {"scale_first": False, "projection_bias": True}),
]


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=str)
def test_every_variant_keeps_the_laws(name, options):
    """Forms and their gradients, hand-over, padding, the size of the state, hostile numbers."""
    mixer = maclaurin.build_mixer(name, 24, 4, **options).double()
    x = normal(2, 21, 24)
    parameters = list(mixer.parameters())
    whole, state = mixer(x, form="parallel")
    expected = torch.autograd.grad(whole.square().sum(), parameters)
    assert state.nbytes == 2 * mixer.state_nbytes(21)
    for form in ("chunked", "recurrent", "auto"):
        y, _ = mixer(x, form=form)
        torch.testing.assert_close(y, whole, rtol=1e-10, atol=1e-11)
        for got, wanted in zip(torch.autograd.grad(y.square().sum(), parameters), expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-10)
        left, middle = mixer(x[:, :8], form=form)
        right, _ = mixer(x[:, 8:], middle)
        torch.testing.assert_close(torch.cat([left, right], 1), whole, rtol=1e-10, atol=1e-11)
    mask = torch.arange(25) >= 4  # on the left
    padded = torch.cat([torch.full((2, 4, 24), torch.nan, dtype=torch.float64), x], dim=1)
    y, end = mixer(padded, attention_mask=mask.long().expand(2, 25))
    torch.testing.assert_close(y[:, 4:], whole, rtol=1e-10, atol=1e-11)
    for key, tensor in state.tensors().items():
        torch.testing.assert_close(end.tensors()[key], tensor, rtol=1e-10, atol=1e-11)
    low = mixer.float()
    for hostile in (torch.zeros(2, 21, 24), 1e3 * x.float(), 1e4 * x.sign().float()):
        leaf = hostile.clone().requires_grad_()
        y, _ = low(leaf)
        gradients = torch.autograd.grad(y.sum(), [leaf, *low.parameters()])
        assert y.isfinite().all() and all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("name", ["normalized", "ssd", "s6", "qlstm", "rglru"])
def test_compiled_mixers_match_at_any_length(name):
    mixer = maclaurin.build_mixer(name, 24, 4)
    compiled = torch.compile(mixer, backend="eager")
    state = compiled_state = None
    with torch.no_grad():
        for length in (20, 21, 1, 1):
            x = torch.randn(2, length, 24)
            y, state = mixer(x, state)
            got, compiled_state = compiled(x, compiled_state)
            torch.testing.assert_close(got, y)
