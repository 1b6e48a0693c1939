"""Every mixer is its system; DSF's statements hold where they are true and are reported where they are made false."""

# T time, H heads, N states, V value channels

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Generator, nn

import maclaurin
from maclaurin import lab
from maclaurin.lab.experiments.dynamics import System, checks, dynamics, form_error, to_dsf
from maclaurin.lab.experiments.dynamics.convert import drawn
from maclaurin.mixers.base import Mixer

CUT = ("softmax", "2mamba-e", "fox", "fox-pro", "gated-softmax")
UNKNOWN = ("retnet",)  # not written as a system: the lab says so


def generator(seed: int = 0) -> Generator:
    return torch.Generator().manual_seed(seed)


def tokens(length: int = 20, d_model: int = 16, seed: int = 1):
    return torch.randn(1, length, d_model, generator=generator(seed), dtype=torch.float64)


def options(name: str) -> dict[str, int]:
    return {"window": 5} if name == "sliding-window" else {}


@pytest.mark.parametrize("name", [name for name in maclaurin.available_mixers() if name not in (*CUT, *UNKNOWN)])
def test_a_mixer_is_its_system(name):
    mixer, x = drawn(name, 16, 4, 0, **options(name)), tokens()
    system = to_dsf(mixer, x)
    assert system.order is None
    assert form_error(system, mixer, x) < 1e-12
    # the three forms are one: recurrence, kernel, and the matrices written out
    u = system.inputs.flatten(1)
    y = system.run().flatten(1)
    kernel = system.kernel()
    torch.testing.assert_close(torch.einsum("tsuw,sw->tu", kernel, u), y, rtol=1e-9, atol=1e-11)
    assert not kernel[torch.ones(20, 20).triu(1) == 1].any(), "block lower triangular"
    Lambda, B, C, D = system.matrices()
    h = torch.zeros_like(B[0, :, 0])
    for t in range(20):
        h = (Lambda[t] * h if system.diagonal else Lambda[t] @ h) + B[t] @ u[t]
        torch.testing.assert_close(C[t] @ h + D[t] @ u[t], y[t], rtol=1e-9, atol=1e-11)
    assert h.numel() == system.inputs[0].numel() * system.states


@pytest.mark.parametrize("name", CUT)
def test_a_series_that_is_cut_comes_nearer_with_every_order(name):
    mixer, x = drawn(name, 16, 4, 0), tokens()
    errors = [form_error(to_dsf(mixer, x, order=order), mixer, x) for order in (2, 4, 6, 8)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-3 < errors[0]
    assert to_dsf(mixer, x, order=4).states == 70


VARIANTS = [
    ("linear", {"feature_map": "cosine", "norm": "none", "value_norm": "position", "rotary": "rope"}),
    ("linear", {"norm": "output", "skip": True, "gate": True, "value_discretization": "dt"}),
    ("taylor", {"order": (0, 2), "learn_order_weights": True, "num_kv_heads": 2, "decay": "softplus"}),
    ("2mamba", {"value_discretization": "dt", "skip": True, "num_kv_heads": 2}),
    ("2mamba", {"decay": "channel", "qk_norm": True, "num_kv_heads": 2}),
    ("gated-softmax", {"numerator": "relu", "score_cap": None, "divisor": "sum", "norm": "none", "out_gate": "before-norm"}),
    ("gated-softmax", {"numerator": "relu", "divisor": "cumulative-gate", "norm": "l2"}),
    ("gated-softmax", {"numerator": "relu", "divisor": "floored-sum", "in_gate": False, "decay": "softplus"}),
    ("hedgehog", {"norm": "output", "decay": "softplus", "num_kv_heads": 1}),
    ("normalized", {"eta": "softplus_offset", "feature_map": "elu", "value_discretization": "sigmoid"}),
    ("gla", {"tie_decay_pairs": True, "rotary": "selective", "num_kv_heads": 2, "key_dim": 4}),
    ("mlstm", {"input_gate": "sigmoid", "num_kv_heads": 2}),
    ("mlstm", {"norm": "rms", "gate_cap": None}),
    ("delta", {"allow_negative_eigenvalues": True, "gate": True, "norm": "none"}),
    ("inline", {"local_residual": False, "learn_scale": True, "feature_map": "exp"}),
    ("inline", {"num_kv_heads": 2, "value_discretization": "dt"}),
    ("qlstm", {"forget": "reversed", "conv_width": 0}),
    ("rglru", {"gate": False, "conv_width": 0}),
    ("rglru", {"scale_first": False, "projection_bias": True}),
    ("metala", {"aug": "linear", "own_key": True}),
    ("metala", {"aug": "gate", "conv_width": 0, "tau": 1.0}),
    ("sliding-window", {"window": 3, "decay": "softplus", "num_kv_heads": 2, "value_discretization": "dt"}),
]


@pytest.mark.parametrize(("name", "chosen"), VARIANTS)
def test_options_are_in_the_system_too(name, chosen):
    mixer, x = drawn(name, 16, 4, 0, **chosen), tokens()
    assert form_error(to_dsf(mixer, x), mixer, x) < 1e-11


def test_a_wrong_system_has_an_error():
    mixer, x = drawn("gla", 16, 4, 0), tokens()
    system = to_dsf(mixer, x)
    assert form_error(replace(system, transition=system.transition * 0.99), mixer, x) > 1e-4


def test_a_row_without_weights_is_zero():
    """η = 0: nothing is read, and later rows are as they were."""
    mixer, x = drawn("linear", 16, 4, 0), tokens()
    x[0, 3] = x[0, 0] = 0
    assert form_error(to_dsf(mixer, x), mixer, x) < 1e-12


def test_the_rank_of_a_block_is_at_most_the_number_of_states():
    x = tokens(40)
    for name, states in (("gla", 2), ("linear", 4), ("2mamba", 10), ("delta", 4), ("qlstm", 1)):
        ranks = to_dsf(drawn(name, 16, 4, 0), x).block_rank()
        assert ranks == [states] * len(ranks), name


def test_eigenvalues_of_the_delta_rule_are_ones_and_one_minus_beta():
    system = to_dsf(drawn("delta", 16, 4, 0, allow_negative_eigenvalues=True), tokens())
    values = system.eigenvalues().sort(-1).values
    torch.testing.assert_close(values[..., 1:], torch.ones_like(values[..., 1:]), rtol=0, atol=1e-8)
    assert -1 < values[..., 0].min() < 0 < values[..., 0].max() < 1
    shares = system.histogram([-0.05, 0.95, 1.05])
    assert sum(shares) == pytest.approx(1)
    assert shares[1] >= 0.75


def test_a_window_forgets_at_once():
    system = to_dsf(drawn("sliding-window", 16, 4, 0, window=5), tokens())
    assert not system.eigenvalues().abs().any()
    assert system.block_rank() == [4] * 4, "all but the token itself"


class Unknown(Mixer):
    """No family of the registry."""

    def __init__(self) -> None:
        super().__init__(16, 1)
        self.weight = nn.Parameter(torch.zeros(1))

    mix = state_of = None


@pytest.mark.parametrize(
    ("mixer", "x", "order", "sentence"),
    [
        (lambda: drawn("linear", 16, 4, 0, causal=False), tokens(), 8, "must be causal"),
        (lambda: drawn("linear", 16, 4, 0), tokens()[0], 8, "1, time, 16"),
        (lambda: drawn("linear", 16, 4, 0), tokens().expand(2, -1, -1), 8, "one sequence"),
        (lambda: drawn("softmax", 16, 1, 0), tokens(), 8, "lower order"),
        (lambda: drawn("softmax", 16, 4, 0), 20 * tokens(), 3, "even order"),
        (lambda: drawn("gated-softmax", 16, 4, 0), 20 * tokens(), 8, "score_cap"),
        (lambda: drawn("linear", 16, 4, 0, near_window=3), tokens(), 8, "no family"),
        (Unknown, tokens(), 8, "no family"),
    ],
)
def test_what_has_no_system_is_refused_in_a_sentence(mixer, x, order, sentence):
    with pytest.raises(ValueError, match=sentence):
        to_dsf(mixer(), x, order=order)


STATEMENTS = {
    "D1": lambda: checks.recurrence_is_attention(generator()),
    "D2": lambda: checks.selective_scan_is_its_system(generator()),
    "D3": lambda: checks.softplus_is_a_reversed_sigmoid(generator()),
    "D4": lambda: checks.truncated_series(generator()).claims,
    "D5": lambda: checks.rank_of_kernels(generator()),
    "D6": lambda: checks.rank_of_blocks(generator()),
    "D7": lambda: checks.more_states(generator()),
    "D8": lambda: checks.eigenvalues_above_one(generator(), draws=50),
    "D8 recurrences": lambda: checks.eigenvalues_of_recurrences({"s6": to_dsf(drawn("s6", 16, 4, 0), tokens())}),
    "D9": lambda: checks.normalised_attention(generator(), seed=0),
    "D10": lambda: checks.one_query(generator()),
}

FALSE = {
    "equation (15b)": (lambda: checks.recurrence_is_attention(generator(), as_printed=True), ["D1 recurrence", "D1 kernel"]),
    "the gate of an LSTM": (lambda: checks.softplus_is_a_reversed_sigmoid(generator(), reversed_sign=False), ["D3"]),
    "no factorials": (lambda: checks.truncated_series(generator(), scaled=False).claims, ["D4 bound", "D4 map"]),
    "few points": (lambda: checks.rank_of_kernels(generator(), points=20), ["D5 exp m=2", "D5 exp m=4", "D5 exp m=8"]),
    "more states": (lambda: checks.rank_of_blocks(generator(), states=5), ["D6 linear", "D6 normalised", "D6 metala"]),
    "states that are read": (lambda: checks.more_states(generator(), read=1.0), ["D7"]),
    "one query": (lambda: checks.eigenvalues_above_one(generator(), draws=20, one_query=True), ["D8 softmax"]),
    "attention among recurrences": (
        lambda: checks.eigenvalues_of_recurrences({"linear": to_dsf(drawn("linear", 16, 4, 0), tokens())}),
        ["D8 linear"],
    ),
    "linear attention": (lambda: checks.normalised_attention(generator(), seed=0, name="linear"), ["D9 form", "D9 keys"]),
    "several queries": (lambda: checks.one_query(generator(), queries=64), ["D10 softmax", "D10 linear"]),
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_the_statements_hold(name):
    made = STATEMENTS[name]()
    assert made
    assert all(claim.held for claim in made), made


@pytest.mark.parametrize("name", FALSE)
def test_what_is_false_is_reported(name):
    run, expected = FALSE[name]
    assert [claim.key for claim in run() if claim.held is False] == expected


def test_one_mixer_from_the_lab():
    result = lab.dynamics(mixer="gla", length=12)
    assert result.held and [claim.key for claim in result.claims] == ["form gla"]
    assert {plot.key for plot in result.plots} == {"eigenvalues", "map-head-0"}
    assert lab.to_dsf is to_dsf
    assert "gla" in result.table()


def test_a_refusal_is_a_claim_that_does_not_apply():
    result = dynamics(mixer="softmax", num_heads=1, length=8)
    (claim,) = result.claims
    assert claim.held is None and "lower order" in claim.measured
    assert result.held and not result.grids


@pytest.mark.slow
def test_the_whole_experiment():
    assert dynamics(quick=True).held
    assert not dynamics(quick=True, printed=True).held


def test_a_system_by_hand():
    """h = 2h + 3u, y = 5h + 7u."""

    def constant(value: float):
        return torch.full((3, 1, 1), value, dtype=torch.float64)

    u = torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64).view(3, 1, 1)
    system = System(constant(2), constant(3), constant(5), u, lambda y: y, constant(7))
    assert system.run().flatten().tolist() == [22, 30, 104]
    assert system.weights()[0].tolist() == [[15, 0, 0], [30, 15, 0], [60, 30, 15]]
    assert system.kernel()[:, :, 0, 0].tolist() == [[22, 0, 0], [30, 22, 0], [60, 30, 22]]
