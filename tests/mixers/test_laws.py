"""Every registered mixer, through every law. A new mixer gets all of them by registering."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maclaurin
from maclaurin.mixers import MixerState, mixer_entry

MIXERS = maclaurin.available_mixers()
FORMS = ("parallel", "chunked", "recurrent", "auto")
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-4, torch.bfloat16: 2e-2}


def selective(**options):
    return {"rotary": "selective", "rotary_options": options}


# options that change what a mixer carries: the name of a variant -> (mixer, options)
VARIANTS = {
    "softmax+selective": ("softmax", {"rotary": "selective"}),
    "fox+selective": ("fox", selective(rank=3, increments="linear", gate="none", bias=True, theta=1)),
    "linear+selective": ("linear", selective(increments="difference", bias=True, temperature="rfa", temp_max=0.25)),
    "mlstm+selective": ("mlstm", {"rotary": "selective", "key_dim": 4}),
    "luna+selective": ("luna", {"rotary": "selective"}),
    "gla+selective": ("gla", {"rotary": "selective", "tie_decay_pairs": True, "key_dim": 4}),
    "gated-delta+selective": ("gated-delta", {"rotary": "selective"}),
    "gated-delta+channel": ("gated-delta", {"decay": "channel", "dt_bias": False, "decay_rank": 3, "num_kv_heads": 2}),
    "2mamba+selective": ("2mamba", selective(gate="gla", bias=True)),
    "2mamba+orders": ("2mamba", {"order": (0, 1, 2), "learn_order_weights": True, "num_kv_heads": 2}),
    "2mamba+channel": ("2mamba", {"decay": "channel", "decay_rank": 3, "num_kv_heads": 2, "fold_at": None}),
    "2mamba+qk-norm": ("2mamba", {"qk_norm": True, "rotary": "rope", "num_kv_heads": 2}),
    "2mamba+near": ("2mamba", {"near_window": 5}),
    "2mamba+joint": ("2mamba", {"near_window": 5, "near_norm": "joint", "num_kv_heads": 2}),
    "hedgehog+joint": ("hedgehog", {"near_window": 6, "near_norm": "joint"}),
    "taylor+near": ("taylor", {"near_window": 4, "num_kv_heads": 2, "learn_order_weights": True}),
    "taylor+own": ("taylor", {"order": 3, "order_dim": 2, "norm": "output", "num_kv_heads": 2, "fold_at": None}),
    "hedgehog+near": ("hedgehog", {"near_window": 6, "num_kv_heads": 2}),
    "sliding-window+griffin": ("sliding-window", {"rotary_dim": 4, "projection_bias": "output", "num_kv_heads": 1}),
    "rglru+griffin": ("rglru", {"scale_first": False, "projection_bias": True}),
}

every_mixer = pytest.mark.parametrize("name", [*MIXERS, *VARIANTS])

# folds so early that a few dozen tokens cross every switch of the state
SMALL_STATES = {
    "2mamba": {"fold_at": 9, "fold_every": 4},
    "2mamba-gated": {"fold_at": 9, "fold_every": 4},
    "2mamba-orders": {"fold_at": 9, "fold_every": 4},
    "taylor": {"fold_at": 7, "fold_every": 3},
    "sliding-window": {"window": 7},
}


def build(name, dtype=torch.float64, d_model=24, num_heads=4, seed=0, **options):
    torch.manual_seed(seed)
    mixer, variant = VARIANTS.get(name, (name, {}))
    options = {**SMALL_STATES.get(mixer, {}), **variant, **options}
    return maclaurin.build_mixer(mixer, d_model, num_heads, **options).to(dtype)


def inputs(mixer, batch, length, seed=1):
    generator = torch.Generator().manual_seed(seed)
    dtype = next(mixer.parameters()).dtype
    return torch.randn(batch, length, mixer.d_model, generator=generator, dtype=torch.float64).to(dtype)


def relative(got, expected):
    return ((got - expected).norm() / expected.norm().clamp(min=1e-30)).item()


def assert_same_state(got, expected, tolerance):
    assert got.tensors().keys() == expected.tensors().keys()
    for name, tensor in expected.tensors().items():
        assert got.tensors()[name].shape == tensor.shape, name
        if tensor.numel():
            torch.testing.assert_close(got.tensors()[name], tensor, rtol=tolerance, atol=tolerance)


@every_mixer
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@settings(max_examples=6)
@given(batch=st.integers(1, 3), length=st.integers(1, 40), seed=st.integers(0, 2**20))
def test_forms_agree(name, dtype, batch, length, seed):
    mixer = build(name, dtype, seed=seed)
    x = inputs(mixer, batch, length, seed)
    with torch.no_grad():
        results = {form: mixer(x, form=form) for form in FORMS}
    for form in FORMS:
        for other in FORMS:
            assert relative(results[form][0].double(), results[other][0].double()) <= TOLERANCE[dtype], (form, other)
    if dtype == torch.float64:
        for form in FORMS:
            assert_same_state(results[form][1], results["parallel"][1], 1e-9)


@every_mixer
@settings(max_examples=8)
@given(
    length=st.integers(2, 40),
    data=st.data(),
    first=st.sampled_from(FORMS),
    second=st.sampled_from(FORMS),
    seed=st.integers(0, 9),
)
def test_state_handover_at_any_split(name, length, data, first, second, seed):
    mixer = build(name, seed=seed)
    x = inputs(mixer, 2, length, seed)
    split = data.draw(st.integers(1, length - 1))
    with torch.no_grad():
        whole, final = mixer(x)
        left, state = mixer(x[:, :split], mixer.init_state(2), form=first)
        before = {key: tensor.clone() for key, tensor in state.tensors().items()}
        right, end = mixer(x[:, split:], state, form=second)
        again, _ = mixer(x[:, split:], state, form=second)
    torch.testing.assert_close(torch.cat([left, right], 1), whole, rtol=1e-10, atol=1e-10)
    assert_same_state(end, final, 1e-9)
    assert torch.equal(right, again), "a mixer must not change the state it is given"
    for key, tensor in state.tensors().items():
        assert torch.equal(tensor, before[key])


@every_mixer
def test_token_by_token_equals_one_call(name):
    mixer = build(name)
    x = inputs(mixer, 2, 23)
    state, outputs = None, []
    with torch.no_grad():
        for t in range(x.shape[1]):
            y, state = mixer(x[:, t : t + 1], state)
            outputs.append(y)
            assert state.nbytes == 2 * mixer.state_nbytes(t + 1), t
        expected, _ = mixer(x, form="parallel")
    torch.testing.assert_close(torch.cat(outputs, 1), expected, rtol=1e-10, atol=1e-10)


@every_mixer
@settings(max_examples=8)
@given(seed=st.integers(0, 99), side=st.sampled_from(["left", "right"]), form=st.sampled_from(FORMS))
def test_padding_never_enters_the_state(name, seed, side, form):
    mixer = build(name)
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 21, (4,), generator=generator).tolist()
    x = inputs(mixer, 4, 20, seed)
    mask = torch.zeros(4, 20, dtype=torch.long)
    for row, length in enumerate(lengths):
        mask[row, 20 - length :] = 1
    if side == "right":
        mask = mask.flip(1)
    x = torch.where(mask[..., None] == 1, x, torch.nan)
    later = inputs(mixer, 4, 5, seed + 1)
    with torch.no_grad():
        y, state = mixer(x, attention_mask=mask, form=form)
        continued, _ = mixer(later, state)
    assert (y[mask == 0] == 0).all()
    for row, length in enumerate(lengths):
        own = x[row][mask[row] == 1][None]
        with torch.no_grad():
            alone, own_state = mixer(own) if length else (own, None)
            alone_later, _ = mixer(later[row : row + 1], own_state)
        torch.testing.assert_close(y[row][mask[row] == 1][None], alone, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(continued[row : row + 1], alone_later, rtol=1e-9, atol=1e-9)


@every_mixer
@settings(max_examples=8)
@given(seed=st.integers(0, 99), form=st.sampled_from(FORMS))
def test_documents_in_a_pack_never_meet(name, seed, form):
    mixer = build(name)
    generator = torch.Generator().manual_seed(seed)
    lengths = [*torch.randint(0, 50, (5,), generator=generator).tolist(), 3]
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    x = inputs(mixer, 1, int(bounds[-1]), seed)
    with torch.no_grad():
        y, state = mixer(x, cu_seqlens=bounds, form=form)
        later = inputs(mixer, len(lengths), 2, seed + 1)
        continued, _ = mixer(later.reshape(1, -1, mixer.d_model), state, cu_seqlens=torch.arange(0, 2 * len(lengths) + 1, 2))
        continued = continued.view_as(later)
    for row, (start, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        with torch.no_grad():
            alone, own_state = mixer(x[:, start:end]) if end > start else (x[:, start:end], None)
            alone_later, _ = mixer(later[row : row + 1], own_state)
        torch.testing.assert_close(y[:, start:end], alone, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(continued[row : row + 1], alone_later, rtol=1e-9, atol=1e-9)


@every_mixer
def test_later_tokens_have_no_influence(name):
    mixer = build(name)
    x = inputs(mixer, 1, 30)
    changed = x.clone()
    changed[:, 17:] += 1
    for form in FORMS:
        with torch.no_grad():
            before, after = mixer(x, form=form)[0], mixer(changed, form=form)[0]
        torch.testing.assert_close(before[:, :17], after[:, :17], rtol=1e-12, atol=1e-12)
        assert relative(after[:, 17:], before[:, 17:]) > 1e-3


@every_mixer
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_a_token_that_is_not_finite_never_reaches_the_past(name, value):
    mixer = build(name, torch.float32)
    x = inputs(mixer, 2, 40)
    bad = x.clone()
    bad[0, 25] = value
    for form in ("parallel", "chunked", "auto"):
        with torch.no_grad():
            (y, _), (expected, _) = mixer(bad, form=form), mixer(x, form=form)
        torch.testing.assert_close(y[0, :25], expected[0, :25], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(y[1], expected[1], rtol=1e-4, atol=1e-4)


@every_mixer
def test_gradients_of_all_forms_agree(name):
    """By the input, every parameter and the incoming state, through outputs and the outgoing state."""
    mixer = build(name)
    x = inputs(mixer, 2, 19)
    results = {}
    for form in ("parallel", "chunked", "recurrent"):
        leaf = x.clone().requires_grad_()
        _, state = mixer(leaf[:, :8], form=form)
        y, end = mixer(leaf[:, 8:], state, form=form)
        generator = torch.Generator().manual_seed(3)
        loss = (y * torch.randn(y.shape, generator=generator, dtype=y.dtype)).sum()
        for tensor in end.tensors().values():
            if tensor.is_floating_point():
                loss = loss + (tensor * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)).sum()
        results[form] = torch.autograd.grad(loss, [leaf, *mixer.parameters()], allow_unused=True)
    assert all(gradient is not None for gradient in results["parallel"]), "a parameter that nothing uses"
    for form in ("chunked", "recurrent"):
        for got, expected in zip(results[form], results["parallel"], strict=True):
            assert relative(got, expected) <= 1e-8 or (got - expected).abs().max() <= 1e-10, form


@every_mixer
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 1), (4, 2), (6, 3)])
def test_grouped_heads_equal_repeated_heads(name, num_heads, num_kv_heads):
    if "num_kv_heads" not in mixer_entry(VARIANTS.get(name, (name, {}))[0]).options():
        with pytest.raises(ValueError, match="num_kv_heads"):
            build(name, num_heads=num_heads, num_kv_heads=num_kv_heads)
        return
    mixer = build(name, num_heads=num_heads, num_kv_heads=num_kv_heads)
    x = inputs(mixer, 2, 21)
    with torch.no_grad():
        results = [mixer(x, form=form)[0] for form in FORMS]
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-10, atol=1e-10)
    _, state = mixer(x)
    assert state.nbytes == 2 * mixer.state_nbytes(21)


@every_mixer
@pytest.mark.parametrize("head_dim", [48, 96, 192])
def test_head_sizes_that_are_not_powers_of_two(name, head_dim):
    mixer = build(name, torch.float32, d_model=2 * head_dim, num_heads=2)
    x = inputs(mixer, 1, 9)
    with torch.no_grad():
        results = [mixer(x, form=form)[0] for form in FORMS]
    for result in results:
        assert relative(result, results[0]) <= 2e-4


@every_mixer
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_low_precision_loses_no_more_than_twice_what_rounding_the_parts_loses(name, dtype):
    """Against float64: the mixer in low precision, and the same mixer with its weights and input rounded to it."""
    exact = build(name)
    x = inputs(exact, 2, 30)
    low = build(name).to(dtype)
    rounded = build(name)
    rounded.load_state_dict({key: value.double() for key, value in low.state_dict().items()})
    with torch.no_grad():
        expected, _ = rounded(x.to(dtype).double())
        got, state = low(x.to(dtype))
        lost_by_rounding = relative(expected, exact(x)[0])
    assert got.dtype == dtype
    assert relative(got.double(), expected) <= 2 * lost_by_rounding + 4 * torch.finfo(dtype).eps
    recurrent = getattr(state.attention, "recurrent", None)
    assert recurrent is None or recurrent.dtype == torch.float32


@pytest.mark.parametrize("feature_map", ["cosine", "cosine-over-heads", "exp", "elu"])
def test_features_of_nothing_are_finite_in_float16(feature_map):
    mixer = build("linear", torch.float16, feature_map=feature_map)
    with torch.no_grad():
        y, _ = mixer(torch.zeros(1, 5, mixer.d_model, dtype=torch.float16))
    assert y.isfinite().all()


def test_what_is_normalised_afterwards_may_be_below_the_range_of_float16():
    low = build("gla", torch.float16)
    with torch.no_grad():
        low.qkv_proj.weight *= 2**-7
        x = inputs(low, 2, 12)
        expected, _ = copy.deepcopy(low).double()(x.double())
        got, _ = low(x)
    assert relative(got.double(), expected) <= 4 * torch.finfo(torch.float16).eps


@every_mixer
def test_state_nbytes_is_the_size_of_the_state(name):
    mixer = build(name, torch.float32)
    assert mixer.init_state(3).nbytes == 3 * mixer.state_nbytes(0)
    for length in (1, 6, 7, 8, 9, 12, 13, 40):
        with torch.no_grad():
            _, state = mixer(inputs(mixer, 3, length))
        assert state.nbytes == 3 * mixer.state_nbytes(length), length
        assert sum(tensor.untyped_storage().nbytes() for tensor in state.tensors().values()) <= state.nbytes + 512
    if mixer.finite_state:
        assert mixer.state_nbytes(10**6) == mixer.state_nbytes(10**6 + 12)


@pytest.mark.parametrize("name", ["softmax", "fox", "2mamba", "linear"])
@pytest.mark.parametrize("feature_map", ["exp", "relu"])
def test_state_nbytes_counts_keys_in_the_precision_of_their_features(name, feature_map):
    mixer = build(name, torch.bfloat16, feature_map=feature_map)
    for length in (1, 8, 40):
        with torch.no_grad():
            _, state = mixer(inputs(mixer, 1, length))
        assert state.nbytes == mixer.state_nbytes(length), length


@every_mixer
def test_state_survives_selection_and_the_disk(name, tmp_path):
    mixer = build(name)
    x, later = inputs(mixer, 3, 14), inputs(mixer, 4, 3, seed=5)
    rows = [2, 0, 0, 1]
    with torch.no_grad():
        _, state = mixer(x)
        expected, _ = mixer(later, mixer(x[rows])[1])
        state.select(rows).save(tmp_path / "state.safetensors")
        loaded = MixerState.load(tmp_path / "state.safetensors")
        got, _ = mixer(later, loaded)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    assert list(tmp_path.iterdir()) == [tmp_path / "state.safetensors"]


@every_mixer
@pytest.mark.parametrize("init", ["torch", "llama"])
def test_initialisation_is_seeded_and_as_described(name, init):
    first, second, other = (build(name, seed=seed, init=init, d_model=256) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))
    weight = first.out_proj.weight
    if init == "llama":
        assert abs(weight.std().item() - 0.02) < 1e-3
    else:
        assert weight.abs().max() <= weight.shape[1] ** -0.5


@every_mixer
def test_hostile_inputs_stay_finite(name):
    mixer = build(name, torch.float32)
    x = inputs(mixer, 2, 33)
    for hostile in (torch.zeros_like(x), x * 1e3, x * 1e-30, x.sign() * 1e4):
        for form in ("parallel", "chunked", "recurrent"):
            leaf = hostile.clone().requires_grad_()
            y, state = mixer(leaf, form=form)
            y.sum().backward()
            assert y.isfinite().all(), form
            assert leaf.grad.isfinite().all(), form
            assert all(tensor.isfinite().all() for tensor in state.tensors().values()), form


@every_mixer
def test_no_state_is_returned_where_none_is_wanted(name):
    mixer = build(name)
    x = inputs(mixer, 2, 12)
    y, state = mixer(x, return_state=False)
    assert state is None
    torch.testing.assert_close(y, mixer(x)[0], rtol=1e-12, atol=1e-12)


@every_mixer
def test_autocast_loses_no_more_than_rounding_its_linear_layers(name):
    """Gradients included: the sums inside an op stay float32, whatever autocast does to the layers around it.

    The measure is the same mixer without autocast on a copy whose weights and input are rounded to bfloat16.
    """
    mixer = build(name, torch.float32, d_model=32)
    exact, rounded = build(name, d_model=32), build(name, d_model=32)
    rounded.load_state_dict({key: value.bfloat16().double() for key, value in mixer.state_dict().items()})
    x = inputs(exact, 1, 300)

    def gradients(module, x, autocast=False):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y, _ = module(x, form="chunked")
        wanted = torch.randn(y.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        return y, torch.autograd.grad((y.double() * wanted).sum(), list(module.parameters()))

    y, expected = gradients(exact, x)
    y_rounded, by_rounding = gradients(rounded, x.bfloat16().double())
    y_autocast, got = gradients(mixer, x.float(), autocast=True)
    eps = torch.finfo(torch.bfloat16).eps
    assert relative(y_autocast.double(), y) <= 4 * relative(y_rounded, y) + 4 * eps
    for (parameter, _), a, b, c in zip(mixer.named_parameters(), got, by_rounding, expected, strict=True):
        assert relative(a.double(), c) <= 8 * relative(b, c) + 16 * eps, parameter


@every_mixer
def test_gradients_are_the_same_to_the_bit_for_any_number_of_threads(name):
    mixer = build(name, torch.float32, d_model=64)
    x = inputs(mixer, 3, 33).requires_grad_()
    mask = torch.ones(3, 33, dtype=torch.bool)
    mask[1, 20:] = False
    leaves = {"x": x, **dict(mixer.named_parameters())}
    found, usual = [], torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            y, _ = mixer(x, attention_mask=mask)
            found.append(torch.autograd.grad(y.square().sum(), list(leaves.values()), allow_unused=True))
    finally:
        torch.set_num_threads(usual)
    for parameter, one, two in zip(leaves, *found, strict=True):
        assert (one is None and two is None) or torch.equal(one, two), parameter


@pytest.mark.parametrize("name", ["2mamba", "softmax", "mamba2"])
def test_compiled_mixers_match_at_any_length(name):
    """Several lengths and decoding steps through one compiled mixer."""
    mixer = build(name, torch.float32)
    compiled = torch.compile(mixer, backend="eager")
    state = compiled_state = None
    with torch.no_grad():
        for length in (20, 21, 1, 1):
            x = inputs(mixer, 2, length, seed=length)
            y, state = mixer(x, state)
            got, compiled_state = compiled(x, compiled_state)
            torch.testing.assert_close(got, y)


@every_mixer
def test_a_state_shares_no_memory_with_the_input(name):
    mixer = build(name)
    x, later = inputs(mixer, 1, 5), inputs(mixer, 1, 2, seed=2)
    with torch.no_grad():
        _, state = mixer(x)
        expected, _ = mixer(later, state)
        x.zero_()
        got, _ = mixer(later, state)
    assert torch.equal(got, expected)
