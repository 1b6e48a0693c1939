"""Decoding in constant memory, and 2Mamba's two switches: a KV cache at first, later a recurrent state behind a buffer."""

import pytest
import torch

import maclaurin
from maclaurin.mixers.overview import crossover_length


def decode(mixer, x, state=None):
    outputs, sizes = [], []
    for t in range(x.shape[1]):
        y, state = mixer(x[:, t : t + 1], state)
        outputs.append(y)
        sizes.append(state.nbytes)
    return torch.cat(outputs, dim=1), state, sizes


def test_the_published_crossover():
    """(d+1)²/4 + 3/2 tokens: 1058 for d = 64 at equal precision, twice that beside a bfloat16 cache."""
    mixer = maclaurin.build_mixer("2mamba", 256, 4)
    assert crossover_length(mixer) == 1058
    assert mixer._fold_at(torch.float32) == 1058
    assert mixer._fold_at(torch.bfloat16) in range(2112, 2120)


def test_decoding_is_exact_across_the_real_switch():
    """d = 64, from 1040 to 1130 tokens: over the fold at 1058 and two foldings of the buffer after it."""
    torch.manual_seed(0)
    mixer = maclaurin.build_mixer("2mamba", 64, 1).double()
    x = torch.randn(1, 1130, 64, dtype=torch.float64)
    with torch.no_grad():
        expected, _ = mixer(x, form="parallel")
        _, state = mixer(x[:, :1040])
        got, state, sizes = decode(mixer, x[:, 1040:], state)
    torch.testing.assert_close(got, expected[:, 1040:], rtol=1e-10, atol=1e-10)
    folded = sizes[1058 - 1040 - 1 :]
    assert state.attention.recurrent is not None
    assert max(folded) - min(folded) == 31 * (sizes[1] - sizes[0])


@pytest.mark.parametrize("fold_every", [1, 3, 32])
def test_a_small_switch_is_crossed_exactly(fold_every):
    mixer = maclaurin.build_mixer("2mamba", 32, 4, fold_at=10, fold_every=fold_every).double()
    x = torch.randn(3, 90, 32, dtype=torch.float64)
    with torch.no_grad():
        got, _, sizes = decode(mixer, x)
        expected, _ = mixer(x, form="parallel")
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
    assert max(sizes[10:]) <= sizes[9] + (fold_every - 1) * (sizes[1] - sizes[0])


def test_the_recurrent_state_is_written_rarely_and_never_in_place():
    mixer = maclaurin.build_mixer("2mamba", 32, 4, fold_at=8, fold_every=8)
    x = torch.randn(1, 41, 32)
    state, folded = None, []
    with torch.no_grad():
        for t in range(x.shape[1]):
            _, state = mixer(x[:, t : t + 1], state)
            folded.append(state.attention.recurrent)
    distinct = {recurrent.data_ptr() for recurrent in folded if recurrent is not None}
    assert len(distinct) == 5


def test_2mamba_never_takes_more_than_softmax_with_the_same_convolution_and_decay():
    """Its attention state is bounded by keys, values and decays at every length, and from the crossover on by softmax."""
    mixer = maclaurin.build_mixer("2mamba", 1024, 16)
    with_decay = maclaurin.build_mixer("2mamba-e", 1024, 16)
    softmax = maclaurin.build_mixer("softmax", 1024, 16, rotary="none")
    for length in range(1, 5000):
        assert mixer.state_nbytes(length) <= with_decay.state_nbytes(length)
        if length >= 1058:
            assert mixer.state_nbytes(length) <= softmax.state_nbytes(length)
        else:
            decays_and_convolution = 4 * (16 * length + 3 * 1024)
            assert mixer.state_nbytes(length) == softmax.state_nbytes(length) + decays_and_convolution


@pytest.mark.parametrize("head_dim", [8, 16, 32, 48, 96, 128])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_from_the_crossover_on_the_state_is_never_larger_than_softmax(head_dim, kv_heads):
    shared = {"d_model": 4 * head_dim, "num_heads": 4, "num_kv_heads": kv_heads}
    mixer = maclaurin.build_mixer("2mamba", **shared)
    softmax = maclaurin.build_mixer("softmax", **shared, rotary="none")
    fold_at = mixer._fold_at(torch.float32)
    assert all(mixer.state_nbytes(n) <= softmax.state_nbytes(n) for n in range(fold_at, fold_at + 200))
    fullest = mixer.state_nbytes(fold_at + 31)
    assert fullest > softmax.state_nbytes(fold_at + 30), "it could have been folded a token earlier"


@pytest.mark.parametrize("name", maclaurin.available_mixers())
def test_finite_states_stop_growing(name):
    mixer = maclaurin.build_mixer(name, 32, 4)
    x = torch.randn(1, 200, 32)
    with torch.no_grad():
        _, _, sizes = decode(mixer, x)
    late, later = max(sizes[100:150]), max(sizes[150:])
    assert (late == later) == mixer.finite_state


def test_sliding_window_keeps_only_its_window():
    mixer = maclaurin.build_mixer("softmax", 32, 4, window=7).double()
    x = torch.randn(2, 40, 32, dtype=torch.float64)
    with torch.no_grad():
        got, state, sizes = decode(mixer, x)
        expected, _ = mixer(x, form="parallel")
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
    assert state.attention.slots == 6
    assert len(set(sizes[6:])) == 1


def test_ragged_prompts_then_decoding_together():
    """Left-padded prompts of different length, decoded as one batch across the switch."""
    mixer = maclaurin.build_mixer("2mamba", 32, 4, fold_at=12, fold_every=5).double()
    prompts = torch.randn(3, 15, 32, dtype=torch.float64)
    later = torch.randn(3, 30, 32, dtype=torch.float64)
    lengths = [15, 4, 9]
    mask = torch.zeros(3, 15)
    for row, length in enumerate(lengths):
        mask[row, 15 - length :] = 1
    with torch.no_grad():
        _, state = mixer(prompts, attention_mask=mask)
        got, _, _ = decode(mixer, later, state)
        for row, length in enumerate(lengths):
            alone = torch.cat([prompts[row : row + 1, 15 - length :], later[row : row + 1]], dim=1)
            expected, _ = mixer(alone, form="parallel")
            torch.testing.assert_close(got[row : row + 1], expected[:, length:], rtol=1e-10, atol=1e-10)
