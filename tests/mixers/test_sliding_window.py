"""Sliding-window attention: the band, its reach, its cache, and a window that can be changed on a built model."""

import time

import pytest
import torch

import maclaurin
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM
from maclaurin.ops import reference, softmax_attention, token_buffer

FORMS = ("parallel", "chunked", "recurrent", "auto")


def sequence(length, batch=1, channels=8, heads=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, length, heads, channels, generator=generator, dtype=torch.float64) for _ in range(3)]


@pytest.mark.parametrize("window", [1, 2, 7, 16, 40])
@pytest.mark.parametrize("grown_from", [0, 2**16], ids=["in one room", "copied"])
def test_decoding_is_the_banded_mask(window, grown_from, monkeypatch):
    """Over the end of the room that the cache slides in, too."""
    monkeypatch.setattr(token_buffer, "COPIED_BELOW", grown_from)
    monkeypatch.setattr(token_buffer, "SPARE", 5)
    q, k, v = sequence(60, batch=2)
    expected = reference.softmax_attention(q, k, v, window=window)
    state, outputs = None, []
    for t in range(60):
        now = slice(t, t + 1)
        before = None if state is None else state.keys.clone()
        y, new_state = softmax_attention(q[:, now], k[:, now], v[:, now], window=window, state=state)
        assert state is None or torch.equal(state.keys, before), "a step changed the state it was given"
        state = new_state
        outputs.append(y)
        assert state.slots == min(t + 1, window - 1)
    torch.testing.assert_close(torch.cat(outputs, 1), expected, rtol=1e-12, atol=1e-12)


def test_two_continuations_of_one_cache_do_not_meet(monkeypatch):
    monkeypatch.setattr(token_buffer, "COPIED_BELOW", 0)
    q, k, v = sequence(30)
    _, state = softmax_attention(q, k, v, window=8)
    _, state = softmax_attention(q[:, :1], k[:, :1], v[:, :1], window=8, state=state)
    paths = []
    for seed in (1, 2):
        mine, outputs = state, []
        for t in range(12):
            new = [x[:, t : t + 1] for x in sequence(12, seed=seed)]
            y, mine = softmax_attention(*new, window=8, state=mine)
            outputs.append(y)
        paths.append(torch.cat(outputs, 1))
    for seed, got in zip((1, 2), paths, strict=True):
        whole = [torch.cat([x, x[:, :1], new], 1) for x, new in zip((q, k, v), sequence(12, seed=seed), strict=True)]
        torch.testing.assert_close(got, reference.softmax_attention(*whole, window=8)[:, 31:], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("chunk_size", [1, 5, 16, 64])
def test_bands_and_their_gradients_are_those_of_the_mask(form, chunk_size):
    leaves = [x.requires_grad_() for x in sequence(50, batch=2)]
    wanted = torch.randn(2, 50, 2, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for window in (1, 4, 17, 49, 50, 51):
        expected = reference.softmax_attention(*leaves, window=window)
        y, _ = softmax_attention(*leaves, window=window, form=form, chunk_size=chunk_size)
        torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
        exact = torch.autograd.grad((expected * wanted).sum(), leaves)
        for got, gradient in zip(torch.autograd.grad((y * wanted).sum(), leaves), exact, strict=True):
            torch.testing.assert_close(got, gradient, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("window", [40, 41, 1000])
def test_a_window_of_all_tokens_is_full_attention(window):
    torch.manual_seed(0)
    full = maclaurin.build_mixer("softmax", 32, 4).double()
    windowed = maclaurin.build_mixer("sliding-window", 32, 4, window=window).double()
    windowed.load_state_dict(full.state_dict())
    x = torch.randn(2, 40, 32, dtype=torch.float64)
    with torch.no_grad():
        for form in FORMS:
            torch.testing.assert_close(windowed(x, form=form)[0], full(x, form=form)[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("layers", "window"), [(1, 5), (2, 5), (3, 4), (4, 2)])
def test_layers_reach_back_exactly_as_far_as_their_windows_add_up(layers, window):
    """l·(w-1) + 1 tokens, itself included: 3049 for 24 layers of 128, not 3072."""
    torch.manual_seed(0)
    config = MaclaurinConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        mixer="sliding-window",
        mixer_options={"window": window},
    )
    model = MaclaurinForCausalLM(config).double().eval()
    ids = torch.randint(50, (1, 40))
    changed = ids.clone()
    changed[0, 10] = (ids[0, 10] + 1) % 50
    with torch.no_grad():
        difference = (model(ids).logits - model(changed).logits).abs().amax(-1)[0]
    touched = (difference > 0).nonzero().flatten().tolist()
    assert touched == list(range(10, 10 + layers * (window - 1) + 1))


def test_the_window_is_no_parameter_and_can_be_changed_on_a_built_model():
    torch.manual_seed(0)
    mixers = [maclaurin.build_mixer("sliding-window", 32, 4, window=window).double() for window in (1, 3, 2048)]
    shapes = [{name: value.shape for name, value in mixer.state_dict().items()} for mixer in mixers]
    assert shapes[0] == shapes[1] == shapes[2]
    x = torch.randn(1, 20, 32, dtype=torch.float64)
    mixers[1].load_state_dict(mixers[0].state_dict())
    mixers[0].window = 3
    with torch.no_grad():
        for form in FORMS:
            assert torch.equal(mixers[0](x, form=form)[0], mixers[1](x, form=form)[0])
    assert mixers[0].state_nbytes(100) == mixers[1].state_nbytes(100)


def test_the_cache_and_a_step_are_the_same_after_1k_and_16k_tokens():
    torch.manual_seed(0)
    mixer = maclaurin.build_mixer("sliding-window", 64, 1, window=1024)
    token = torch.randn(1, 1, 64)
    states, times = [], []
    with torch.inference_mode():
        for length in (1200, 16_000):
            _, state = mixer(torch.randn(1, length, 64))
            taken = []
            for _ in range(300):
                start = time.perf_counter()
                _, state = mixer(token, state)
                taken.append(time.perf_counter() - start)
            states.append(state)
            times.append(sorted(taken)[100])
            held = sum(tensor.untyped_storage().nbytes() for tensor in state.tensors().values())
            assert held <= state.nbytes + 2 * 2 * token_buffer.SPARE * 64 * 4, (
                "a step holds on to more than the room it slides in"
            )
    assert states[0].nbytes == states[1].nbytes == mixer.state_nbytes(16_300)
    assert times[1] <= 2 * times[0]
