"""The thesis (arXiv 2507.23632, 2602.17363) against independent statements of it: formulas and other people's code."""

import inspect
import math

import pytest
import torch
import torch.nn.functional as F

import maclaurin
from maclaurin.mixers.published import NOT_HERE, PAPER_1, PAPER_2, published_mixer, published_row
from maclaurin.ops import reference

ROWS = [(1, name) for name in PAPER_1] + [(2, name) for name in PAPER_2]


@pytest.mark.parametrize(("paper", "name"), ROWS)
def test_every_published_row_builds_and_its_forms_agree(paper, name):
    mixer = published_mixer(paper, name, 32, 4).double()
    x = torch.randn(2, 19, 32, dtype=torch.float64)
    with torch.no_grad():
        parallel, chunked, recurrent = (mixer(x, form=form)[0] for form in ("parallel", "chunked", "recurrent"))
    torch.testing.assert_close(chunked, parallel, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(recurrent, parallel, rtol=1e-10, atol=1e-10)


def test_the_tables_are_complete():
    assert len(PAPER_2) == 28
    assert len(PAPER_1) == 36 and len({*PAPER_1, *NOT_HERE}) == 38


def test_rows_have_names_in_the_shell():
    """In train, compare and the suites alike: the mixer with the options of the row, and those that are given."""
    from maclaurin.evals.planning import plan
    from maclaurin.training.contenders import chosen
    from maclaurin.training.recipe import Recipe

    assert published_row("paper-2/2Mamba") == ("2mamba", {})
    assert published_row("paper-2/Mamba-2S") == ("mamba2s", {})
    name = "paper-2/linear__output_norm__D_res"
    expected = {"feature_map": "identity", "norm": "output", "skip": True}
    recipe = Recipe(mixer=f"{name}:conv_width=2")
    assert (recipe.mixer, recipe.options()) == ("linear", {**expected, "conv_width": 2})
    contender = chosen(f"{name},paper-2/2Mamba", "gated")[name]
    assert (contender.mixers, contender.options) == (("linear",), {"linear": expected})
    (experiment,) = plan("needle", mixers=name)
    assert experiment.rows[name].options == {"linear": expected}
    for wrong, says in (
        ("paper-2/2mamba", r"has no row '2mamba' \(did you mean '2Mamba'\?\); it has"),
        ("paper-1/gated_softmax_plusplus_mamba", "cannot be had"),
    ):
        for refused in (
            lambda name: Recipe(mixer=name),
            lambda name: chosen(name, "gated"),
            lambda name: plan("needle", mixers=name),
        ):
            with pytest.raises(ValueError, match=says):
                refused(wrong)


def test_the_authors_gate_then_normalise():
    """But for the row that gates again behind its norm."""
    after = {name for name, (_, options) in PAPER_1.items() if options.get("norm", "layer") != "none"
             and options.get("out_gate") == "after-norm"}  # fmt: skip
    assert after == {"gated_softmax_post_out_gate_L2norm_nodivS_noclamp"}
    gated = published_mixer(1, "gated_softmax", 32, 4, rotary="none").double()
    x = torch.randn(1, 15, 32, dtype=torch.float64)
    q, k, v = projected(gated, x)
    v = v * torch.sigmoid(gated.in_gate_proj(x))[..., None]
    weight = (torch.einsum("bthk,bshk->bhts", q, k) / math.sqrt(8)).clamp(max=5).exp().tril()
    y = torch.einsum("bhts,bshv->bthv", weight / torch.arange(1, 16)[:, None], v)
    y = F.layer_norm(y * torch.sigmoid(gated.out_gate_proj(x))[..., None], (8,), gated.out_norm.weight, gated.out_norm.bias)
    torch.testing.assert_close(gated(x)[0], y.flatten(2) @ gated.out_proj.weight.T, rtol=1e-10, atol=1e-10)


def projected(mixer, x):
    """q, k, v of the thesis's layer after its width-2 convolution, written out."""
    qkv = x @ mixer.qkv_proj.weight.T
    if mixer.conv is not None:
        qkv = reference.short_conv(qkv, mixer.conv.weight[:, 0], mixer.conv.bias)
    return (part.unflatten(-1, (mixer.num_heads, -1)) for part in qkv.chunk(3, dim=-1))


@pytest.mark.parametrize("discretization", ["none", "dt"])
def test_2mamba_is_algorithm_1(discretization):
    mixer = maclaurin.build_mixer("2mamba", 32, 4, value_discretization=discretization).double()
    x = torch.randn(2, 15, 32, dtype=torch.float64)
    q, k, v = projected(mixer, x)
    if discretization == "dt":
        v = v * F.softplus(x @ mixer.dt_proj.weight.T)[..., None]
    sums = (-F.softplus(x @ mixer.decay_proj.weight.T)).cumsum(1).transpose(1, 2)
    weight = (torch.einsum("bthk,bshk->bhts", q, k) / math.sqrt(8)) ** 2
    weight = (weight * (sums[..., :, None] - sums[..., None, :]).exp()).tril()
    y = torch.einsum("bhts,bshv->bthv", weight / weight.sum(-1, keepdim=True), v)
    torch.testing.assert_close(mixer(x)[0], y.flatten(2) @ mixer.out_proj.weight.T, rtol=1e-10, atol=1e-10)


def test_2mamba_e_is_softmax_with_a_decay_bias():
    mixer = maclaurin.build_mixer("2mamba-e", 32, 4).double()
    x = torch.randn(2, 15, 32, dtype=torch.float64)
    q, k, v = (part.transpose(1, 2) for part in projected(mixer, x))
    sums = (-F.softplus(x @ mixer.decay_proj.weight.T)).cumsum(1).transpose(1, 2)
    bias = (sums[..., :, None] - sums[..., None, :]).masked_fill(~torch.ones(15, 15, dtype=torch.bool).tril(), -math.inf)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2)
    torch.testing.assert_close(mixer(x)[0], y.flatten(2) @ mixer.out_proj.weight.T, rtol=1e-10, atol=1e-10)


def test_mamba2s_is_algorithm_4():
    mixer = maclaurin.build_mixer("mamba2s", 32, 4).double()
    x = torch.randn(1, 15, 32, dtype=torch.float64)
    q, k, v = projected(mixer, x)
    v = v * F.softplus(x @ mixer.dt_proj.weight.T)[..., None]
    decay = (-F.softplus(x @ mixer.decay_proj.weight.T)).exp()
    state, outputs = torch.zeros(4, 8, 8, dtype=torch.float64), []
    for t in range(15):
        state = decay[0, t, :, None, None] * state + k[0, t, :, :, None] * v[0, t, :, None, :] / math.sqrt(8)
        outputs.append(torch.einsum("hk,hkv->hv", q[0, t], state).flatten())
    y = torch.stack(outputs)[None]
    y = y * (y.square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps).rsqrt() * mixer.out_norm.weight
    torch.testing.assert_close(mixer(x)[0], y @ mixer.out_proj.weight.T, rtol=1e-10, atol=1e-10)


def test_softmax_is_torch_attention_with_rotary_positions():
    mixer = maclaurin.build_mixer("softmax", 32, 4).double()
    x = torch.randn(2, 15, 32, dtype=torch.float64)
    q, k, v = projected(mixer, x)
    positions = torch.arange(15).expand(2, -1)
    q, k = (reference.rotary(part, positions) for part in (q, k))
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    torch.testing.assert_close(mixer(x)[0], y.flatten(2) @ mixer.out_proj.weight.T, rtol=1e-10, atol=1e-10)


def test_the_series_approaches_softmax():
    """Paper 1: summing orders 0..P gives softmax in the limit, and each order helps."""
    softmax = maclaurin.build_mixer("softmax", 32, 4).double()
    x = torch.randn(2, 15, 32, dtype=torch.float64)
    errors = []
    for top in (2, 4, 8, 30):
        taylor = maclaurin.build_mixer("taylor", 32, 4, order=top).double()
        taylor.load_state_dict(softmax.state_dict())
        errors.append((taylor(x)[0] - softmax(x)[0]).abs().max().item())
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-10


def test_cosine_attention_is_unscaled():
    """Paper 1: cos(q, k), no 1/√d and no denominator; v_t is divided by t^σ(c)."""
    mixer = published_mixer(1, "linear_cosine", 32, 4, rotary="none").double()
    x = torch.randn(2, 15, 32, dtype=torch.float64)
    q, k, v = projected(mixer, x)
    v = v / torch.arange(1, 16, dtype=torch.float64)[:, None, None] ** torch.sigmoid(mixer.position_power)[:, None]
    weight = torch.einsum("bthk,bshk->bhts", F.normalize(q, dim=-1), F.normalize(k, dim=-1)).tril()
    y = torch.einsum("bhts,bshv->bthv", weight, v)
    torch.testing.assert_close(mixer(x)[0], y.flatten(2) @ mixer.out_proj.weight.T, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["2mamba", "taylor"])
def test_orders_may_come_as_a_list(name):
    listed, tupled = (maclaurin.build_mixer(name, 32, 4, order=order).mechanism for order in ([1, 2], (1, 2)))
    assert listed.order == tupled.order == (1, 2)


def test_learnable_order_weights_start_at_one():
    plain = maclaurin.build_mixer("taylor", 32, 4).double()
    learnable = maclaurin.build_mixer("taylor", 32, 4, learn_order_weights=True).double()
    learnable.load_state_dict(plain.state_dict(), strict=False)
    x = torch.randn(2, 15, 32, dtype=torch.float64)
    torch.testing.assert_close(learnable(x)[0], plain(x)[0], rtol=1e-12, atol=1e-12)


def test_the_norm_replaces_the_denominator():
    """Paper 1's L2(exp(QKᵀ)V), for scores whose exponentials overflow."""
    mixer = published_mixer(1, "gated_softmax_no_gate_L2norm_nodivS_noclamp", 32, 4, rotary="none").double()
    x = torch.randn(2, 15, 32, dtype=torch.float64)
    q, k, v = projected(mixer, x)
    score = torch.einsum("bthk,bshk->bhts", q, k) / math.sqrt(8)
    y = F.normalize(torch.einsum("bhts,bshv->bthv", score.exp().tril(), v), dim=-1)
    torch.testing.assert_close(mixer(x)[0], y.flatten(2) @ mixer.out_proj.weight.T, rtol=1e-10, atol=1e-10)
    assert mixer(1e4 * x)[0].isfinite().all()


@pytest.mark.parametrize(
    ("name", "expected"),
    [("softmax", 275.29), ("2mamba", 275.81), ("2mamba+dt", 276.13), ("mamba2s", 276.15), ("mamba", 259.60)],
)
def test_parameter_counts_of_the_small_model_are_the_published_ones(name, expected):
    """20 layers of width 1024 with an MLP of 2048, untied embeddings of 32000 (millions, specs of the thesis)."""
    with torch.device("meta"):
        if name == "mamba":
            mixer = published_mixer(2, "mamba", 1024, 16)
        elif name == "2mamba+dt":
            mixer = maclaurin.build_mixer("2mamba", 1024, 16, value_discretization="dt")
        else:
            mixer = maclaurin.build_mixer(name, 1024, 16)
    of_mixer = sum(parameter.numel() for parameter in mixer.parameters())
    total = 20 * (of_mixer + 3 * 1024 * 2048 + 2 * 1024) + 2 * 32000 * 1024 + 1024
    assert round(total / 1e6, 2) == expected


def test_initial_decays_are_the_published_ones():
    """Softplus decays start at a mean of 0.50 a token; Mamba's original at 0.93 with its bias, 0.0045 without (medians)."""
    torch.manual_seed(0)
    x = F.rms_norm(torch.randn(1, 4096, 256), (256,))
    softplus = maclaurin.build_mixer("2mamba", 256, 64)
    assert abs(softplus.project(x).log_decay.exp().mean().item() - 0.50) < 0.01
    for bias, median, margin in ((False, 0.0045, 0.003), (True, 0.93, 0.03)):
        original = maclaurin.build_mixer("linear", 256, 64, decay="mamba", dt_bias=bias)
        assert abs(original.project(x).log_decay.exp().median().item() - median) < margin


class TestAgainstTransformers:
    """Mamba-2 on shared weights. Skipped where transformers is not installed."""

    @pytest.mark.parametrize(
        ("heads", "head_dim", "d_state", "groups", "expand", "length"),
        [(8, 16, 24, 2, 2, 50), (4, 8, 16, 1, 1, 7), (6, 16, 128, 3, 2, 130), (2, 24, 10, 1, 1, 1)],
    )
    def test_forward_and_decoding(self, heads, head_dim, d_state, groups, expand, length):
        transformers = pytest.importorskip("transformers", reason="needs the test extra")
        from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer, MambaRMSNormGated

        d_model = heads * head_dim // expand
        config = transformers.Mamba2Config(
            hidden_size=d_model,
            num_heads=heads,
            head_dim=head_dim,
            state_size=d_state,
            n_groups=groups,
            expand=expand,
            conv_kernel=4,
            num_hidden_layers=1,
            chunk_size=16,
            vocab_size=8,
        )
        theirs = Mamba2Mixer(config, 0).eval()
        per_group = "group_size" in inspect.signature(MambaRMSNormGated).parameters  # since 5.23
        options = {"expand": expand, "d_state": d_state, "n_groups": groups, "norm_per_group": per_group}
        ours = maclaurin.build_mixer("mamba2", d_model, heads, **options)
        ours.load_state_dict(theirs.state_dict())
        x = torch.randn(2, length + 3, d_model)
        with torch.no_grad():
            expected = theirs(x)
            for form in ("parallel", "chunked", "recurrent"):
                assert (ours(x, form=form)[0] - expected).abs().max() <= 1e-4
            cache = transformers.DynamicCache(config=config)
            theirs(x[:, :length], cache_params=cache)
            _, state = ours(x[:, :length])
            for t in range(length, length + 3):
                wanted = theirs(x[:, t : t + 1], cache_params=cache)
                got, state = ours(x[:, t : t + 1], state)
                assert (got - wanted).abs().max() <= 1e-4
