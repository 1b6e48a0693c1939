"""MetaLA: what the paper claims of a decay that is also the key, with its own numbers."""

# T time, K key channels, V value channels

import math

import pytest
import torch
import torch.nn.functional as F

import maclaurin
from maclaurin.ops import linear_attention, reference

FORMS = ("parallel", "chunked", "recurrent")


def weights(q_TK, log_alpha_TK, k_TK, form="auto", chunk_size=64):
    """The T x T map, read off with one-hot values: one channel per token."""
    T = q_TK.shape[0]
    one_hot = torch.eye(T, dtype=q_TK.dtype)
    q, k, v, a = (x[None, :, None] for x in (q_TK, k_TK, one_hot, log_alpha_TK))
    y, _ = linear_attention(q, k, v, a, scale=1.0, normalize=False, form=form, chunk_size=chunk_size)
    return y[0, :, 0]


def drawn(T, K, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q, logits = torch.randn(2, T, K, generator=generator, dtype=torch.float64)
    return q, F.logsigmoid(logits)


def test_all_forms_are_the_matrix():
    q, log_alpha = drawn(48, 8)
    k = -torch.expm1(log_alpha)
    v = torch.eye(48, dtype=torch.float64)[None, :, None]
    expected = reference.linear_attention(
        q[None, :, None], k[None, :, None], v, log_alpha[None, :, None], scale=1.0, normalize=False
    )[0, :, 0]
    for form in FORMS:
        assert (weights(q, log_alpha, k, form, chunk_size=16) - expected).abs().max() < 1e-14


@pytest.mark.parametrize("forget_first", [False, True])
def test_a_channel_s_weights_sum_to_one_minus_what_is_left_of_the_start(forget_first):
    """Σ_s Π_{j>s} α_j (1 − α_s) = 1 − Π α_j: exactly 1 once a token has cleared the channel."""
    _, log_alpha = drawn(40, 1)
    if forget_first:
        log_alpha[0] = -math.inf
    rows = weights(torch.ones_like(log_alpha), log_alpha, -torch.expm1(log_alpha)).sum(1)
    # sums of logs beside that of α = 0, which is held at -750, keep 12 digits
    torch.testing.assert_close(rows, 1 - log_alpha.cumsum(0).exp()[:, 0], rtol=0, atol=1e-12)
    assert ((rows >= 0) & (rows <= 1 + 1e-12)).all()
    assert not forget_first or (rows - 1).abs().max() < 1e-12


@pytest.mark.parametrize("form", FORMS)
def test_any_softmax_map_by_stick_breaking(form):
    """With a channel per row of the map, α_s = P_{s-1}/P_s of that row's running sums P, and one-hot queries."""
    T = 16
    scores = torch.randn(T, T, dtype=torch.float64).masked_fill(torch.ones(T, T).triu(1) == 1, -math.inf)
    softmax = scores.softmax(-1)
    sums = softmax.cumsum(-1)
    before = F.pad(sums, (1, 0))[:, :-1]
    alpha_TK = (before / sums).T  # token s, the channel of row t
    assert ((alpha_TK >= 0) & (alpha_TK <= 1 + 1e-15)).all()
    log_alpha = alpha_TK.clamp(max=1).log()
    got = weights(torch.eye(T, dtype=torch.float64), log_alpha, -torch.expm1(log_alpha), form)
    assert (got - softmax).abs().max() < 1e-12


def test_a_block_of_the_map_has_at_most_the_rank_of_the_keys():
    T, K = 40, 6
    q, log_alpha = drawn(T, K)
    metala = weights(q, log_alpha, -torch.expm1(log_alpha))
    softmax = torch.randn(T, T, dtype=torch.float64).softmax(-1)
    assert torch.linalg.matrix_rank(metala[T // 2 :, : T // 2]) == K
    assert torch.linalg.matrix_rank(softmax[T // 2 :, : T // 2]) == T // 2


def test_a_token_overwrites_one_slot_and_leaves_the_others():
    """α = 0 in one channel, 1 in all others: with k = 1 − α that slot becomes v, and no other decay can do the same."""
    K, V = 4, 3
    old, new = torch.randn(K, V, dtype=torch.float64), torch.randn(1, 1, 1, V, dtype=torch.float64)
    alpha = torch.ones(K, dtype=torch.float64)
    alpha[0] = 0
    state = maclaurin.ops.LinearState(old[None, None])

    def written(key, log_decay):
        q = key.new_zeros(1, 1, 1, K)
        _, after = linear_attention(q, key.view(1, 1, 1, K), new, log_decay.view(1, 1, 1, K), normalize=False, state=state)
        return after.recurrent[0, 0]

    expected = torch.cat([new[0, 0], old[1:]])
    assert torch.equal(written(1 - alpha, alpha.log()), expected)
    one_hot = F.one_hot(torch.tensor(0), K).double()
    fixed = written(one_hot, torch.full((K,), math.log(0.9), dtype=torch.float64))
    torch.testing.assert_close(fixed[0], 0.9 * old[0] + new[0, 0, 0])
    torch.testing.assert_close(written(one_hot, torch.zeros(K, dtype=torch.float64))[0], old[0] + new[0, 0, 0])


def test_a_fixed_decay_needs_unbounded_keys():
    """To weigh a token of lag 200 with 1 behind the decay 0.9, its key must be 1.4e9."""
    T = 201
    log_alpha = torch.full((T, 1), math.log(0.9), dtype=torch.float64)
    key = 0.9**-200
    assert key == pytest.approx(1.4e9, rel=0.02)
    k = torch.full((T, 1), key, dtype=torch.float64)
    assert weights(torch.ones(T, 1, dtype=torch.float64), log_alpha, k)[-1, 0].item() == pytest.approx(1)


def test_the_product_of_quotients_overflows_where_the_chunks_do_not():
    """(Q ⊙ A)(K / A)ᵀ in float32 with log α = −½: A underflows within 256 tokens."""
    T = 256
    log_alpha = torch.full((T, 4), -0.5)
    q, k = torch.randn(T, 4), -torch.expm1(log_alpha)
    A = log_alpha.cumsum(0).exp()
    naive = ((q * A) @ (k / A).T).tril()
    assert not naive.isfinite().all()
    exact = weights(q.double(), log_alpha.double(), k.double())
    for form in FORMS:
        got = weights(q, log_alpha, k, form)
        assert got.isfinite().all()
        torch.testing.assert_close(got.double(), exact, rtol=1e-4, atol=1e-6)


def build(seed=0, **options):
    torch.manual_seed(seed)
    return maclaurin.build_mixer("metala", 24, 4, **options).double()


def tokens(length=20):
    return torch.randn(2, length, 24, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("causal", [True, False])
def test_the_augmentation_of_the_authors_starts_as_nothing(causal):
    """σ(0) = ½ in every channel, which the LayerNorm removes."""
    with torch.no_grad():
        code, off = (build(aug=aug, causal=causal)(tokens())[0] for aug in ("code", "off"))
    assert (code - off).abs().max() < 1e-14


@pytest.mark.parametrize("aug", ["code", "linear", "gate"])
def test_the_augmentation_leaves_the_state_untouched(aug):
    plain, changed = build(aug=aug), build(aug=aug)
    x = tokens()
    with torch.no_grad():
        changed.aug_weight.normal_()
        states = [None, None]
        for t in range(x.shape[1]):
            (first, second), states = zip(
                *(mixer(x[:, t : t + 1], state) for mixer, state in zip((plain, changed), states, strict=True)), strict=True
            )
            assert not torch.allclose(first, second)
            for a, b in zip(states[0].tensors().values(), states[1].tensors().values(), strict=True):
                assert torch.equal(a, b)


@pytest.mark.parametrize("aug", ["off", "code", "linear", "gate"])
@pytest.mark.parametrize("own_key", [False, True])
def test_the_layer_is_gla_with_one_minus_alpha_for_a_key(aug, own_key):
    """The layer written out around the oracle, with a key of its own and without."""
    mixer = build(aug=aug, own_key=own_key)
    if mixer.aug_weight is not None:
        torch.nn.init.normal_(mixer.aug_weight)
    x = tokens()
    with torch.no_grad():
        u = F.silu(reference.short_conv(x, mixer.conv.weight.squeeze(1)))
        q, a, v, *k = (part.unflatten(-1, (4, -1)) for part in mixer.in_proj(u).split(mixer.in_sizes, -1))
        alpha = torch.sigmoid(a) ** (1 / 16)
        key = k[0] if own_key else 1 - alpha
        o = reference.linear_attention(q, key, v, alpha.log(), normalize=False)
        if aug != "off":
            score = torch.einsum("bthk,hk,bthk->bth", q, mixer.aug_weight, key)[..., None]
            o = o + {"code": torch.sigmoid(score * v), "linear": score * v, "gate": torch.sigmoid(score) * v}[aug]
        o = (o - o.mean(-1, keepdim=True)) / (o.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        expected = mixer.out_proj(F.silu(mixer.gate_proj(u)) * o.flatten(2))
        for form in FORMS:
            torch.testing.assert_close(mixer(x, form=form)[0], expected, rtol=1e-9, atol=1e-9)


def test_without_convolution_and_with_full_keys():
    """The ablation without convolution, and the sizes of the recall tasks."""
    mixer = build(conv_width=0, activation="identity", key_dim=6)
    x = tokens()
    with torch.no_grad():
        whole, _ = mixer(x)
        first, state = mixer(x[:, :7])
        second, state = mixer(x[:, 7:], state)
    assert state.nbytes == 2 * mixer.state_nbytes(20)
    torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=1e-10, atol=1e-10)


def test_the_published_sizes():
    """4·d² parameters, and d for the gate's bias, 4·d for the convolution, d/2 for the augmentation."""
    mixer = maclaurin.build_mixer("metala", 512, 4)
    assert (mixer.key_dim, mixer.head_dim) == (64, 128)
    assert sum(parameter.numel() for parameter in mixer.parameters()) == 4 * 512**2 + 512 + 4 * 512 + 256
