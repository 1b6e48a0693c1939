"""Feature maps against independent formulas, and what linear attention over their features promises."""

import itertools
import math

import pytest
import torch
from torch import nn

import maclaurin
from maclaurin.mixers.attention import FEATURE_MAPS
from maclaurin.mixers.feature_attention import FeatureAttention
from maclaurin.mixers.feature_maps import LIMIT, HedgehogMap, PerformerMap, T2RMap, orthogonal_rows
from maclaurin.mixers.luna import ChannelBank, LunaMap
from tests.ops.test_cost import LargestTensor, Traffic

K = 8
NAMES = ("luna", "hedgehog", "t2r", "performer")


PLAIN = {  # maps without parameters
    "identity": lambda x: x,
    "relu": lambda x: x.clamp(min=0),
    "leaky-relu": lambda x: torch.where(x > 0, x, 0.01 * x),
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "elu": lambda x: torch.where(x > 0, x + 1, x.exp()),
    "exp": lambda x: (x / 5).exp(),
    "cosine": lambda x: x / x.square().sum(-1, keepdim=True).sqrt(),
    "cosine-over-heads": lambda x: x / x.square().sum(2, keepdim=True).sqrt(),
}


class Channels(nn.Module):
    """Any functions of one number in the place of LUNA's networks."""

    def __init__(self, *functions):
        super().__init__()
        self.functions = functions
        self.num_channels = len(functions)

    def forward(self, u):
        return torch.stack([function(u) for function in self.functions], dim=-1)


def points(count, size=K, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(1, count, 1, size, generator=generator, dtype=torch.float64)


def luna_map(projections=16, channels=8, key_dim=K, seed=0, gaussian=False, **options):
    torch.manual_seed(seed)
    bank = channels if isinstance(channels, nn.Module) else ChannelBank(channels, **options.pop("bank", {}))
    feature_map = LunaMap(key_dim, projections, bank, **options).double()
    if gaussian:
        nn.init.normal_(feature_map.weight)
    return feature_map


MAPS = {
    "luna": luna_map,
    "luna-signed": lambda: luna_map(bank={"nonneg": False}),
    "luna-softplus": lambda: luna_map(bank={"bank": "shared", "softplus": True}, envelope=True),
    "hedgehog": lambda: HedgehogMap(K, 16).double(),
    "t2r": lambda: T2RMap(K, 16).double(),
    "performer": lambda: PerformerMap(K, 16).double(),
}


def gram(feature_map, x):
    features = feature_map(x)[0, :, 0].detach()
    return features @ features.T


@pytest.mark.parametrize("build", MAPS.values(), ids=MAPS)
def test_kernels_are_positive_semi_definite(build):
    values = torch.linalg.eigvalsh(gram(build(), points(100)))
    assert values[0] >= -1e-10 * values[-1]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_averages_of_values(name, causal):
    """Weights are never negative, so an output lies between the smallest and the largest value, channel by channel."""
    mixer = maclaurin.build_mixer(name, 24, 3, causal=causal).double()
    nn.init.eye_(mixer.out_proj.weight)
    x = torch.randn(2, 40, 24, dtype=torch.float64)
    assert (gram(mixer.feature_map, points(60)) >= 0).all()
    v = mixer.project(x).v
    low, high = (v.cummin(1).values, v.cummax(1).values) if causal else (v.amin(1, keepdim=True), v.amax(1, keepdim=True))
    y = mixer(x)[0].unflatten(-1, (3, 8))
    assert (y >= low - 1e-12).all() and (y <= high + 1e-12).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_layer_is_its_matrix(name):
    mixer = maclaurin.build_mixer(name, 24, 4, num_kv_heads=2, decay="softplus").double()
    x = torch.randn(2, 30, 24, dtype=torch.float64)
    p = mixer.project(x)
    q, k = mixer.feature_map(p.q), mixer.feature_map(p.k).repeat_interleave(2, 2)
    sums = p.log_decay.repeat_interleave(2, 2).cumsum(1).transpose(1, 2)
    weight = torch.einsum("bthf,bshf->bhts", q, k) * (sums[..., None] - sums[..., None, :]).exp()
    weight = weight.tril()
    y = torch.einsum("bhts,bshv->bthv", weight / weight.sum(-1, keepdim=True), p.v.repeat_interleave(2, 2))
    expected = y.flatten(2) @ mixer.out_proj.weight.T
    for form in ("parallel", "chunked", "recurrent"):
        torch.testing.assert_close(mixer(x, form=form)[0], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lengths", [None, [50, 17, 0]])
def test_segments_meet_without_a_seam(monkeypatch, lengths):
    """The features of many tokens are made a segment at a time; where the segments end makes no difference."""
    mixer = maclaurin.build_mixer("luna", 24, 4, decay="softplus").double()
    x = torch.randn(3, 50, 24, dtype=torch.float64)
    mask = None if lengths is None else (torch.arange(50) < torch.tensor(lengths)[:, None]).long()
    whole, state = mixer(x, attention_mask=mask, form="chunked")
    monkeypatch.setattr("maclaurin.mixers.mechanisms.SEGMENT", 7)
    split, split_state = mixer(x, attention_mask=mask, form="chunked")
    torch.testing.assert_close(split, whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(split_state.attention.recurrent, state.attention.recurrent, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(mixer(x, attention_mask=mask, return_state=False)[0], whole, rtol=1e-12, atol=1e-12)


class TestSpecialCases:
    """LUNA with other functions in place of its networks."""

    def test_exponentials_are_performer(self):
        performer = PerformerMap(K, 64).double()
        luna = luna_map(64, Channels(torch.exp), envelope=True)
        with torch.no_grad():
            luna.weight.copy_(performer.weight)
            luna.envelope["a"].fill_(1)
        x = points(200)
        torch.testing.assert_close(luna(x), performer(x), rtol=1e-12, atol=1e-12)
        scaled = x / K**0.25
        formula = torch.exp(scaled @ performer.weight.T - scaled.square().sum(-1, keepdim=True) / 2) / 8
        torch.testing.assert_close(luna(x), formula, rtol=1e-12, atol=1e-12)

    def test_the_mixers_agree_too(self):
        performer = maclaurin.build_mixer("performer", 24, 3, num_features=32, rotary="none").double()
        luna = FeatureAttention(24, 3, lambda key_dim: LunaMap(key_dim, 32, Channels(torch.exp), envelope=True)).double()
        luna.load_state_dict(performer.state_dict(), strict=False)
        with torch.no_grad():
            luna.feature_map.envelope["a"].fill_(1)
        x = torch.randn(2, 25, 24, dtype=torch.float64)
        torch.testing.assert_close(luna(x)[0], performer(x)[0], rtol=1e-12, atol=1e-12)

    def test_cosines_and_sines_are_random_fourier_features(self):
        luna = luna_map(64, Channels(torch.cos, torch.sin), gaussian=True)
        x = points(50) / K**-0.25  # undo the scaling of queries and keys
        angle = (points(50)[0, :, 0] @ luna.weight.T).detach()
        expected = (angle[:, None] - angle[None]).cos().mean(-1)
        torch.testing.assert_close(gram(luna, x), expected, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("case", ["performer", "fourier", "orthogonal"])
    def test_errors_fall_with_the_root_of_the_number_of_projections(self, case):
        """Medians over fixed pairs: a fourfold number halves the error."""
        x, y = points(200, seed=1, scale=0.7), points(200, seed=2, scale=0.7)
        score = (x * y).sum(-1) / math.sqrt(K)
        distance = (x - y).square().sum(-1) / math.sqrt(K)
        exact = {"fourier": torch.exp(-distance / 2)}.get(case, torch.exp(score))
        errors = []
        for projections in (64, 256, 1024, 4096):
            found = []
            for seed in range(5):
                if case == "performer":
                    feature_map = luna_map(projections, Channels(torch.exp), envelope=True, gaussian=True, seed=seed)
                    nn.init.ones_(feature_map.envelope["a"])
                elif case == "fourier":
                    feature_map = luna_map(projections, Channels(torch.cos, torch.sin), gaussian=True, seed=seed)
                else:
                    feature_map = PerformerMap(K, projections, seed=seed).double()
                with torch.no_grad():
                    found.append(((feature_map(x) * feature_map(y)).sum(-1) - exact).abs() / exact)
            errors.append(torch.cat(found).median().item())
        ratios = [a / b for a, b in itertools.pairwise(errors)]
        assert all(1.6 < ratio < 2.5 for ratio in ratios), errors

    def test_a_bank_that_fits_cosine_and_sine_is_a_fourier_map_up_to_the_fit(self):
        """Universality, by construction: 64 knots on [-6, 6], read out by least squares."""
        bank = ChannelBank(2, bank="shared", nonneg=False).double()
        grid = torch.linspace(-6, 6, 4001, dtype=torch.float64)
        with torch.no_grad():
            bank.weight_in.fill_(1)
            bank.bias_in.copy_(-torch.linspace(-6.2, 6, 64, dtype=torch.float64))
            hidden = torch.cat([(grid[:, None] + bank.bias_in).relu(), torch.ones(4001, 1, dtype=torch.float64)], dim=1)
            wanted = torch.stack([grid.cos(), grid.sin()], dim=1)
            solution = torch.linalg.lstsq(hidden, wanted, driver="gelsd").solution  # the default one varies from run to run
            bank.weight_out.copy_(solution[:-1].T)
            bank.bias_out.copy_(solution[-1])
            fit = (bank(grid) - wanted).abs().max().item()
        assert fit < 5e-3
        learnt, exact = luna_map(256, bank, gaussian=True), luna_map(256, Channels(torch.cos, torch.sin), gaussian=True)
        x = points(50, scale=0.6)
        assert (x / K**0.25 @ exact.weight.T).abs().max() <= 6
        assert (gram(learnt, x) - gram(exact, x)).abs().max() <= 2 * fit * (math.sqrt(2) + fit)


def test_the_rank_is_the_number_of_live_features():
    """Of a 400 x 400 kernel with 128 features; several of them are silent in every draw."""
    for seed in range(6):
        feature_map = luna_map(32, 4, key_dim=64, seed=seed)
        x = points(400, 64, seed=seed)
        features = feature_map(x)[0, :, 0]
        live = int((features != 0).any(0).sum())
        rank = int(torch.linalg.matrix_rank(gram(feature_map, x), rtol=1e-13))
        assert rank == live <= 128
        assert feature_map.dead_fraction(x) == pytest.approx(1 - live / 128)


def test_a_sixth_of_the_channels_is_silent_at_first():
    """17 % of ReLU channels are zero for every u in [-4, 4]; none are with a softplus."""
    for bank in ("separate", "shared"):
        fractions = [luna_map(1, 8, seed=seed, bank={"bank": bank}).dead_fraction() for seed in range(100)]
        assert sum(fractions) / 100 == pytest.approx(0.17, abs=0.04), bank
    assert luna_map(1, 8, bank={"softplus": True}).dead_fraction() == 0


def test_luna_starts_as_an_almost_uniform_average():
    """Entropy of rows over 50 keys, in nats: 3.89 of at most log 50 = 3.91; no token is without features."""
    entropies, silent = [], 0
    for seed in range(20):
        feature_map = luna_map(16, 8, key_dim=32, seed=seed)
        x = [points(50, 32, seed=2 * seed + i) * 32**0.25 for i in (0, 1)]
        q, k = (feature_map(part)[0, :, 0].detach() for part in x)
        weight = q @ k.T
        entropies.append(torch.special.entr(weight / weight.sum(-1, keepdim=True)).sum(-1).mean().item())
        silent += int((q == 0).all(-1).sum())
    assert sum(entropies) / 20 == pytest.approx(3.89, abs=0.02)
    assert silent == 0


def test_ch_rms_would_leak_the_future():
    """Why it is refused in a causal mixer: later tokens change the features of earlier ones, padding does not."""
    feature_map = luna_map(32, 4, key_dim=64, ch_rms=True)
    x = points(40, 64)
    changed = x.clone()
    changed[:, 20:] *= 10
    before, after = feature_map(x)[:, :20], feature_map(changed)[:, :20]
    live = before > 0
    assert ((after - before).abs()[live] / before[live]).max() > 0.3
    torch.testing.assert_close(feature_map(changed, torch.tensor([20]))[:, :20], feature_map(x[:, :20]))
    psi = (feature_map(x) * math.sqrt(32)).unflatten(-1, (32, 4))
    assert (psi.square().mean((0, 1, 2, 3)).sqrt() <= 0.1 + 1e-6).all()


def test_ch_rms_in_whole_sequences():
    """Sequences of a batch, padded or packed, have no influence on each other."""
    mixer = maclaurin.build_mixer("luna", 24, 4, causal=False, ch_rms=True).double()
    x = torch.randn(2, 20, 24, dtype=torch.float64)
    mask = (torch.arange(20) < torch.tensor([[20], [7]])).long()
    y, _ = mixer(x, attention_mask=mask)
    torch.testing.assert_close(y[:1], mixer(x[:1])[0], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(y[1:, :7], mixer(x[1:, :7])[0], rtol=1e-10, atol=1e-10)


def test_the_envelope_of_a_query_cancels():
    mixer = maclaurin.build_mixer("luna", 24, 3, envelope=True).double()
    x = torch.randn(2, 20, 24, dtype=torch.float64)
    plain = mixer(x)[0]
    nn.init.normal_(mixer.feature_map.envelope["u"])
    with_envelope = mixer(x)[0]
    assert (with_envelope - plain).abs().max() > 1e-3
    p = mixer.project(x)
    weight = torch.einsum("bthf,bshf->bhts", mixer.feature_map(p.q), mixer.feature_map(p.k)).tril()
    y = torch.einsum("bhts,bshv->bthv", weight / weight.sum(-1, keepdim=True), p.v)
    torch.testing.assert_close(with_envelope, y.flatten(2) @ mixer.out_proj.weight.T, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", [{"bank": "shared"}, {"softplus": True}, {"envelope": True}])
@pytest.mark.parametrize("norm", ["sum", "output", "none"])
def test_variants_of_luna_agree_in_all_forms(options, norm):
    mixer = maclaurin.build_mixer(
        "luna", 24, 4, norm=norm, nonneg=norm == "sum" or "softplus" in options, **options
    ).double()
    x = torch.randn(2, 30, 24, dtype=torch.float64)
    parallel, state = mixer(x, form="parallel")
    for form in ("chunked", "recurrent"):
        y, other = mixer(x, form=form)
        torch.testing.assert_close(y, parallel, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(other.attention.recurrent, state.attention.recurrent, rtol=1e-10, atol=1e-10)
    assert state.nbytes == 2 * mixer.state_nbytes(30)


@pytest.mark.parametrize(("key_dim", "projections", "channels"), [(32, 16, 8), (64, 32, 4), (16, 16, 8), (192, 96, 4)])
def test_default_sizes_of_luna(key_dim, projections, channels):
    feature_map = maclaurin.build_mixer("luna", key_dim, 1).feature_map
    assert feature_map.weight.shape == (projections, key_dim)
    assert feature_map.num_features == projections * channels


@pytest.mark.parametrize("name", [*NAMES, "linear"])
def test_all_maps_at_equal_size_have_equal_states(name):
    size = {"key_dim": 48, "feature_map": "elu"} if name == "linear" else {"num_features": 48}
    mixer = maclaurin.build_mixer(name, 64, 4, rotary="none", **size)
    assert mixer.state_nbytes(1) == 4 * 48 * 17 * 4


@pytest.mark.parametrize("rows", [3, 8, 30])
def test_hedgehog_of_any_size_starts_from_the_identity(rows):
    weight = HedgehogMap(K, 2 * rows).weight.detach()
    torch.testing.assert_close(weight[:K], torch.eye(rows, K)[:K])
    torch.testing.assert_close(weight.norm(dim=-1), torch.ones(rows))
    assert len({tuple(row) for row in weight.tolist()}) == rows, "equal rows would stay equal"


def test_performers_directions():
    """Orthogonal in blocks, of Gaussian length on average, and a matter of the seed alone."""
    torch.manual_seed(1)
    weight = PerformerMap(K, 800, seed=3).weight
    torch.manual_seed(2)
    assert torch.equal(weight, PerformerMap(K, 800, seed=3).weight)
    assert not torch.equal(weight, PerformerMap(K, 800, seed=4).weight)
    block = weight[:K] @ weight[:K].T
    torch.testing.assert_close(block, block.diagonal().diag(), rtol=0, atol=1e-5)
    assert weight.square().sum(-1).mean().item() == pytest.approx(K, rel=0.1)
    assert orthogonal_rows(0, 5).shape == (0, 5)


def test_performers_features_have_a_limit_and_its_queries_none():
    performer = PerformerMap(K, 16)
    huge = 1e4 * points(20).float()
    assert performer(huge).min() >= math.exp(-LIMIT) / 4 * 0.999
    assert performer.of_queries(huge).amax(-1).eq(1).all()


class TestAgainstFla:
    """Maps on shared weights. Skipped where flash-linear-attention is not installed."""

    @pytest.mark.parametrize(("ours", "theirs"), [(HedgehogMap, "HedgehogFeatureMap"), (T2RMap, "T2RFeatureMap")])
    def test_the_maps_are_theirs(self, ours, theirs):
        fla = pytest.importorskip("fla.modules.feature_map", reason="needs the test extra")
        if ours is HedgehogMap:
            mine, other = ours(K, 2 * K), fla.HedgehogFeatureMap(K)
        else:
            mine, other = ours(K, 20), fla.T2RFeatureMap(K, 20, bias=True)
        nn.init.normal_(mine.weight)
        nn.init.normal_(mine.bias)
        other.layer.load_state_dict({"weight": mine.weight, "bias": mine.bias})
        x = points(100).float()
        torch.testing.assert_close(mine(x), other(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_cost_is_linear_in_the_length(monkeypatch, name):
    """Counted: what is written for a token does not depend on the length, and no tensor grows beyond the projections."""
    monkeypatch.setattr("maclaurin.mixers.mechanisms.SEGMENT", 512)
    mixer = maclaurin.build_mixer(name, 32, 2)
    written = []
    for T in (2048, 4096):
        x = torch.randn(1, T, 32, requires_grad=True)
        with Traffic() as traffic, LargestTensor() as largest:
            mixer(x, form="chunked", return_state=False)[0].sum().backward()
        written.append(traffic.numel)
        assert largest.numel <= max(3 * 32 * T, 512 * 2 * mixer.feature_map.num_features)
    assert written[1] / written[0] == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize("name", NAMES)
def test_llama_initialisation_leaves_the_map_alone(name):
    maps = []
    for init in ("torch", "llama"):
        torch.manual_seed(0)
        maps.append(maclaurin.build_mixer(name, 64, 4, init=init).feature_map)
    spread = [torch.cat([value.flatten() for value in m.state_dict().values()]).std().item() for m in maps]
    assert spread[1] == pytest.approx(spread[0], rel=0.2)


@pytest.mark.parametrize("name", FEATURE_MAPS)
@pytest.mark.parametrize("causal", [True, False])
def test_linear_attention_weighs_by_its_map(name, causal):
    torch.manual_seed(0)
    mixer = maclaurin.build_mixer("linear", 12, 2, feature_map=name, causal=causal).double()
    x = torch.randn(2, 10, 12, dtype=torch.float64)
    with torch.no_grad():
        q, k, v = mixer.qkv_proj(x).unflatten(-1, (3, 2, 6)).unbind(2)
        weight = torch.einsum("bthk,bshk->bhts", PLAIN[name](q), PLAIN[name](k))
        if causal:
            weight = weight.tril()
        total = weight.sum(-1, keepdim=True)
        y = torch.einsum("bhts,bshv->bthv", torch.where(total == 0, 0, weight / total), v)
        for form in ("parallel", "chunked", "recurrent") if causal else ("parallel", "chunked"):
            torch.testing.assert_close(mixer(x, form=form)[0], mixer.out_proj(y.flatten(2)), rtol=1e-8, atol=1e-8)


def test_the_exponential_map_stays_finite_and_wide():
    mixer = maclaurin.build_mixer("linear", 24, 4, feature_map="exp")
    x = torch.randn(2, 8, 24).mul(1e4).requires_grad_()
    y, _ = mixer(x)
    y.sum().backward()
    assert y.isfinite().all() and x.grad.isfinite().all()
    low, _ = mixer.bfloat16()(x.detach().bfloat16() / 1e4)
    assert low.dtype == torch.bfloat16 and low.isfinite().all()
