"""Selective RoPE: what its angles are, what they cannot change, and what they can count."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

import maclaurin
from maclaurin.mixers.base import Call, Zeros
from maclaurin.mixers.selective_rope import SelectiveRotary
from maclaurin.ops import linear_attention, rotary, rotate
from maclaurin.ops.tokens import without_padding

COUNTING = {"increments": "linear", "gate": "none", "theta": 1}  # angles are sums of what a token's own plane says
SETTINGS = {
    "language": {},
    "state tracking": {"rank": 32, "increments": "linear", "gate": "none", "bias": True, "theta": 1},
    "copying": {"rank": 32, "increments": "difference", "temperature": "rfa", "temp_max": 0.25},
    "copying, bias": {"increments": "difference", "gate": "none", "bias": True, "temperature": "rfa", "theta": 0.995},
    "low-rank gate": {"rank": 3, "gate": "low-rank", "bias": True, "theta": 100},
    "learned temperature": {"rank": 3, "learn_temperature": True, "temp_max": 2.0},
    "gate per plane": {"increments": "linear", "gate": "gla", "temp_max": 2.0},
}
every_setting = pytest.mark.parametrize("options", SETTINGS.values(), ids=SETTINGS)


def lively(module, seed=0):
    """The same module with weights that turn by radians, not by the hundredths it starts with."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data += 0.4 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter)
    return module


def build(heads=3, planes=4, d_model=12, dtype=torch.float64, **options):
    torch.manual_seed(0)
    return lively(SelectiveRotary(d_model, heads, planes, **options)).to(dtype)


def tokens(*shape, seed=1, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def angles_by_the_formula(rotary, x):
    """Token by token, plane by plane."""
    weights = {name: parameter.detach() for name, parameter in rotary.named_parameters()}
    T, G, R = x.shape[0], rotary.heads, rotary.planes
    phase = torch.zeros(G, R, dtype=torch.float64)
    u = torch.zeros(T + 3, G, R, dtype=torch.float64)  # three tokens of nothing come first
    angles = []
    for t in range(T):
        slices = x[t].view(G, -1)
        z = slices / (slices.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        if "proj.scale" in weights:
            for g in range(G):
                matrix = weights["proj.weight"][g]
                u[t + 3, g] = weights["proj.scale"][g] * (z[g] @ (matrix / matrix.norm(dim=0)))
        else:
            u[t + 3] = (weights["proj.1.weight"] @ (weights["proj.0.weight"] @ z.flatten())).view(G, R)
        if rotary.increments == "difference":
            w = u[t + 3] - u[t + 2]
        else:
            w = (u[t : t + 4] * weights["conv.weight"].view(G, R, 4).movedim(-1, 0)).sum(0)
            w = w * torch.sigmoid(w) if rotary.increments == "silu" else w
        if "bias" in weights:
            w = w + weights["bias"].exp()
        if "gate.weight" in weights:
            w = w * torch.sigmoid(weights["gate.weight"] @ z.flatten() + weights["gate.bias"])[:, None]
        elif "gate.0.weight" in weights:
            gate = weights["gate.1.weight"] @ (weights["gate.0.weight"] @ z.flatten()) + weights["gate.1.bias"]
            w = w * torch.sigmoid(gate.view(G, -1))
        phase = phase + w
        angles.append(phase * rotary.temperatures("cpu"))
    return torch.stack(angles)


def turned_apart(a, b):
    """The largest distance of two sets of angles on the circle."""
    return torch.remainder(a - b + math.pi, math.tau).sub(math.pi).abs().max().item()


@every_setting
def test_angles_are_the_formula(options):
    rotary = build(**options)
    x = tokens(2, 30, 12)
    with torch.no_grad():
        angles, _ = rotary(x)
    assert angles.abs().max() <= math.pi + 1e-12
    for row in range(2):
        assert turned_apart(angles[row], angles_by_the_formula(rotary, x[row])) <= 1e-12


@every_setting
def test_angles_are_the_same_in_pieces_and_behind_padding(options):
    rotary = build(**options)
    x = tokens(2, 40, 12)
    with torch.no_grad():
        whole, end = rotary(x)
        for pieces in ([40], [1] * 40, [13, 1, 26], [3, 37]):
            state, found = rotary.state_of(Zeros(2, "cpu", torch.float64)), []
            for piece in x.split(pieces, dim=1):
                angles, state = rotary(piece, state)
                found.append(angles)
            assert turned_apart(torch.cat(found, 1), whole) <= 1e-12
            torch.testing.assert_close(state.phase, end.phase, rtol=0, atol=1e-12)
        lengths = torch.tensor([17, 0])
        _, state = rotary(without_padding(x, lengths), None, Call(lengths=lengths))
        again, _ = rotary(x[:1, 17:], state.select([0]))
    assert turned_apart(again, whole[:1, 17:]) <= 1e-12
    assert (state.phase[1] == 0).all(), "padding must not turn"


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-3)], ids=str)
@pytest.mark.parametrize("name", ["softmax", "fox", "2mamba"])
def test_decoding_and_prefill_in_pieces_are_one_pass(name, dtype, tolerance):
    mixer = lively(maclaurin.build_mixer(name, 24, 4, rotary="selective", rotary_options={"bias": True})).to(dtype)
    x = tokens(1, 200, 24, dtype=dtype)
    with torch.no_grad():
        whole = mixer(x)[0].double()
        for pieces in ([1] * 200, [64, 64, 64, 8], [150, *[1] * 50]):
            state, found = None, []
            for piece in x.split(pieces, dim=1):
                y, state = mixer(piece, state)
                found.append(y)
            assert (torch.cat(found, 1).double() - whole).norm() <= tolerance * whole.norm()


@every_setting
def test_gradients_are_those_of_the_formula(options):
    rotary = build(heads=2, planes=2, d_model=4, **options)
    x = tokens(1, 4, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, *_: rotary(x)[0], (x, *rotary.parameters()))


def test_unit_increments_are_rope():
    unit = build(increments="linear", gate="none", bias=True, theta=10000)
    with torch.no_grad():
        unit.conv.weight.zero_()
        unit.bias.zero_()
        angles, _ = unit(tokens(2, 1000, 12))
    q = tokens(2, 1000, 3, 8, seed=2)
    for interleaved in (False, True):
        expected = rotary(q, torch.arange(1, 1001), theta=10000, interleaved=interleaved)
        assert (rotate(q, angles, interleaved=interleaved) - expected).abs().max() <= 1e-12


@pytest.mark.parametrize("name", ["softmax", "2mamba", "fox"])
def test_a_mixer_with_unit_increments_is_the_mixer_with_rope(name):
    options = {"increments": "linear", "gate": "none", "bias": True, "theta": 10000}
    selective = maclaurin.build_mixer(name, 24, 4, num_kv_heads=2, rotary="selective", rotary_options=options).double()
    rope = maclaurin.build_mixer(name, 24, 4, num_kv_heads=2, rotary="rope").double()
    rope.load_state_dict(selective.state_dict(), strict=False)
    torch.nn.init.zeros_(selective.selective.conv.weight)
    x = tokens(2, 50, 24)
    with torch.no_grad():
        assert (selective(x)[0] - rope(x)[0]).abs().max() <= 1e-12


def test_no_increments_are_no_positions():
    torch.manual_seed(0)
    still = maclaurin.build_mixer("softmax", 24, 4, rotary="selective", rotary_options={"increments": "linear"}).double()
    plain = maclaurin.build_mixer("softmax", 24, 4, rotary="none").double()
    plain.load_state_dict(still.state_dict(), strict=False)
    torch.nn.init.zeros_(still.selective.conv.weight)
    x = tokens(2, 50, 24)
    with torch.no_grad():
        assert torch.equal(still(x)[0], plain(x)[0])


def test_differences_telescope_to_a_phase_of_the_token_alone():
    content = build(increments="difference", gate="none")
    x = tokens(1, 20, 12)
    with torch.no_grad():
        angles, _ = content(x)
        alone, _ = content(x.transpose(0, 1))
    assert turned_apart(angles[0], alone[:, 0]) <= 1e-13


@pytest.mark.parametrize("name", ["softmax", "fox", "2mamba", "mamba2s"])
def test_only_relative_phases_matter_where_the_decay_is_a_scalar(name):
    mixer = lively(maclaurin.build_mixer(name, 24, 4, rotary="selective").double())
    x = tokens(2, 30, 24)
    start = mixer.init_state(2)
    phase = tokens(*start.rotation.phase.shape, seed=3) * 10
    with torch.no_grad():
        expected, _ = mixer(x, start)
        got, _ = mixer(x, replace(start, rotation=replace(start.rotation, phase=phase)))
    assert (got - expected).abs().max() <= 1e-12 * expected.abs().max().clamp(min=1)


def test_a_decay_a_channel_breaks_that_unless_pairs_share_it():
    B, T, K = 1, 256, 64
    q, k, v = (tokens(B, T, 1, K, seed=seed) for seed in (1, 2, 3))
    angles, offset = tokens(B, T, 1, K // 2, seed=4).cumsum(1), tokens(1, 1, 1, K // 2, seed=5) * 3
    untied = torch.nn.functional.logsigmoid(tokens(B, T, 1, K, seed=6)) / 16
    tied = untied[..., : K // 2].repeat(1, 1, 1, 2)

    def change(decay):
        y, shifted = (
            linear_attention(rotate(q, a), rotate(k, a), v, decay, normalize=False, form="chunked")[0]
            for a in (angles, angles + offset)
        )
        return ((y - shifted).norm() / y.norm()).item()

    assert change(tied) <= 1e-13
    assert 0.05 <= change(untied) <= 0.15


def complex_recurrence(q, k, v, log_decay, angles):
    """Z_t = exp(a_t + iθ_t) Z_{t-1} + conj(k_t) v_tᵀ, y_t = Re(q_t Z_t) with θ the increments of the angles."""
    R = angles.shape[-1]
    q, k = (torch.complex(x[..., :R], x[..., R:]) for x in (q, k))
    steps = angles.diff(dim=1, prepend=torch.zeros_like(angles[:, :1]))
    state = torch.zeros(*v.shape[:1], v.shape[2], R, v.shape[3], dtype=torch.complex128)
    outputs = []
    for t in range(q.shape[1]):
        transition = torch.exp(torch.complex(log_decay[:, t], steps[:, t]))
        state = transition[..., None] * state + k[:, t].conj()[..., None] * v[:, t, :, None]
        outputs.append(torch.einsum("bgr,bgrv->bgv", q[:, t], state).real)
    return torch.stack(outputs, 1)


@pytest.mark.parametrize("form", ["parallel", "chunked", "recurrent"])
def test_turning_then_decaying_is_a_complex_recurrence(form):
    q, k, v = (tokens(2, 70, 3, 8, seed=seed) for seed in (1, 2, 3))
    angles = tokens(2, 70, 3, 4, seed=4).cumsum(1)
    decay = torch.nn.functional.logsigmoid(tokens(2, 70, 3, 4, seed=5))
    turned = (rotate(x, angles) for x in (q, k))
    y, _ = linear_attention(*turned, v, decay.repeat(1, 1, 1, 2), scale=1.0, normalize=False, form=form)
    assert (y - complex_recurrence(q, k, v, decay, angles)).abs().max() <= 1e-12


def test_phases_may_restart_if_the_state_is_rotated_back():
    """Bounded phases: after each piece the key axis of the state is rotated by minus the angle of the finished piece."""
    q, k, v = (tokens(1, 60, 2, 8, seed=seed) for seed in (1, 2, 3))
    steps = tokens(1, 60, 2, 4, seed=4)
    decay = torch.nn.functional.logsigmoid(tokens(1, 60, 2, 4, seed=5)).repeat(1, 1, 1, 2)
    angles = steps.cumsum(1)
    whole, _ = linear_attention(rotate(q, angles), rotate(k, angles), v, decay, normalize=False)
    state, outputs = None, []
    for start in range(0, 60, 20):
        now = slice(start, start + 20)
        angles = steps[:, now].cumsum(1)
        turned = (rotate(x[:, now], angles) for x in (q, k))
        y, state = linear_attention(*turned, v[:, now], decay[:, now], normalize=False, state=state)
        recurrent = state.recurrent.permute(0, 3, 1, 2)  # (B, V, G, K): each value channel holds a key
        state = replace(state, recurrent=rotate(recurrent, -angles[:, -1:].expand(-1, 8, -1, -1)).permute(0, 2, 3, 1))
        outputs.append(y)
    assert (torch.cat(outputs, 1) - whole).abs().max() <= 1e-12


def fourier_numerator(q, k, v, omega):
    """Softmax's numerator as a linear recurrence that turns by Ω(q_t − q_{t−1}): q, k (T,d), v (T,V), omega (D,d)."""
    D = omega.shape[0]
    angles = (q @ omega.T)[None, :, None]  # what differences add up to
    one = torch.cat([torch.ones(1, len(q), 1, D), torch.zeros(1, len(q), 1, D)], -1).double()
    lag = rotate(one, ((k - q) @ omega.T)[None, :, None]) * (k.square().sum(-1) / 2).exp()[None, :, None, None]
    turned = (rotate(x, angles) for x in (one, lag))
    y, _ = linear_attention(*turned, v[None, :, None], scale=1 / D, normalize=False)
    return y[0, :, 0] * (q.square().sum(-1, keepdim=True) / 2).exp()


def test_random_rotations_are_what_softmax_hides():
    """exp(q·k) = exp((|q|² + |k|²)/2) E[cos ω·(q − k)]: exact for a given Ω, and 4 times Ω halves its error."""
    T, d = 24, 4
    q, k, v = (0.5 * tokens(T, d, seed=seed) for seed in (1, 2, 3))
    omega = tokens(16384, d, seed=4)
    kernel = torch.exp((q.square().sum(-1)[:, None] + k.square().sum(-1)) / 2) * torch.cos(
        (q[:, None] - k[None]) @ omega[:64].T
    ).mean(-1)
    assert (fourier_numerator(q, k, v, omega[:64]) - kernel.tril() @ v).abs().max() <= 1e-12

    exact = torch.exp(q @ k.T).tril()
    softmax = exact / exact.sum(-1, keepdim=True)
    identity = torch.eye(T, dtype=torch.float64)  # as values, the recurrence gives the weights themselves
    errors, variations = [], []
    for D in (64, 256, 1024, 4096, 16384):
        draws = omega[:D], tokens(D, d, seed=5), tokens(D, d, seed=6), tokens(D, d, seed=7)
        weights = [fourier_numerator(q, k, identity, draw) for draw in draws]
        errors.append(torch.stack([(weight - exact).square().mean() for weight in weights]).mean().sqrt().item())
        rows = [weight / weight.sum(-1, keepdim=True) for weight in weights]
        variations.append(sum((row - softmax).abs().sum(-1).mean().item() / 2 for row in rows) / len(rows))
    assert all(1.4 <= a / b <= 2.8 for a, b in itertools.pairwise(errors)), errors
    assert 5 <= variations[1] / variations[-1] <= 13, "64 times Ω: an eighth of the distance to softmax"


def counter(planes, turns_per_token):
    """A rotary that turns plane j by turns_per_token[i][j] radians at a token whose input is 1000 in channel i."""
    vocabulary = len(turns_per_token)
    rotary = SelectiveRotary(vocabulary, 1, planes, rank=vocabulary, **COUNTING).double()
    with torch.no_grad():
        rotary.proj[0].weight.copy_(torch.eye(vocabulary))
        rotary.proj[1].weight.copy_(torch.tensor(turns_per_token, dtype=torch.float64).T)
        rotary.conv.weight.copy_(torch.tensor([0.0, 0, 0, 1]))
    return rotary


def written_once(angles):
    """What one read of the plane gives, if only the first token writes a value: cos of how far it has turned since."""
    T = angles.shape[1]
    one = torch.tensor([1.0, 0], dtype=angles.dtype).expand(1, T, 1, 2)
    value = torch.zeros(1, T, 1, 1, dtype=angles.dtype)
    value[:, 0] = 1
    return linear_attention(rotate(one, angles), rotate(one, angles), value, scale=1.0, normalize=False)[0].flatten()


@pytest.mark.parametrize(("dtype", "T", "error"), [(torch.float64, 1000, 1e-8), (torch.float32, 4096, 1e-4)], ids=str)
def test_one_layer_holds_parity(dtype, T, error):
    """Half a turn at each 1; by construction, not by training."""
    bits = torch.randint(0, 2, (T,), generator=torch.Generator().manual_seed(0))
    bits[0] = 0
    rotary = counter(1, [[0.0], [math.pi]]).to(dtype)
    with torch.no_grad():
        angles, _ = rotary(1000 * torch.nn.functional.one_hot(bits, 2)[None].to(dtype))
        y = written_once(angles)
    assert (y - (-1.0) ** bits.cumsum(0)).abs().max() <= error


@pytest.mark.parametrize("m", [2, 3, 5, 12])
def test_one_plane_adds_modulo_m(m):
    numbers = torch.randint(0, m, (1000,), generator=torch.Generator().manual_seed(m))
    rotary = counter(1, [[math.tau * a / m] for a in range(m)])
    x = 1000 * torch.nn.functional.one_hot(numbers, m)[None].double()
    with torch.no_grad():
        angles, _ = rotary(x)
    sums = torch.remainder((angles.flatten() * m / math.tau).round(), m)
    assert torch.equal(sums.long(), numbers.cumsum(0) % m)


def test_rotations_commute_so_one_layer_cannot_follow_a_group_that_does_not():
    """However the tokens turn, their order is lost: swapping two gives another element of S3, and the same angle."""
    rotary = counter(4, tokens(6, 4).tolist())
    word = torch.tensor([1, 4, 2, 5, 3, 0])
    x = 1000 * torch.nn.functional.one_hot(torch.stack([word, word[[2, 0, 1, 5, 3, 4]]]), 6).double()
    with torch.no_grad():
        angles, _ = rotary(x)
    assert turned_apart(angles[0, -1], angles[1, -1]) <= 1e-12


def response(gamma, T, frequency):
    """|Σ_s γ^(T−s) e^{iδs}|: what a state that rotates by δ per token, relative to its input, holds after T of them."""
    angles = frequency.view(-1, 1, 1, 1) * torch.arange(T, dtype=torch.float64).view(1, T, 1, 1)
    B = len(frequency)
    key = torch.tensor([1.0, 0], dtype=torch.float64).expand(B, T, 1, 2)
    decay = torch.full((B, T, 1), math.log(gamma), dtype=torch.float64)
    value = torch.ones(B, T, 1, 1, dtype=torch.float64)
    both_axes = torch.eye(2, dtype=torch.float64).expand(B, T, 2, 2)
    parts, _ = linear_attention(both_axes, rotate(key, angles), value, decay, scale=1.0, normalize=False, form="chunked")
    return parts.norm(dim=2)[:, :, 0]


def test_decay_is_the_window_of_the_rotation():
    """Rotation alone depends on where the sequence is cut and ripples over frequency; a decay removes both."""
    spread, ripples = {}, {}
    sweep = torch.linspace(0.1, 2.16, 280, dtype=torch.float64)
    for gamma in (1.0, 0.99, 0.97, 0.95):
        cut = response(gamma, 256, torch.tensor([0.7], dtype=torch.float64))[0, 199:]
        spread[gamma] = ((cut.max() - cut.min()) / cut.mean()).item()
        level = response(gamma, 256, sweep)[:, -1]
        ripples[gamma] = int(((level[1:-1] > level[:-2]) & (level[1:-1] > level[2:])).sum())
    assert spread[1.0] > 1.3 and 0.2 < spread[0.99] < 0.3 and spread[0.97] < 0.006
    assert ripples[1.0] > 80 and ripples[0.99] > 80 and ripples[0.97] == ripples[0.95] == 0


def test_temperatures():
    rope = SelectiveRotary(8, 1, 16, theta=10000, temp_max=2.0).temperatures("cpu")
    expected = [2 * 10000 ** (-2 * j / 32) for j in range(16)]
    torch.testing.assert_close(rope, torch.tensor(expected, dtype=torch.float64), rtol=1e-14, atol=0)
    assert (SelectiveRotary(8, 1, 16, theta=1).temperatures("cpu") == 1).all()
    rfa = SelectiveRotary(8, 1, 16, temperature="rfa", temp_max=0.25).temperatures("cpu")
    a = torch.linspace(0, 0.9999 * math.pi, 16, dtype=torch.float64)
    tangent = ((1 - a.cos()) / (1 + a.cos())).sqrt()
    torch.testing.assert_close(rfa, 0.25 * tangent / tangent[-1], rtol=1e-8, atol=1e-12)
    assert rfa[0] == 0 and rfa[-1] == 0.25 and 3e-4 < rfa[-2] < 4e-4, "one fast plane"


def test_a_running_sum_of_phases_needs_its_precision():
    """Why phases are summed in float64: the error at 2048 tokens of half a radian, in radians."""
    w = 0.5 + 0.05 * tokens(2048, 64)
    exact = w.cumsum(0)
    in_float32 = w.float().cumsum(0)
    in_bfloat16 = torch.zeros(64, dtype=torch.bfloat16)
    for step in w.bfloat16():
        in_bfloat16 = in_bfloat16 + step
    assert 1e-5 < (in_float32.double() - exact).abs().max() < 1e-3
    assert (in_float32.bfloat16().double() - exact).abs().max() > 2
    assert (in_bfloat16.double() - exact[-1]).abs().min() > 500


def test_phases_stay_exact_over_65536_tokens():
    """float32 inputs and weights, bias on: the angles of the sum of the increments that float32 gives, and in any pieces."""
    T = 65536
    rotary = build(heads=2, planes=4, d_model=8, dtype=torch.float32, bias=True, theta=100)
    x = tokens(1, T, 8, dtype=torch.float32)
    with torch.no_grad():
        angles, _ = rotary(x)
        state, pieces = None, []
        for piece in x.split(5000, dim=1):
            found, state = rotary(piece, state)
            pieces.append(found)
        exact, _ = rotary.double()(x.double())
    assert state.phase.dtype == torch.float64 and state.phase.abs().max() > 10_000
    assert turned_apart(torch.cat(pieces, 1).double(), angles.double()) <= 1e-6
    assert turned_apart(angles.double(), exact) <= 1e-3


def test_a_convolution_that_starts_as_the_token_itself():
    """The first turn of a token is temperature ⊙ u of that token, up to the noise that all convolutions start with."""

    def turns(**options):
        torch.manual_seed(0)
        turning = SelectiveRotary(32, 2, 16, increments="linear", gate="none", theta=1, temp_max=0.5, **options).double()
        x = torch.randn(4, 6, 32, dtype=torch.float64)
        z = torch.nn.functional.normalize(x.unflatten(-1, (2, 16)), dim=-1)
        u = turning.proj(z.flatten(2)).unflatten(-1, (2, 16))
        with torch.no_grad():
            angles, _ = turning(x)
        return angles.diff(dim=1), 0.5 * u[:, 1:].detach()

    turned, expected = turns(identity_conv=True)
    assert (turned - expected).std() < 0.1 * expected.std()
    turned, expected = turns()
    assert turned.std() < 0.1 * expected.std()
    with pytest.raises(ValueError, match="identity_conv=True needs a convolution"):
        SelectiveRotary(32, 2, 16, increments="difference", identity_conv=True)


def test_a_learned_temperature_starts_as_the_frozen_one_and_is_learned():
    frozen, learned = (build(dtype=torch.float32, learn_temperature=learn) for learn in (False, True))
    with torch.no_grad():
        learned.speed.copy_(frozen.temperatures("cpu"))
    learned.load_state_dict({**frozen.state_dict(), "speed": learned.speed})
    x = torch.randn(2, 9, 12)
    torch.testing.assert_close(learned(x)[0], frozen(x)[0], rtol=0, atol=1e-5)
    learned(x)[0].square().sum().backward()
    assert learned.speed.grad.abs().min() > 0
    with torch.no_grad():
        learned.speed *= 2
    turned = (2 * frozen(x)[0] - learned(x)[0]) / math.tau
    torch.testing.assert_close(turned, turned.round(), rtol=0, atol=1e-4)
