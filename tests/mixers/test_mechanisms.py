"""A mechanism is its matrix: what it gives is its weights times the values, and so it is in mixers and students."""

import pytest
import torch
from torch import nn

import maclaurin
from maclaurin.mixers.base import Call
from maclaurin.mixers.feature_maps import LIMIT, EluMap, HedgehogMap, PerformerMap, features
from maclaurin.mixers.mechanisms import Inline, Linear, Power, Softmax
from maclaurin.mixers.near_window import NearWindow
from maclaurin.mixers.projected import ProjectedMixer
from maclaurin.mixers.weights import of_mixer
from maclaurin.models.linearised.students import STUDENTS, Shape, build_student
from maclaurin.ops.arithmetic import repeat_heads

K, H, G = 4, 4, 2  # key channels, heads, key-value heads
PLAIN = ("relu", "leaky-relu", "silu", "elu", "exp", "cosine", "identity")

torch.manual_seed(0)
ORDER_WEIGHTS = torch.rand(H, 3, dtype=torch.float64)
MAPS = (nn.Linear(K, 6).double(), nn.Linear(K, 6).double())
MECHANISMS = {
    **{f"softmax {name}": lambda causal, name=name: Softmax(name, causal=causal) for name in PLAIN},
    **{f"linear {name}": lambda causal, name=name: Linear(name, 1.0, causal) for name in PLAIN},
    **{f"inline {name}": lambda causal, name=name: Inline(name, causal=causal) for name in PLAIN},
    "no divisor": lambda causal: Linear(causal=causal, normalize=False),
    "hedgehog": lambda causal: Linear(HedgehogMap(K, 6).double(), 1.0, causal),
    "performer": lambda causal: Linear(PerformerMap(K, 6).double(), 1.0, causal),
    "performer, no divisor": lambda causal: Linear(PerformerMap(K, 6).double(), 1.0, causal, normalize=False),
    "elu of a map": lambda causal: Linear(EluMap(K, 6).double(), 1.0, causal),
    "square": lambda causal: Power("identity", None, causal),
    "cube of features": lambda causal: Power(PerformerMap(K, 3).double(), 1.0, causal, order=3),
    "cube, no divisor": lambda causal: Power("relu", 0.3, causal, order=3, normalize=False),
    "series": lambda causal: Power("elu", None, causal, order=(0, 1, 2)),
    "series of features": lambda causal: Power(PerformerMap(K, 3).double(), 1.0, causal, order=(0, 2)),
    "weighed series": lambda causal: Power("identity", None, causal, order=(0, 1, 3), order_weights=ORDER_WEIGHTS),
    "behind maps": lambda causal: Power("identity", 1.0, causal, MAPS),
    "scale per head": lambda causal: Inline("identity", 1.0, causal, head_scale=ORDER_WEIGHTS[:, :1]),
}
CAUSAL = {
    "window": Softmax(window=3),
    "window of features": Softmax("cosine", 1.0, window=2),
    **{
        f"{numerator} over {divisor}": Softmax(numerator=numerator, divisor=divisor, score_cap=0.4)
        for numerator in ("exp", "relu")
        for divisor in ("sum", "floored-sum", "count", "none")
    },
}


def drawn(batch, tokens, values=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = ((H, K), (G, K), (G, values))
    q, k, v = (torch.randn(batch, tokens, *size, generator=generator, dtype=torch.float64) for size in sizes)
    decays = torch.rand(batch, tokens, G, K, generator=generator, dtype=torch.float64)
    return q, k, v, -decays


def assert_is_its_matrix(mechanism, q, k, v, log_decay):
    y, _ = mechanism(q, k, v, log_decay, call=Call(return_state=False))
    weights = mechanism.weights(q, k, log_decay)
    expected = torch.einsum("bhts,bshv->bthv", weights, repeat_heads(v, H))
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-11)


def has_decay(mechanism):
    return not isinstance(mechanism, Inline) and (mechanism.causal or not isinstance(mechanism, Softmax))


@torch.no_grad()
@pytest.mark.parametrize("shape", [(1, 1), (2, 7), (1, 40)])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", MECHANISMS)
def test_a_mechanism_is_its_matrix(name, causal, shape):
    mechanism = MECHANISMS[name](causal)
    q, k, v, decays = drawn(*shape)
    for log_decay in (None, decays[..., 0]) if has_decay(mechanism) else (None,):
        assert_is_its_matrix(mechanism, q, k, v, log_decay)


@torch.no_grad()
@pytest.mark.parametrize("decayed", [False, True])
@pytest.mark.parametrize("name", CAUSAL)
def test_a_causal_mechanism_is_its_matrix(name, decayed):
    q, k, v, decays = drawn(2, 9)
    assert_is_its_matrix(CAUSAL[name], q, k, v, decays[..., 0] if decayed else None)


@torch.no_grad()
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("causal", [True, False])
def test_a_decay_per_channel_is_in_the_matrix(causal, normalize):
    q, k, v, decays = drawn(2, 9)
    assert_is_its_matrix(Linear("elu", None, causal, normalize=normalize), q, k, v, decays)


@torch.no_grad()
@pytest.mark.parametrize("far", [Linear("relu"), Power(order=(0, 1, 2)), Softmax()])
def test_a_window_beside_a_mechanism_is_in_the_matrix(far):
    near = NearWindow(H, 3, causal=True).double()
    nn.init.normal_(near.gate)
    q, k, v, decays = drawn(2, 9)
    assert_is_its_matrix(near.beside(far), q, k, v, decays[..., 0])
    assert_is_its_matrix(near.beside(far).within(2), q, k, v, decays[..., 0])
    changed = near.beside(far).within(2).weights(q, k) - near.beside(far).weights(q, k)
    assert changed.abs().max() > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("name", [*MECHANISMS, *CAUSAL])
def test_a_hidden_key_is_one_that_never_was(name):
    mechanism = CAUSAL[name] if name in CAUSAL else MECHANISMS[name](True)
    q, k, _, _ = drawn(1, 6)
    visible = torch.ones(6, 6, dtype=torch.bool)
    visible[:, 0] = False
    found = mechanism.weights(q, k, None, visible)
    torch.testing.assert_close(found[:, :, 1:, 1:], mechanism.weights(q[:, 1:], k[:, 1:]), rtol=1e-12, atol=1e-13)
    assert not found[..., 0].any()


@torch.no_grad()
@pytest.mark.parametrize("name", MECHANISMS)
def test_a_key_hidden_from_queries_that_see_both_ways_is_one_that_never_was(name):
    mechanism = MECHANISMS[name](False)
    q, k, _, _ = drawn(1, 6)
    visible = torch.ones(6, 6, dtype=torch.bool)
    visible[:, 2] = False
    kept = [0, 1, 3, 4, 5]
    found = mechanism.weights(q, k, None, visible)
    torch.testing.assert_close(found[..., kept], mechanism.weights(q, k[:, kept]), rtol=1e-12, atol=1e-13)
    assert not found[..., 2].any()


def of_own(name):
    """A mixer that has a mechanism, or None."""
    torch.manual_seed(0)
    mixer = maclaurin.build_mixer(name, 16, H).double()
    if not isinstance(mixer, ProjectedMixer) or mixer.mechanism is None:
        return None
    return mixer


WITH_WEIGHTS = [name for name in maclaurin.available_mixers() if of_own(name) is not None]


def test_families_with_queries_and_keys_have_weights():
    families = ("softmax", "sliding-window", "fox", "linear", "2mamba", "2mamba-e", "mamba2s", "taylor", "hedgehog", "t2r")
    assert {*families, "performer", "luna", "inline", "gated-softmax", "normalized", "gla", "retnet"} <= set(WITH_WEIGHTS)


@torch.no_grad()
@pytest.mark.parametrize("name", WITH_WEIGHTS)
def test_the_weights_of_a_mixer_are_those_of_what_it_calls(name, monkeypatch):
    """Its mechanism is what `mix` runs: values that it is called with, weighed by `of_mixer`, are what it gets back."""
    mixer = of_own(name)
    kind = type(mixer.mechanism)
    calls = []

    def watched(self, *args, __call__=kind.__call__, **kwargs):
        found = __call__(self, *args, **kwargs)
        calls.append((args, found[0]))
        return found

    monkeypatch.setattr(kind, "__call__", watched)
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    mixer(x)
    (((_, _, v, *_), y),) = calls
    weights = of_mixer(mixer, mixer.project(x))
    torch.testing.assert_close(y, torch.einsum("bhts,bshv->bthv", weights, repeat_heads(v, H)), rtol=1e-10, atol=1e-11)


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "causal", "window"),
    [*((name, causal, None) for name in (*STUDENTS, "softmax") for causal in (True, False))]
    + [(name, True, 3) for name in (*STUDENTS, "sliding-window")],
)
def test_a_student_is_its_matrix(name, causal, window):
    torch.manual_seed(0)
    student = build_student(name, Shape(8, H, G, K, causal), window=window).double()
    for parameter in student.parameters():
        parameter += 0.3 * torch.randn_like(parameter)
    q, k, v, _ = drawn(2, 9)
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    y, _ = student(q, k, v, x)
    weights = student.mechanism.weights(q, k, student.log_decay(x))
    torch.testing.assert_close(y, torch.einsum("bhts,bshv->bthv", weights, repeat_heads(v, H)), rtol=1e-9, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("name", ["linear", "inline"])
def test_the_clamp_of_exponential_features_is_the_same_everywhere(name):
    """Keys beyond it weigh the same, in the mixer and in its matrix."""
    torch.manual_seed(0)
    mixer = maclaurin.build_mixer(name, 8, 1, feature_map="exp", **({"local_residual": False} if name == "inline" else {}))
    mixer.double().out_proj.weight.copy_(torch.eye(8))
    mixer.qkv_proj.weight[8:16] = torch.eye(8)
    x = torch.randn(1, 6, 8, dtype=torch.float64)
    x[0, 2, 0], x[0, 4, 0] = 5 * LIMIT + 20, 5 * LIMIT + 40
    p = mixer.project(x)
    weights = of_mixer(mixer, p)
    y, _ = mixer(x)
    torch.testing.assert_close(torch.einsum("bhts,bshv->bthv", weights, p.v).flatten(2), y, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(weights[..., 5, 2], weights[..., 5, 4], rtol=1e-9, atol=1e-9)


def test_exponential_features_are_clamped():
    x = torch.tensor([1.0, 5 * LIMIT, 5 * LIMIT + 100], dtype=torch.float64)
    torch.testing.assert_close(features(x, "exp").log(), torch.tensor([0.2, LIMIT, LIMIT], dtype=torch.float64))


@torch.no_grad()
def test_a_decay_that_inline_cannot_have_is_refused():
    q, k, v, decays = drawn(1, 3)
    with pytest.raises(ValueError, match="log_decay must be None"):
        Inline()(q, k, v, decays[..., 0])
    with pytest.raises(ValueError, match="log_decay must be None"):
        Inline().weights(q, k, decays[..., 0])


def test_a_mixer_without_a_matrix_says_so():
    mixer = maclaurin.build_mixer("delta", 16, 4)
    with pytest.raises(ValueError, match="Delta has no weights in matrix form"):
        of_mixer(mixer, mixer.project(torch.randn(1, 3, 16)))
