"""Every form computes what reference.py says, and all of them leave the same state behind."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maclaurin import ops
from maclaurin.ops import chunks, conv, crossover
from maclaurin.ops.gpu import work
from maclaurin.ops.gpu.peaks import Peak
from maclaurin.ops.power_native import tasks_in_chunks
from tests.ops.helpers import ALL, BY_NAME, FEW, FORMS, Sizes, assert_close, assert_same_state, distance, every, sizes

HEAD_SIZES = [(48, 48), (96, 64), (192, 33), (17, 80)]
FOLDS = st.tuples(st.integers(1, 21), st.integers(1, 8))


@every(ALL)
@settings(max_examples=25)
@given(s=sizes(), chunk=st.integers(1, 8), fold=FOLDS)
def test_forms_agree(op, s, chunk, fold):
    batch = op.draw(s)
    expected = op.reference(batch)
    states = []
    for form in (*FORMS, "auto"):
        y, state = op(batch, chunk, fold, form=form)
        assert y.dtype == torch.float64
        assert_close(y, expected, 1e-10, form)
        states.append(state)
    for state in states[1:]:
        assert_same_state(state, states[0])


@every(ALL)
@settings(max_examples=15)
@given(s=sizes(), chunk=st.integers(1, 8), fold=FOLDS)
def test_forms_agree_in_float32(op, s, chunk, fold):
    batch = op.draw(s).to(torch.float32)
    expected = op.reference(batch.to(torch.float64))
    for form in (*FORMS, "auto"):
        y, _ = op(batch, chunk, fold, form=form)
        assert y.dtype == torch.float32
        assert_close(y, expected, 2e-4, form)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@every(ALL)
@settings(max_examples=8)
@given(s=sizes(), chunk=st.integers(1, 8), fold=FOLDS)
def test_low_precision_loses_no_more_than_rounding(op, dtype, s, chunk, fold):
    """The error is at most twice that of float32 arithmetic on the same inputs, rounded once at the end, beside what float32
    loses in this form: features of order 4 cancel where a query is orthogonal to all that it sees.
    """
    batch = op.draw(s).to(dtype)
    exact = op.reference(batch.to(torch.float64))
    rounded = distance(op.reference(batch.to(torch.float32)).to(dtype), exact)
    for form in (*FORMS, "auto"):
        y, _ = op(batch, chunk, fold, form=form)
        lost = distance(op(batch.to(torch.float32), chunk, fold, form=form)[0], exact)
        assert y.dtype == dtype
        assert distance(y, exact) <= 2 * rounded + lost + 1e-5, form


@pytest.mark.parametrize(("K", "V"), HEAD_SIZES)
@pytest.mark.parametrize(
    "name", ["power-2-decay", "linear-decay", "linear-channel", "softmax-decay", "softmax", "delta-decay"]
)
def test_head_sizes_need_not_be_powers_of_two(name, K, V):
    op = BY_NAME[name]
    batch = op.draw(Sizes(B=1, T=9, G=1, R=2, K=K, V=V))
    for form in FORMS:
        y, _ = op(batch, chunk=4, fold=(5, 3), form=form)
        assert_close(y, op.reference(batch), 1e-10, form)
    batch = op.draw(Sizes(B=1, T=70, G=1, R=2, K=K, V=V)).to(torch.float32)
    expected = op.reference(batch.to(torch.float64))
    for form in ("parallel", "chunked"):
        y, _ = op(batch, chunk=32, fold=(64, 64), form=form)
        assert_close(y, expected, 2e-4, form)


@pytest.mark.parametrize("T", [255, 256, 257, 600])
@pytest.mark.parametrize(
    "name",
    [
        "power-2-decay",
        "taylor-2",
        "linear-decay",
        "linear-channel",
        "softmax-decay",
        "softmax",
        "delta-decay",
        "delta-2-decay",
    ],
)
def test_default_chunks_need_not_divide_the_length(name, T):
    op = BY_NAME[name]
    batch = op.draw(Sizes(B=1, T=T, G=1, R=2, K=6, V=5)).to(torch.float32)
    expected = op.reference(batch.to(torch.float64))
    for form in ("auto", "chunked", "parallel"):
        y, _ = op.function(**batch.all(), **op.options, form=form)
        assert_close(y, expected, 2e-4, form)


@pytest.mark.parametrize("T", [1, 3, 4, 9])
def test_a_convolution_in_chunks_is_the_convolution(T, monkeypatch):
    monkeypatch.setattr(conv, "CHUNK", 4)
    op = BY_NAME["conv-4"]
    batch = op.draw(Sizes(T=T))
    assert_close(op(batch, form="chunked")[0], op.reference(batch), 1e-14)


def test_a_convolution_is_conv1d():
    x, weight, bias = torch.randn(2, 9, 6), torch.randn(6, 4), torch.randn(6)
    theirs = torch.nn.functional.conv1d(x.mT, weight[:, None], bias, padding=3, groups=6)[..., :9].mT
    assert_close(ops.short_conv(x, weight, bias)[0], theirs, 1e-6)


@pytest.mark.parametrize("form", [*FORMS, "auto"])
def test_orders_without_a_finite_state_keep_their_tokens(form):
    """98280 monomials of degree 5 in 24 channels: more than any cache they could replace."""
    orders = (0, 1, 2, 3, 4, 5)
    op = BY_NAME["taylor-5"]
    batch = op.draw(Sizes(B=1, T=10, G=1, R=2, K=24, V=3))
    assert ops.fold_length(24, 3, orders) > 2**40
    y, state = op(batch, form=form)
    assert_close(y, op.reference(batch), 1e-10)
    assert state.recurrent is None and state.slots == 10
    first, state = op(batch.between(0, 4), form=form)
    second, state = op(batch.between(4, None), form=form, state=state)
    assert_close(torch.cat([first, second], dim=1), y, 1e-10)


def test_many_orders_approach_softmax_and_need_no_features():
    q, k, v = (torch.randn(1, 12, 2, 64, dtype=torch.float64) for _ in range(3))
    for form in FORMS:
        y, _ = ops.power_attention(q, k, v, order=range(80), form=form, chunk_size=5)
        assert_close(y, ops.reference.softmax_attention(q, k, v), 1e-10, form)


@pytest.mark.parametrize("name", ["power-2-decay", "taylor-2-weighted", "delta-2-decay"])
def test_heads_that_wait_for_memory_are_the_same_heads(name, monkeypatch):
    """Where the expansion of all heads at once would be too large, they take turns."""
    op = BY_NAME[name]
    batch = op.draw(Sizes(B=3, G=2)).leaves()
    results = []
    for limit in (2**30, 3000, 1):
        monkeypatch.setattr(chunks, "EXPANSION_BYTES", limit)
        y, state = op(batch, form="chunked")
        loss = y.square().sum() + state.recurrent.square().sum()
        results.append((y, state.recurrent, *torch.autograd.grad(loss, list(batch.all().values()))))
    for other in results[1:]:
        for actual, expected in zip(other, results[0], strict=True):
            assert_close(actual, expected, 1e-12)


@every(ALL)
def test_no_state_is_returned_unless_asked_for(op):
    batch = op.draw(Sizes())
    for form in (*FORMS, "auto"):
        y, state = op(batch, form=form, return_state=False)
        assert state is None
        assert_close(y, op.reference(batch), 1e-10, form)


@every(FEW)
def test_inputs_need_not_be_contiguous(op):
    batch = op.draw(Sizes())
    strange = batch.map(lambda x: x.transpose(0, -1).contiguous().transpose(0, -1))
    for form in (*FORMS, "auto"):
        assert_close(op(strange, form=form)[0], op(batch, form=form)[0], 1e-12, form)


@every(ALL)
def test_a_token_never_sees_the_future(op):
    batch = op.draw(Sizes(T=9))
    for form in (*FORMS, "auto"):
        y, _ = op(batch, form=form)
        changed = batch.map(lambda x: torch.cat([x[:, :5], 3 * x[:, 5:]], dim=1), parameters=False)
        assert torch.equal(op(changed, form=form)[0][:, :5], y[:, :5]), form


def test_the_automatic_form_changes_at_a_length_and_not_in_its_result(monkeypatch):
    """Up to a share of the number of features: here 10 of K = 4, so 5 tokens are direct and 6 go through the memory."""
    monkeypatch.setattr(crossover, "_tuned", lambda: {"torch": crossover.Line(0, 0.5)})
    op = BY_NAME["power-2-decay"]
    for T in (5, 6, 7, 12):
        batch = op.draw(Sizes(T=T, K=4))
        y, state = op(batch)
        assert_close(y, op.reference(batch), 1e-10)
        assert_same_state(state, op(batch, form="recurrent")[1])


def test_on_a_gpu_a_model_of_it_chooses_until_it_is_measured(tmp_path, monkeypatch):
    """Equal products at heads of 64; a GPU with little bandwidth stays with the direct form for longer."""
    monkeypatch.setenv("MACLAURIN_CACHE", str(tmp_path))
    crossover._tuned.cache_clear()
    for name in ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "Voodoo 2"):
        monkeypatch.setattr(crossover, "_on_this_gpu", lambda name=name: f"triton, {name}")
        assert crossover.longest_direct("triton", 2080) == pytest.approx(5249, abs=2)
        assert crossover.longest_direct("triton", 528) == pytest.approx(1857, abs=8)
    assert work.longest_direct(Peak(1000, 0.3), 64) > 2 * work.longest_direct(Peak(1000, 3.0), 64)
    crossover.store({"triton, NVIDIA A100-SXM4-80GB": crossover.Line(10, 0.5)})
    crossover.store({"triton, Voodoo 2": crossover.Line(20, 0.5)})
    for name, tokens in (("NVIDIA A100-SXM4-80GB", 60), ("Voodoo 2", 70)):
        monkeypatch.setattr(crossover, "_on_this_gpu", lambda name=name: f"triton, {name}")
        assert crossover.longest_direct("triton", 100) == tokens
    crossover._tuned.cache_clear()


def test_threads_without_work_in_chunks_make_the_direct_sum_longer():
    one = crossover.longest_direct("native", 2080, tasks=1)
    assert one == crossover.longest_direct("native", 2080)
    torch.set_num_threads(3)
    start = crossover.DIRECT_QUERIES[crossover.name_here("native")].start
    assert crossover.longest_direct("native", 2080, tasks=1) == pytest.approx(start + 3 * (one - start), abs=3)
    assert crossover.longest_direct("native", 2080, tasks=3) == one
    q, v = torch.empty(2, 5, 6, 8), torch.empty(2, 5, 3, 80)
    assert tasks_in_chunks(q, v, gradients=False) == 24 and tasks_in_chunks(q, v, gradients=True) == 12


def test_a_tuned_crossover_is_kept_and_a_broken_file_ignored(tmp_path, monkeypatch):
    monkeypatch.setenv("MACLAURIN_CACHE", str(tmp_path))
    crossover._tuned.cache_clear()
    name = crossover.name_here("native")
    built_in = crossover.DIRECT_QUERIES[name]
    assert crossover.longest_direct("native", 2080) == built_in.start + int(built_in.per_feature * 2080)
    for gradients, features in ((False, 1040), (True, 2080 * 6 / 7)):
        longest = crossover.longest_direct("native", 2080, folds=True, gradients=gradients)
        assert longest == built_in.start + int(built_in.per_feature * features)
    crossover.store({name: crossover.Line(10, 0.5)})
    assert crossover.longest_direct("native", 100) == 60
    assert crossover.longest_direct("torch", 100) == 25
    huge = f"[1{'0' * 400}, 1]"
    lines = ("3", "[10]", "[1, 2, 3]", '["10", 0.5]', "[Infinity, 1]", "[10, NaN]", "[[1], 2]", "[true, 1]", huge)
    for text in ("", "[]", "{", "[" * 10**5, *(f'{{"{name}": {line}}}' for line in lines)):
        crossover.tuned_file().write_text(text)
        crossover._tuned.cache_clear()
        with pytest.warns(UserWarning, match=r"crossover\.json is ignored") as warned:
            found = [crossover.longest_direct("native", 100) for _ in range(2)]
        assert found == 2 * [built_in.start + int(100 * built_in.per_feature)]
        assert len(warned) == 1, text
    crossover._tuned.cache_clear()
