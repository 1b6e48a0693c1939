"""Numbers that break careless code: forms stay finite, agree, and give zero where nothing is there to average."""

import math

import pytest
import torch

from maclaurin import ops
from maclaurin.ops import reference
from tests.ops.helpers import (
    ALL,
    BY_NAME,
    FORMS,
    Batch,
    Sizes,
    assert_close,
    assert_same_gradients,
    distance,
    every,
    gradients,
    projections,
)

ATTENTION = [op for op in ALL if "q" in op.draw(Sizes(T=1)).tokens]
DECAYED = [op for op in ATTENTION if "log_decay" in op.draw(Sizes(T=1)).tokens]
FINITE = [op for op in ATTENTION if op.function is not ops.softmax_attention]
# outputs are zero where all scores are: not with a term of order 0, which is a weight without a score
ZERO_AT_ZERO = [op for op in FINITE if not op.name.startswith(("taylor-2", "taylor-5", "inline"))]  # no weight of order 0


def run(op, batch, form, **options):
    """Outputs and gradients, with a check that all of them are finite."""
    leaves = batch.leaves()
    y, state = op(leaves, form=form, **options)
    assert y.isfinite().all(), form
    # a kept token keeps the decay that it brought, which may be -inf
    assert all(x.isfinite().all() for name, x in state.tensors().items() if name != "log_decay"), form
    found = torch.autograd.grad(y.double().square().sum(), list(leaves.all().values()), allow_unused=True)
    for name, grad in zip(leaves.all(), found, strict=True):
        assert grad is None or grad.isfinite().all(), f"{form}: gradient of {name}"
    return y


@pytest.mark.parametrize("zeroed", ["q", "k", "qk"])
@every(ATTENTION)
def test_zero_queries_and_keys_stay_finite(op, zeroed):
    batch = op.draw(Sizes())
    for name in zeroed:
        batch.tokens[name].zero_()
    for dtype in (torch.float64, torch.float32):
        for form in FORMS:
            y = run(op, batch.to(dtype), form)
            assert_close(y, op.reference(batch), 1e-6)
            if op in ZERO_AT_ZERO:
                assert (y == 0).all(), form


@pytest.mark.parametrize("form", FORMS)
@every(ATTENTION)
def test_some_zero_rows_among_others(op, form):
    batch = op.draw(Sizes(T=13))
    batch.tokens["q"][:, ::3] = 0
    batch.tokens["k"][:, 1::4] = 0
    assert_close(run(op, batch, form), op.reference(batch), 1e-10)


@pytest.mark.parametrize("form", FORMS)
@every([op for op in ZERO_AT_ZERO if op.options.get("normalize", True)])
def test_a_first_token_orthogonal_to_its_key_gives_zero(op, form):
    batch = op.draw(Sizes(K=4))
    batch.tokens["q"][:, 0] = torch.tensor([1.0, 1.0, 0.0, 0.0]).double()
    batch.tokens["k"][:, 0] = torch.tensor([1.0, -1.0, 0.0, 2.0]).double()
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        y = run(op, batch.to(dtype), form)
        assert (y[:, 0] == 0).all()
    if op.options.get("order", 1) == 2:
        # of other orders the score of the first key with later queries may now be negative
        assert_close(run(op, batch, form), op.reference(batch), 1e-10)


@pytest.mark.parametrize("form", [*FORMS, "auto"])
@pytest.mark.parametrize("value", [-1e4, -750.0, -1e30, -math.inf])
@every(DECAYED)
def test_a_total_decay_leaves_the_token_itself(op, value, form):
    batch = op.draw(Sizes())
    batch.tokens["log_decay"].fill_(value)
    y = run(op, batch, form)
    single = batch.map(lambda x: x.flatten(0, 1)[:, None], parameters=False)  # every token a sequence of its own
    if op.options.get("divisor") != "count":
        assert_close(y, op.reference(single).view_as(y), 1e-12)
    if math.isfinite(value):
        assert_close(y, op.reference(batch), 1e-10)


@pytest.mark.parametrize("form", [*FORMS, "auto"])
@every(DECAYED)
def test_a_decay_to_nothing_separates_rows_of_any_length(op, form):
    batch = op.draw(Sizes(T=9))
    batch.tokens["log_decay"][:, [0, 4]] = -math.inf
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 6:] = False
    _, state = op(batch, attention_mask=mask, form=form)
    y, _ = op(batch, state=state, form=form)
    whole = batch.map(lambda x: torch.cat([x[1:, :6], x[1:]], dim=1), parameters=False)
    assert_close(y[1:], op.reference(whole)[:, 6:], 1e-10)


@pytest.mark.parametrize("form", [*FORMS, "auto"])
@every(DECAYED)
def test_a_decay_of_zero_is_no_decay(op, form):
    batch = op.draw(Sizes())
    batch.tokens["log_decay"].zero_()
    plain = Batch({name: x for name, x in batch.tokens.items() if name != "log_decay"}, batch.parameters)
    assert_close(run(op, batch, form), op.reference(plain), 1e-10)


@pytest.mark.parametrize("weak", [0.0, -1e-7, -0.5])
@pytest.mark.parametrize("strong", [-1e4, -80.0, -20.0])
@every(DECAYED)
def test_strong_and_weak_decays_share_a_chunk(op, strong, weak):
    """Sums that lose the weak decay beside the strong one would show here: forms agree to 2e-4 in float32."""
    batch = op.draw(Sizes(T=24, seed=1))
    decay = batch.tokens["log_decay"]
    decay.fill_(weak)
    decay[:, [3, 4, 10, 17]] = strong
    decay[:, 7, :1] = strong
    batch = batch.to(torch.float32)
    expected = op.reference(batch.to(torch.float64))
    if op.name == "softmax-relu":
        # a query that no near key answers averages far ones, whose weights float32 cannot hold: all forms say zero
        expected = op(batch, form="parallel")[0]
    for form, chunk in [("parallel", 64), ("recurrent", 64), ("auto", 64), *(("chunked", chunk) for chunk in (5, 16, 64))]:
        assert_close(run(op, batch, form, chunk=chunk), expected, 2e-4, f"{form} {chunk}")


@pytest.mark.parametrize(
    "name", ["power-2-decay", "power-2-decay-per-query-head", "linear-decay", "linear-channel", "softmax-decay"]
)
def test_weak_decays_survive_beside_many_strong_ones(name):
    """Every third of 256 tokens forgets all: sums of -64000 in float32 would be blind to the decays between them."""
    op = BY_NAME[name]
    batch = op.draw(Sizes(B=1, T=256, G=1, seed=3))
    batch.tokens["log_decay"][:, ::3] = -1e4
    batch = batch.to(torch.float32)
    expected = op.reference(batch.to(torch.float64))
    for form in ("parallel", "chunked"):
        assert_close(run(op, batch, form, chunk=256), expected, 2e-5, form)


@pytest.mark.parametrize(
    "name",
    ["power-2-decay", "power-2-sums", "linear-decay", "linear-channel", "softmax-decay", "delta-decay", "delta-channel"],
)
def test_gradients_survive_mixed_decays(name):
    op = BY_NAME[name]
    batch = op.draw(Sizes(T=20))
    decay = batch.tokens["log_decay"]
    decay.fill_(-0.5)
    decay[:, ::6] = -1e4
    decay[:, 3::6] = 0
    leaves = batch.leaves()
    expected = gradients(projections([op.reference(leaves)]), leaves.all())
    for form in FORMS:
        y, _ = op(leaves, form=form)
        assert_same_gradients(gradients(projections([y]), leaves.all()), expected)


# with keys longer than 1 the delta rule is meant to grow without bound
SHORT_KEYS = [op.name for op in ATTENTION if op.function is ops.delta_rule]
UNBOUNDED = [op.name for op in ATTENTION if op.options.get("divisor") in ("count", "none")]


@pytest.mark.parametrize("name", [op.name for op in ATTENTION if op.name not in SHORT_KEYS + UNBOUNDED])
def test_scores_of_ten_thousand_stay_finite(name):
    op = BY_NAME[name]
    batch = op.draw(Sizes(K=4, seed=2))
    scale = op.options.get("scale", 0.5)
    for x in (batch.tokens["q"], batch.tokens["k"]):
        x *= (1e4 / (scale * 4)) ** 0.5
    batch = batch.to(torch.float32)
    exact = op.reference(batch.to(torch.float64))
    # scores of 1e4 are rounded by 0.001 before they are exponentiated: as much as plain PyTorch loses is allowed
    tolerance = max(2e-4, 2 * distance(op.reference(batch), exact))
    if op.options.get("divisor") == "floored-sum":
        exact, tolerance = op(batch, form="parallel")[0], 2e-4  # the reference does not shift these, and overflows
    for form in (*FORMS, "auto"):
        assert_close(run(op, batch, form), exact, tolerance, form)


def test_scores_and_decays_of_ten_thousand_compete_in_softmax():
    """A decay of -1e4 is a bias like any other where a score is 1e4 higher."""
    q = torch.full((1, 2, 1, 1), 100.0, dtype=torch.float64)
    k = torch.tensor([100.0, 0.0], dtype=torch.float64).view(1, 2, 1, 1)
    v = torch.tensor([1.0, 3.0], dtype=torch.float64).view(1, 2, 1, 1)
    log_decay = torch.tensor([0.0, -1e4], dtype=torch.float64).view(1, 2, 1)
    assert_close(reference.softmax_attention(q, k, v, log_decay)[0, 1], torch.full((1, 1), 2.0), 1e-12)
    for form in (*FORMS, "auto"):
        y, _ = ops.softmax_attention(q, k, v, log_decay, form=form)
        assert_close(y, reference.softmax_attention(q, k, v, log_decay), 1e-12, form)


@pytest.mark.parametrize("scale", [0.0, -1.0, 1e-300])
def test_softmax_takes_any_sign_of_its_scale(scale):
    q, k, v = (torch.randn(1, 12, 2, 4) for _ in range(3))
    expected = reference.softmax_attention(*(x.double() for x in (q, k, v)), scale=scale)
    for form in (*FORMS, "auto"):
        for decay in (None, torch.zeros(1, 12, 2)):
            assert_close(ops.softmax_attention(q, k, v, decay, scale=scale, form=form)[0], expected, 1e-6, form)


def test_capped_scores_keep_undivided_weights_finite():
    q = torch.full((1, 5, 1, 4), 1e3)
    for form in (*FORMS, "auto"):
        y, _ = ops.softmax_attention(q, q, q, divisor="none", score_cap=10.0, form=form)
        assert y.isfinite().all()


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e3])
@pytest.mark.parametrize("name", ["power-2-decay", "linear-decay", "linear-channel"])
def test_normalised_outputs_do_not_feel_the_size_of_queries_and_keys(name, scale):
    op = BY_NAME[name]
    batch = op.draw(Sizes(T=17))
    batch.tokens["q"] *= scale
    batch.tokens["k"] *= scale
    expected = op.reference(op.draw(Sizes(T=17)))
    for form in FORMS:
        assert_close(run(op, batch.to(torch.float32), form), expected, 2e-4, form)


@pytest.mark.parametrize("decay", [-1e-6, -1e-3, 0.0])
@pytest.mark.parametrize("name", ["power-2-decay", "taylor-2", "linear-decay", "linear-channel"])
def test_long_sequences_with_hardly_any_decay(name, decay):
    """32768 tokens: the last outputs against a float64 sum over all of them."""
    T = 32768
    op = BY_NAME[name]
    batch = op.draw(Sizes(B=1, T=T, G=1, R=1, K=3, V=2))
    batch.tokens["log_decay"].fill_(decay)
    low = batch.to(torch.float32)
    chunk = 512 if op.folds else 64
    with torch.no_grad():
        y, _ = op.function(**low.all(), **op.options, form="chunked", chunk_size=chunk)
    assert y.isfinite().all()
    q, k, v = (low.tokens[name].double() for name in "qkv")
    age = torch.arange(T - 1, -1, -1).double()
    # the last query against all keys; with one decay for all channels, the weight factors
    score = (q[:, -1, 0] @ k[0, :, 0].T) / math.sqrt(3)
    kernel = {"power-2-decay": score**2, "taylor-2": 1 + score + score**2 / 2}.get(name, score)
    weight = kernel * (age * decay).exp()
    expected = (weight @ v[0, :, 0]) / weight.sum()
    assert_close(y[:, -1, 0], expected, 2e-4)


@pytest.mark.parametrize("name", ["power-2-decay", "linear-decay"])
def test_gradients_of_long_sequences_are_finite(name):
    op = BY_NAME[name]
    batch = op.draw(Sizes(B=1, T=32768, G=1, R=1, K=3, V=2)).to(torch.float32)
    batch.tokens["log_decay"].fill_(-1e-6)
    run(op, batch, "chunked", chunk=512, **({"fold": (64, 64)} if op.folds else {}))


@pytest.mark.parametrize("name", ["power-2-decay", "linear-decay", "linear-channel", "softmax-decay"])
@pytest.mark.parametrize("form", ["parallel", "chunked", "recurrent"])
def test_nan_is_never_hidden(name, form):
    """A NaN decay, as a diverging model makes it, shows in the output of its token and of those after it."""
    op = BY_NAME[name]
    batch = op.draw(Sizes(B=1, T=12, G=1, seed=3))
    batch.tokens["log_decay"][:, 5] = torch.nan
    y, _ = op(batch, form=form, chunk=4)
    assert y[:, :5].isfinite().all()
    assert y[:, 6:].isnan().any(-1).any(-1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("form", ["parallel", "chunked", "recurrent"])
@pytest.mark.parametrize("exact", [True, False])
def test_orthogonal_to_everything_in_the_state_is_zero(dtype, form, exact):
    """Keys share a direction and the query has none of it: what is left of their weights is rounding error."""
    k = torch.randn(1, 40, 1, 8, dtype=dtype)
    q = torch.randn(1, 40, 1, 8, dtype=dtype)
    v = torch.randn(1, 40, 1, 3, dtype=dtype)
    if exact:
        k, q = torch.zeros_like(k), torch.zeros_like(q)
        k[..., 0] = k[..., 1] = 1
        q[..., 0], q[..., 1] = 1, -1
    else:
        k = k[:, :1].expand(1, 40, 1, 8)
        q = q - (q * k).sum(-1, keepdim=True) / (k * k).sum(-1, keepdim=True) * k
    y, _ = ops.power_attention(q, k, v, form=form, chunk_size=8, fold_at=4, fold_every=4)
    assert y.abs().max() <= v.abs().max() + 1e-6
    if exact:
        assert (y == 0).all()


def at_an_angle(cosine, size, T=64, K=6, V=4):
    """Queries and keys of that length in float32: the keys in one direction, the queries at one angle to it."""
    direction = torch.nn.functional.normalize(torch.randn(K, dtype=torch.float64), dim=0)
    k = (direction + 0.1 * torch.randn(1, T, 1, 1, dtype=torch.float64) * direction).expand(1, T, 1, K)
    q = torch.randn(1, T, 1, K, dtype=torch.float64)
    q = torch.nn.functional.normalize(q - (q * direction).sum(-1, keepdim=True) * direction, dim=-1)
    q = (1 - cosine**2) ** 0.5 * q + cosine * direction
    return (size * q).float(), (size * k).float(), torch.randn(1, T, 1, V)


def through_a_state(q, k, v, form, **options):
    """The outputs, of which all but the first come from a state as well: of the parallel form that of a state."""
    options = {"chunk_size": 16, "fold_at": 24, "fold_every": 8, **options}
    if form != "parallel":
        return ops.power_attention(q, k, v, form=form, **options)[0]
    first, state = ops.power_attention(*(x[:, :40] for x in (q, k, v)), form=form, **options)
    rest, _ = ops.power_attention(*(x[:, 40:] for x in (q, k, v)), state=state, form=form, **options)
    return torch.cat([first, rest], dim=1)


AVERAGING = [2, 4, 6, (2, 4), (0, 2), (0, 2, 4), (0, 1, 2), (0, 1, 2, 3, 4)]


@pytest.mark.parametrize("size", [1.5, 100.0])
@pytest.mark.parametrize("form", ["parallel", "chunked", "recurrent"])
@pytest.mark.parametrize("order", AVERAGING, ids=str)
def test_weights_without_signs_give_averages_at_any_angle(order, form, size):
    """No output leaves the range of its values, and as long as a state has digits they are right."""
    orders = (order,) if isinstance(order, int) else order
    coefficients = [1.0 if isinstance(order, int) else 1 / math.factorial(n) for n in orders]
    for cosine in (1.0, 0.1, 1e-2, 1e-3, 1e-4, 1e-6):
        q, k, v = (x.requires_grad_() for x in at_an_angle(cosine, size))
        y = through_a_state(q, k, v, form, order=order)
        assert y.abs().max() <= 1.05 * v.abs().max(), cosine
        dk, dv = torch.autograd.grad(y.square().sum(), (k, v))
        # how much larger the terms of a sum over features are than the sum: machine epsilons of them are what it loses
        score = size**2 / 6**0.5
        terms = sum(n * c * score**n for n, c in zip(orders, coefficients, strict=True))
        lost = 8 * torch.finfo(torch.float32).eps * (1 + terms / sum_of(coefficients, orders, cosine * score))
        if lost > 1:
            continue
        exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
        expected = reference.power_attention(*exact, order=order)
        expected_dk, expected_dv = torch.autograd.grad(expected.square().sum(), exact[1:])
        assert distance(y, expected) < lost, cosine
        assert distance(dv, expected_dv) < lost, cosine
        assert distance(dk, expected_dk) < lost / cosine, cosine


def sum_of(coefficients, orders, score):
    return sum(c * score**n for n, c in zip(orders, coefficients, strict=True))


@pytest.mark.parametrize("form", ["parallel", "chunked", "recurrent"])
@pytest.mark.parametrize("order", [4, (2, 6)], ids=str)
def test_weights_of_even_orders_give_averages_at_any_angle(order, form):
    heads = torch.rand(1, 1 if isinstance(order, int) else 2)
    for cosine in (1e-1, 1e-3, 1e-5):
        q, k, v = at_an_angle(cosine, 2.0)
        y = through_a_state(q, k, v, form, order=order, order_weights=heads)
        assert y.abs().max() <= 1.05 * v.abs().max(), cosine


@pytest.mark.parametrize("order", AVERAGING, ids=str)
def test_one_state_of_a_whole_sequence_gives_averages_at_any_angle(order):
    for cosine in (1e-1, 1e-3, 1e-5):
        q, k, v = at_an_angle(cosine, 2.0)
        y = ops.bidirectional_power(q, k, v, order=order, form="chunked")
        assert y.abs().max() <= 1.05 * v.abs().max(), cosine


def test_orders_of_both_signs_read_all_of_their_state():
    """1.0·x² - 0.3·x⁴ has negative sums, which are as good as others."""
    q, k, v = (torch.randn(1, 60, 1, 4, dtype=torch.float64) for _ in range(3))
    weights = torch.tensor([[2.0, -7.2]], dtype=torch.float64)
    expected = reference.power_attention(q, k, v, order=(2, 4), order_weights_HN=weights)
    for form in FORMS:
        y = through_a_state(q, k, v, form, order=(2, 4), order_weights=weights)
        assert_close(y, expected, 1e-8, form)


@pytest.mark.parametrize("form", ["parallel", "chunked", "recurrent"])
def test_gradients_are_those_of_what_was_computed_where_a_state_is_silent(form):
    """In float64 the sixth order has no digits left below a cosine of 4e-3, where differences still tell the gradients."""
    q, k, v = (x.double().requires_grad_() for x in at_an_angle(1e-3, 1.0, T=6, K=3, V=1))

    def attend(*leaves):
        _, state = ops.power_attention(
            *(x[:, :3] for x in leaves), order=6, form=form, chunk_size=2, fold_at=3, fold_every=2
        )
        rest = (x[:, 3:] for x in leaves)
        return ops.power_attention(*rest, order=6, state=state, form=form, chunk_size=2, fold_at=3, fold_every=2)[0]

    assert distance(attend(q, k, v), reference.power_attention(q, k, v, order=6)[:, 3:]) > 0.1
    torch.autograd.gradcheck(attend, (q, k, v), eps=1e-7, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("cosine", [1e-1, 1e-4, 1e-5])
def test_backends_have_the_same_gradients_where_a_state_is_silent(cosine):
    leaves = [x.requires_grad_() for x in at_an_angle(cosine, 2.0)]
    found = []
    for backend in ("torch", "native"):
        y = through_a_state(*leaves, "recurrent", backend=backend)
        found.append(torch.autograd.grad(y.square().sum(), leaves))
    for plain, native in zip(*found, strict=True):
        assert (plain - native).abs().max() < 1e-2 * max(found[0][1].abs().max(), plain.abs().max())


@pytest.mark.parametrize("form", ["parallel", "chunked", "recurrent"])
@pytest.mark.parametrize("size", [1e-8, 1e-10, 1e-15, 1e-20])
def test_tiny_scores_have_finite_gradients(form, size):
    q, k, v = (torch.randn(1, 20, 1, 8) for _ in range(3))
    q, k, a = size * q, size * k, -torch.rand(1, 20, 1)
    leaves = [x.requires_grad_() for x in (q, k, v, a)]
    y, _ = ops.power_attention(*leaves, form=form, chunk_size=8, fold_at=6, fold_every=4)
    assert y.isfinite().all()
    for gradient in torch.autograd.grad(y.sum(), leaves):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("terms", [9, 13, 80])
def test_long_series_stay_finite_at_large_scores(terms):
    """Powers of a score of 100 leave the range of float32 after 19 terms."""
    q, k, v = (torch.randn(1, 20, 1, 4) for _ in range(3))
    q = 100 * q
    y, _ = ops.power_attention(q, k, v, order=range(terms))
    expected = reference.power_attention(*(x.double() for x in (q, k, v)), order=range(terms))
    assert ((y - expected).norm() / expected.norm()) < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast_does_not_reach_into_an_op(dtype):
    q, k, v = (torch.randn(1, 40, 2, 8).to(dtype).requires_grad_() for _ in range(3))
    a = (-torch.rand(1, 40, 2)).requires_grad_()
    plain, _ = ops.power_attention(q, k, v, a, form="chunked", chunk_size=16)
    wanted = torch.autograd.grad(plain.sum(), (q, k, v, a))
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = ops.power_attention(q, k, v, a, form="chunked", chunk_size=16)
        got = torch.autograd.grad(y.sum(), (q, k, v, a))
    assert torch.equal(y, plain)
    assert all(torch.equal(left, right) for left, right in zip(got, wanted, strict=True))
