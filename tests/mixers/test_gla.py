"""Gated linear attention: against an independent implementation, and what it does to rotary positions."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

import maclaurin
from maclaurin.ops import linear_attention, rotary


def test_it_is_the_published_recurrence():
    """The whole layer on shared weights, in float32, with a state handed over."""
    naive = pytest.importorskip("fla.ops.gla.naive", reason="flash-linear-attention is not installed (extra: peers)")
    mixer = maclaurin.build_mixer("gla", 64, 4)
    x = torch.randn(2, 70, 64)
    with torch.no_grad():
        q, k, v = mixer.qkv_proj(x).split(mixer.qkv_sizes, dim=-1)
        gates = F.logsigmoid(mixer.decay_up(mixer.decay_down(x))) / 16
        heads = [part.unflatten(-1, (4, -1)) for part in (q, k, v, gates)]
        y, recurrent = naive.naive_recurrent_gla(*heads, output_final_state=True)
        y = F.rms_norm(y, (16,), mixer.out_norm.weight, 1e-5).flatten(2) * F.silu(mixer.gate_proj(x))
        expected = mixer.out_proj(y)
        for form in ("parallel", "chunked", "recurrent"):
            first, state = mixer(x[:, :33], form=form)
            second, state = mixer(x[:, 33:], state, form=form)
            torch.testing.assert_close(torch.cat([first, second], 1), expected, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(state.attention.recurrent, recurrent, rtol=1e-4, atol=1e-5)


def test_the_published_sizes():
    """Keys are half as wide as values; 4·d² parameters but for the low-rank decay and the norm."""
    mixer = maclaurin.build_mixer("gla", 512, 4)
    assert (mixer.key_dim, mixer.head_dim) == (64, 128)
    small = 16 * 512 + 16 * 256 + 256 + 128
    assert sum(parameter.numel() for parameter in mixer.parameters()) == 4 * 512**2 + small


def test_half_life_at_the_start_is_tau_tokens():
    mixer = maclaurin.build_mixer("gla", 64, 4, init="llama")
    log_decay = mixer.log_decay(torch.zeros(1, 1, 64))
    torch.testing.assert_close((16 * log_decay).exp(), torch.full_like(log_decay, 0.5))


@pytest.mark.parametrize("interleaved", [False, True])
def test_tied_decays_make_rotary_positions_relative(interleaved):
    """The same tokens from position 1000 on: nothing changes if decay and rotation commute, else much does."""
    changes = {}
    for tied in (True, False):
        torch.manual_seed(0)
        options = {"rotary": "rope", "rotary_interleaved": interleaved, "tie_decay_pairs": tied, "tau": 1.0}
        mixer = maclaurin.build_mixer("gla", 64, 2, **options).double()
        x = torch.randn(2, 50, 64, dtype=torch.float64)
        later = dataclasses.replace(mixer.init_state(2), position=torch.full((2,), 1000))
        with torch.no_grad():
            here, there = mixer(x)[0], mixer(x, later)[0]
        changes[tied] = ((here - there).norm() / here.norm()).item()
    assert changes[True] < 1e-10
    assert changes[False] > 1e-2


def test_a_tied_decay_and_a_rotation_are_one_complex_recurrence():
    """Z_t = α e^{iθ} Z_{t-1} + conj(k_t) v_tᵀ, y_t = Re(q_t Z_t): channels j and j + R are one complex number."""
    T, R, V = 40, 3, 5
    q, k = torch.randn(2, 1, T, 1, 2 * R, dtype=torch.float64)
    v = torch.randn(1, T, 1, V, dtype=torch.float64)
    log_decay = -torch.rand(1, T, 1, R, dtype=torch.float64)
    positions = torch.arange(T)
    turned = [rotary(part, positions) for part in (q, k)]
    got, _ = linear_attention(*turned, v, torch.cat([log_decay, log_decay], -1), scale=1.0, normalize=False)

    turn = torch.polar(torch.ones(R, dtype=torch.float64), 10000.0 ** (-torch.arange(R, dtype=torch.float64) / R))
    complex_q, complex_k = (torch.complex(*part[0, :, 0].chunk(2, -1)) for part in (q, k))
    recurrent = torch.zeros(R, V, dtype=torch.complex128)
    for t in range(T):
        decay = log_decay[0, t, 0].exp() * turn
        recurrent = decay[:, None] * recurrent + complex_k[t].conj()[:, None] * v[0, t]
        torch.testing.assert_close(got[0, t, 0], (complex_q[t] @ recurrent).real, rtol=1e-12, atol=1e-12)


def test_selective_rotations_are_carried_and_relative():
    """Angles that the tokens choose: handed over at a split, and of no effect if all of them are turned alike."""
    options = {"rotary": "selective", "tie_decay_pairs": True, "tau": 1.0}
    mixer = maclaurin.build_mixer("gla", 64, 2, **options).double()
    x = torch.randn(2, 50, 64, dtype=torch.float64)
    with torch.no_grad():
        whole, final = mixer(x)
        first, state = mixer(x[:, :21], form="chunked")
        second, state = mixer(x[:, 21:], state, form="recurrent")
        start = mixer.init_state(2)
        rotation = dataclasses.replace(start.rotation, phase=start.rotation.phase + 1)
        turned = dataclasses.replace(start, rotation=rotation)
        elsewhere, _ = mixer(x, turned)
    torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=1e-10, atol=1e-10)
    assert state.nbytes == final.nbytes == 2 * mixer.state_nbytes(50)
    torch.testing.assert_close(elsewhere, whole, rtol=1e-9, atol=1e-10)


def test_options_keep_the_laws():
    """Grouped heads, convolution, rotary positions and tied decays at once: forms and bytes."""
    options = {"num_kv_heads": 2, "conv_width": 3, "activation": "silu", "rotary": "rope", "tie_decay_pairs": True}
    mixer = maclaurin.build_mixer("gla", 32, 4, **options).double()
    x = torch.randn(2, 30, 32, dtype=torch.float64)
    with torch.no_grad():
        whole, final = mixer(x, form="parallel")
        first, state = mixer(x[:, :11], form="chunked")
        second, state = mixer(x[:, 11:], state, form="recurrent")
    torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=1e-10, atol=1e-10)
    assert state.nbytes == final.nbytes == 2 * mixer.state_nbytes(30)
