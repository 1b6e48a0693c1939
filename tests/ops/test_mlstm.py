"""The mLSTM cell: all forms are the plain recurrence, units cancel, gradients are true, and the authors' kernels agree."""

import math

import pytest
import torch
import torch.nn.functional as F

from maclaurin.ops import MLSTMState, mlstm, reference

FORMS = ("parallel", "chunked", "recurrent", "auto")
KINDS = ("exp", "sigmoid")

every_kind = pytest.mark.parametrize("kind", KINDS)


def cell(batch=2, length=37, heads=3, key_dim=8, value_dim=10, groups=None, dtype=torch.float64, seed=0):
    """q, k, v of N(0, 1), input gates of N(0, 3²), forget gates around 3."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    groups = groups or heads
    q = normal(batch, length, heads, key_dim)
    k, v = normal(batch, length, groups, key_dim), normal(batch, length, groups, value_dim)
    return q, k, v, 3 * normal(batch, length, groups), 3 + normal(batch, length, groups)


def relative(got, expected):
    """Of the whole: a denominator that cancels makes single outputs large."""
    return ((got - expected).norm() / expected.norm()).item()


def unstabilised(q, k, v, i, f, kind="exp"):
    """The recurrence as it is written, token by token, without ε."""
    C = q.new_zeros(*q.shape[:1], *q.shape[2:], v.shape[3])
    n = q.new_zeros(*q.shape[:1], *q.shape[2:])
    g = i.exp() if kind == "exp" else i.sigmoid()
    outputs = []
    for t in range(q.shape[1]):
        forget, gain = f[:, t].sigmoid()[..., None], g[:, t][..., None]
        C = forget[..., None] * C + gain[..., None] * k[:, t, :, :, None] * v[:, t, :, None, :]
        n = forget * n + gain * k[:, t]
        query = q[:, t] / math.sqrt(q.shape[3])
        total = (n * query).sum(-1, keepdim=True).abs().clamp(min=1)
        outputs.append(torch.einsum("bhkv,bhk->bhv", C, query) / total)
    return torch.stack(outputs, dim=1)


def stabilised_as_published(q, k, v, i, f, eps=1e-6):
    """The authors' step, in which m may fall below 0."""
    C = q.new_zeros(*q.shape[:1], *q.shape[2:], v.shape[3])
    n, m = q.new_zeros(*q.shape[:1], *q.shape[2:]), q.new_zeros(*q.shape[:1], q.shape[2])
    outputs = []
    for t in range(q.shape[1]):
        log_forget = F.logsigmoid(f[:, t])
        new_m = torch.maximum(log_forget + m, i[:, t])
        forget, gain = (log_forget + m - new_m).exp()[..., None], (i[:, t] - new_m).exp()[..., None]
        m = new_m
        C = forget[..., None] * C + gain[..., None] * k[:, t, :, :, None] * v[:, t, :, None, :]
        n = forget * n + gain * k[:, t]
        query = q[:, t] / math.sqrt(q.shape[3])
        total = torch.maximum((n * query).sum(-1).abs(), (-m).exp()) + eps
        outputs.append(torch.einsum("bhkv,bhk->bhv", C, query) / total[..., None])
    return torch.stack(outputs, dim=1)


@every_kind
def test_every_form_is_the_unstabilised_recurrence(kind):
    tensors = cell(length=96)
    expected = unstabilised(*tensors, kind)
    for form, chunk_size in [
        ("parallel", 64),
        ("recurrent", 64),
        ("auto", 64),
        *(("chunked", size) for size in (1, 5, 64, 96)),
    ]:
        y, _ = mlstm(*tensors, input_gate_kind=kind, eps=0.0, form=form, chunk_size=chunk_size)
        assert relative(y, expected) <= 1e-12, (form, chunk_size)


@every_kind
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_every_form_is_the_reference(kind, normalize, groups):
    if kind == "exp" and not normalize:
        return
    tensors = cell(heads=4, groups=groups)
    options = {"input_gate_kind": kind, "normalize": normalize, "scale": 0.3, "eps": 1e-3}
    expected = reference.mlstm(*tensors, **options)
    for form in FORMS:
        assert relative(mlstm(*tensors, form=form, **options)[0], expected) <= 1e-12, form


def test_epsilon_is_the_published_one_but_for_less_than_itself():
    """m never falls below 0 here: the published ε·exp(m) is smaller where no gate opens."""
    q, k, v, i, f = cell(length=60)
    for shift in (-20, 0, 20):
        tensors = (q, k, v, i + shift, f)
        y, _ = mlstm(*tensors)
        torch.testing.assert_close(y, stabilised_as_published(*tensors), rtol=1.1e-6, atol=1e-15)


@pytest.mark.parametrize("m", [-50.0, 5.0, 20.0])
def test_the_units_of_an_empty_state_cancel(m):
    tensors = cell()
    empty = MLSTMState(torch.zeros(2, 3, 8, 11, dtype=torch.float64), torch.full((2, 3), m, dtype=torch.float64))
    expected, _ = mlstm(*tensors, eps=0.0)
    for form in FORMS:
        assert relative(mlstm(*tensors, eps=0.0, state=empty, form=form)[0], expected) <= 1e-12, form


def test_epsilon_is_in_units_of_the_state():
    """Why m starts at 0: in units of exp(20), an ε of 1e-6 is no longer small."""
    q, k, v, i, f = cell()
    tensors = (q, k, v, i / 3, f)
    expected, _ = mlstm(*tensors)

    def drift(m):
        empty = MLSTMState(torch.zeros(2, 3, 8, 11, dtype=torch.float64), torch.full((2, 3), m, dtype=torch.float64))
        return relative(mlstm(*tensors, state=empty)[0], expected)

    assert drift(-50.0) <= 1e-12
    assert drift(5.0) < 2e-4 < drift(12.0) < 0.2 < drift(20.0)


@pytest.mark.parametrize("form", FORMS)
def test_stabilisation_is_needed_and_there(form):
    q, k, v, i, f = cell(dtype=torch.float32)
    tensors = (q, k, v, i + 100, f)
    assert not unstabilised(*tensors).isfinite().all()
    y, state = mlstm(*tensors, form=form)
    expected, _ = mlstm(*(tensor.double() for tensor in tensors))
    torch.testing.assert_close(y.double(), expected, rtol=2e-4, atol=2e-4)
    assert state.recurrent.dtype == torch.float32
    assert state.recurrent.isfinite().all()


def test_weights_are_signed():
    """About half of them are negative: no softmax."""
    q, k, _, i, f = cell(batch=1, length=64, heads=4)
    one_hot = torch.eye(64, dtype=torch.float64)[None, :, None].expand(1, 64, 4, 64)
    weights, _ = mlstm(q, k, one_hot, i, f)
    seen = weights.transpose(1, 2)[..., torch.ones(64, 64).tril().bool()]
    negative = (seen < 0).double().mean()
    assert 0.4 < negative < 0.6


@every_kind
@pytest.mark.parametrize("form", ["parallel", "chunked", "recurrent"])
def test_gradients_are_those_of_the_formula(kind, form):
    """Also through the denominator, ε, the state that comes in and the state that goes out."""
    q, k, v, i, f = cell(batch=1, length=3, heads=1, key_dim=2, value_dim=2, seed=4)
    _, state = mlstm(*cell(batch=1, length=4, heads=1, key_dim=2, value_dim=2, seed=9), input_gate_kind=kind)
    leaves = [q, k, v, i, f, *state.tensors().values()]

    def run(q, k, v, i, f, memory, log_scale=None):
        y, end = mlstm(
            q, k, v, i, f, state=MLSTMState(memory, log_scale), input_gate_kind=kind, form=form, eps=0.1, chunk_size=2
        )
        return y, *end.tensors().values()

    assert torch.autograd.gradcheck(run, [leaf.clone().requires_grad_() for leaf in leaves], atol=1e-7)


@every_kind
def test_hostile_gates_stay_finite_in_values_and_gradients(kind):
    for i, f in [(-math.inf, 3.0), (1e4, 3.0), (-1e4, 3.0), (0.0, -math.inf), (0.0, 1e4), (1e4, -1e4), (0.0, -25.0)]:
        q, k, v, input_gate, forget_gate = cell(dtype=torch.float32, length=20)
        input_gate[:, 5:9], forget_gate[:, 7:12] = i, f
        for form in ("parallel", "chunked", "recurrent"):
            leaves = [x.clone().requires_grad_() for x in (q, k, v, input_gate, forget_gate)]
            y, state = mlstm(*leaves, input_gate_kind=kind, form=form, chunk_size=4)
            y.sum().backward()
            assert y.isfinite().all(), (i, f, form)
            assert all(x.isfinite().all() for x in state.tensors().values()), (i, f, form)
            assert all(leaf.grad.isfinite().all() for leaf in leaves), (i, f, form)


def test_a_shut_input_gate_is_no_token_and_a_shut_forget_gate_a_new_start():
    q, k, v, i, f = cell(length=12)
    i[:, 4:7], f[:, 4:7] = -math.inf, math.inf
    whole, _ = mlstm(q, k, v, i, f)
    kept = [0, 1, 2, 3, 7, 8, 9, 10, 11]
    without, _ = mlstm(*(x[:, kept] for x in (q, k, v, i, f)))
    torch.testing.assert_close(whole[:, kept], without, rtol=1e-12, atol=1e-12)
    f[:, 7] = -math.inf
    fresh, _ = mlstm(*(x[:, 7:] for x in (q, k, v, i, f)))
    torch.testing.assert_close(mlstm(q, k, v, i, f)[0][:, 7:], fresh, rtol=1e-12, atol=1e-12)


@every_kind
def test_padding_is_neutral_even_where_it_is_nan(kind):
    q, k, v, i, f = (x.clone() for x in cell(length=9))
    lengths = torch.tensor([9, 4])
    for x in (q, k, v, i, f):
        x[1, 4:] = torch.nan
    leaves = [x.requires_grad_() for x in (q, k, v, i, f)]
    y, state = mlstm(*leaves, input_gate_kind=kind, lengths=lengths)
    alone, own = mlstm(*(x[1:, :4] for x in (q, k, v, i, f)), input_gate_kind=kind)
    torch.testing.assert_close(y[1:, :4], alone)
    for name, tensor in own.tensors().items():
        torch.testing.assert_close(state.tensors()[name][1:], tensor)
    (y.sum() + state.recurrent.sum()).backward()
    assert all(leaf.grad.isfinite().all() for leaf in leaves)


def test_sums_of_a_long_sequence_lose_nothing():
    """16k tokens of log σ(f) = -2: a float32 sum over all of them would lose 6e-3 of a weight's logarithm."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 16384, 1, 4, generator=generator) for _ in range(3))
    i, f = torch.randn(1, 16384, 1, generator=generator), torch.full((1, 16384, 1), -1.9)
    y, _ = mlstm(q, k, v, i, f)
    late, _ = mlstm(*(x[:, -64:].double() for x in (q, k, v, i, f)))
    torch.testing.assert_close(y[:, -20:].double(), late[:, -20:], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_gate": torch.zeros(2, 37, 2)}, r"input_gate must match k \(2, 37, 3, 8\) in batch, time and heads"),
        ({"forget_gate": torch.zeros(2, 36, 3)}, "forget_gate must match k"),
        ({"input_gate_kind": "tanh"}, "input_gate_kind must be one of 'exp', 'sigmoid', got 'tanh'"),
        ({"normalize": False}, "normalize=False needs input_gate_kind='sigmoid'"),
        ({"eps": -1.0}, "eps must not be negative"),
        (
            {"state": MLSTMState(torch.zeros(2, 3, 8, 10), torch.zeros(2, 3))},
            "state must have been made with the same heads",
        ),
        ({"state": MLSTMState(torch.zeros(2, 3, 8, 11))}, "state must have been made with the same .* input_gate_kind"),
    ],
)
def test_bad_calls(change, message):
    names = ("q", "k", "v", "input_gate", "forget_gate")
    with pytest.raises(ValueError, match=message):
        mlstm(**{**dict(zip(names, cell(), strict=True)), **change})


def heads_first(tensors):
    return [x.transpose(1, 2).contiguous() for x in tensors]


class TestAgainstTheAuthors:
    """NX-AI's own functions in plain PyTorch, float32, outputs and gradients."""

    @staticmethod
    def authors(name):
        reason = "the authors' kernels are a test extra: pip install mlstm_kernels"
        module = pytest.importorskip(f"mlstm_kernels.torch.{name}", reason=reason)
        return module

    @pytest.mark.parametrize("form", FORMS)
    @pytest.mark.parametrize("shift", [-10, 0, 10])
    def test_parallel(self, form, shift):
        theirs = self.authors("parallel.native").mlstm_parallel__native_autograd
        q, k, v, i, f = cell(length=128, dtype=torch.float32)
        tensors = (q, k, v, i + shift, f)
        expected = theirs(*heads_first(tensors)).transpose(1, 2)
        got, _ = mlstm(*tensors, form=form)
        assert relative(got, expected) <= 1e-4
        assert (got - expected).abs().max() <= 1e-4 * expected.abs().max()

    @pytest.mark.parametrize("form", FORMS)
    def test_chunkwise_and_its_states(self, form):
        theirs = self.authors("chunkwise.native").mlstm_chunkwise__native_autograd
        tensors = cell(length=128, dtype=torch.float32)
        first, second = ([x[:, part] for x in tensors] for part in (slice(0, 64), slice(64, 128)))
        expected, (C, n, m) = theirs(*heads_first(first), return_last_states=True, chunk_size=16)
        got, state = mlstm(*first, form=form)
        torch.testing.assert_close(got, expected.transpose(1, 2), rtol=1e-4, atol=1e-4)
        # the same state in other units: theirs goes on here, and ours there
        taken = MLSTMState(torch.cat([C, n[..., None]], dim=-1), m.reshape(2, 3).double())
        expected, _ = theirs(*heads_first(second), C, n, m, return_last_states=True, chunk_size=16)
        for start in (state, taken):
            got, _ = mlstm(*second, state=start, form=form)
            torch.testing.assert_close(got, expected.transpose(1, 2), rtol=1e-4, atol=1e-4)
        back = theirs(
            *heads_first(second),
            state.recurrent[..., :-1].contiguous(),
            state.recurrent[..., -1].contiguous(),
            state.log_scale.float().reshape(m.shape),
            return_last_states=True,
            chunk_size=16,
        )[0]
        torch.testing.assert_close(back, expected, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("form", FORMS)
    @pytest.mark.parametrize("normalize", [True, False])
    def test_sigmoid_input_gate(self, form, normalize):
        theirs = self.authors("parallel.native_siging").mlstm_siging_parallel__native_autograd
        tensors = cell(length=128, dtype=torch.float32)
        expected = theirs(*heads_first(tensors), normalize=normalize).transpose(1, 2)
        got, _ = mlstm(*tensors, form=form, input_gate_kind="sigmoid", normalize=normalize)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)

    def test_gradients(self):
        """Equal to autograd's through their formula; their own backward holds the denominator constant and differs."""
        module = self.authors("parallel.native")
        tensors = cell(length=64, dtype=torch.float32)
        wanted = torch.randn(2, 64, 3, 10, generator=torch.Generator().manual_seed(1))

        def gradients(function):
            leaves = [x.clone().requires_grad_() for x in tensors]
            return torch.autograd.grad((function(leaves) * wanted).sum(), leaves)

        got = gradients(lambda leaves: mlstm(*leaves, form="chunked")[0])
        true = gradients(lambda leaves: module.mlstm_parallel__native_autograd(*heads_first(leaves)).transpose(1, 2))
        theirs = gradients(lambda leaves: module.mlstm_parallel__native_custbw(*heads_first(leaves)).transpose(1, 2))
        for mine, exact in zip(got, true, strict=True):
            assert relative(mine, exact) <= 1e-4
        assert max(relative(a, b) for a, b in zip(theirs, true, strict=True)) > 1e-2
