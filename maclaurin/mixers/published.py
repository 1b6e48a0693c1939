"""Every row of the tables of the thesis, paper 1 (arXiv 2507.23632) and paper 2 (arXiv 2602.17363), as options of a mixer:
the authors' name -> (mixer, options).

Paper 2's layers have no rotary positions except softmax, whose pairs are interleaved, and no bias on the time step: its "A
mask original" rows start at a median decay of 0.0045 per token where Mamba-2's bias would start at 0.93. Add `dt_bias=True`
to see the difference. Where a published name is the same model as another (a positive factor per query in front of a
norm cancels), both rows have the same options; "extratoks" differs in its data, which begins with 3 dummy tokens.

Where paper 1's code does something else than its name says, a row is what the name says, and `AS_TRAINED` is what the code
computes, for the weights that it has trained. `NOT_HERE` are the rows that cannot be had, and why.

In the shell every row is `paper-1/NAME` or `paper-2/NAME`, and those with a name in the text of paper 2 have that, too:
`paper-2/2Mamba`.
"""

from __future__ import annotations

from typing import Any

from maclaurin.common.arguments import one_of
from maclaurin.common.choices import near_miss
from maclaurin.mixers.base import Mixer
from maclaurin.mixers.registry import build_mixer

Row = tuple[str, dict[str, Any]]


def published_mixer(paper: int, name: str, d_model: int, num_heads: int, **options: Any) -> Mixer:
    """The mixer that paper 1 or 2 calls `name`: `published_mixer(2, "linear__output_norm__D_res", 1024, 16)`."""
    one_of("paper", paper, (1, 2))
    rows = PAPER_1 if paper == 1 else PAPER_2
    one_of("name", name, tuple(rows))
    mixer, preset = rows[name]
    return build_mixer(mixer, d_model, num_heads, **{**preset, **options})


def is_published(name: str) -> bool:
    """Whether a name has the form of a row in the shell."""
    return name.partition("/")[0] in ROWS


def published_row(name: str) -> Row:
    """The mixer and the options of a row by its name in the shell, such as `paper-2/2Mamba`."""
    paper, _, row = name.partition("/")
    one_of("the paper of a row", paper, tuple(ROWS))
    rows = ROWS[paper]
    row = LABELS.get(row, row) if paper == "paper-2" else row
    if row not in rows:
        if paper == "paper-1" and row in NOT_HERE:
            raise ValueError(f"{name!r} cannot be had: {NOT_HERE[row]}")
        known = [*LABELS, *rows] if paper == "paper-2" else [*rows]
        raise ValueError(f"{paper} has no row {row!r}{near_miss(row, known)}; it has {', '.join(known)}")
    mixer, options = rows[row]
    return mixer, dict(options)


def spelled_out(name: str, options: dict[str, Any]) -> Row:
    """A mixer and its options as they are typed: of a published row, its own are beside those given."""
    if not is_published(name):
        return name, options
    mixer, own = published_row(name)
    return mixer, own | options


def _linear(**options: Any) -> Row:
    """Paper 2's plain linear layer: identity features, output norm."""
    return "linear", {"feature_map": "identity", "norm": "output", **options}


def _gated(**options: Any) -> Row:
    """Paper 1's layer without gates and norm: capped exponentials over the number of keys."""
    return "gated-softmax", {"in_gate": False, "out_gate": "none", "norm": "none", **options}


_CONV_2_SOFTPLUS: dict[str, Any] = {"conv_width": 2, "decay": "softplus"}
_CONV_2_SOFTPLUS_DT = {**_CONV_2_SOFTPLUS, "value_discretization": "dt"}
_SQUARED = "squared__sm_norm__A_mask_type_neg_softplus__in_conv_k_2"
_EXP = "exp__sm_norm__A_mask_type_neg_softplus__in_conv_k_2"
_MAMBA_2S = "linear__output_norm__A_mask_type_neg_softplus__in_conv_k_2__dt_on_values"

PAPER_2: dict[str, Row] = {
    "softmax": ("softmax", {"rotary_interleaved": True}),
    "mamba": ("mamba2-single-head", {}),
    "linear": ("linear", {}),
    "linear__output_norm": _linear(),
    "linear__output_norm__ReLU": _linear(feature_map="relu"),
    "linear__output_norm__in_conv_k_2": _linear(conv_width=2),
    "linear__output_norm__in_conv_k_3": _linear(conv_width=3),
    "linear__output_norm__in_conv_k_4": _linear(conv_width=4),
    "linear__output_norm__in_conv_k_2__silu": _linear(conv_width=2, feature_map="silu"),
    "linear__output_norm__in_conv_k_3__silu": _linear(conv_width=3, feature_map="silu"),
    "linear__output_norm__in_conv_k_4__silu": _linear(conv_width=4, feature_map="silu"),
    "linear__output_norm__D_res": _linear(skip=True),
    "linear__output_norm__Z_out_gate": _linear(gate=True),
    "linear__output_norm__dt_on_values": _linear(value_discretization="dt"),
    "linear__output_norm__A_mask_type_discretize": _linear(decay="mamba"),
    "linear__output_norm__A_mask_type_neg_softplus": _linear(decay="softplus"),
    "linear__output_norm__A_mask_type_discretize__in_conv_k_2": _linear(decay="mamba", conv_width=2),
    "linear__output_norm__A_mask_type_neg_softplus__in_conv_k_2": _linear(**_CONV_2_SOFTPLUS),
    "linear__out_norm__A_mask_type_neg_softplus__in_conv_k_2": _linear(**_CONV_2_SOFTPLUS),
    _MAMBA_2S: ("mamba2s", {}),
    _MAMBA_2S + "__silu": ("mamba2s", {"feature_map": "silu"}),
    _MAMBA_2S + "__D_res": ("mamba2s", {"skip": True}),
    _MAMBA_2S + "__Z_out_gate": ("mamba2s", {"gate": True}),
    "squared__output_norm__A_mask_type_neg_softplus__in_conv_k_2__dt_on_values": (
        "2mamba",
        {"norm": "output", "value_discretization": "dt"},
    ),
    _SQUARED + "__dt_on_values": ("2mamba", {"value_discretization": "dt"}),
    _SQUARED: ("2mamba", {}),
    _EXP + "__dt_on_values": ("2mamba-e", {"value_discretization": "dt"}),
    _EXP: ("2mamba-e", {}),
}

# the names that paper 2 gives to some of them
LABELS = {
    "Softmax": "softmax",
    "Mamba-2": "mamba",
    "Linear": "linear",
    "Mamba-2S": _MAMBA_2S,
    "2Mamba": _SQUARED,
    "2Mamba-dt": _SQUARED + "__dt_on_values",
    "2Mamba-E": _EXP,
}

_BEFORE: dict[str, Any] = {"out_gate": "before-norm"}  # the authors gate, then normalise
_UNCAPPED_L2: dict[str, Any] = {"score_cap": None, "divisor": "none", "norm": "l2"}
_PLUS_PLUS: dict[str, Any] = {"conv_width": 4, "conv_bias": False, "activation": "silu", **_BEFORE}

PAPER_1: dict[str, Row] = {
    "softmax": ("softmax", {}),
    "softmax_clamp_denom": _gated(divisor="floored-sum"),
    "softmax_detach_denom": _gated(divisor="floored-sum", detach_divisor=True),
    "softmax_divs": _gated(),
    "softmax_detach_denom_gate": _gated(divisor="sum", detach_divisor=True, out_gate="after-norm"),
    "softmax_gate": _gated(divisor="none", out_gate="after-norm"),
    "softmax_divS_gate": _gated(out_gate="after-norm"),
    "softmax_divS_gatev2": _gated(out_gate="after-norm"),
    "softmax_divS_norm": _gated(norm="rms"),
    "softmax_taylor_80terms": ("taylor", {"order": 79}),
    "gated_softmax": ("gated-softmax", _BEFORE),
    "gated_softmax_no_norm": ("gated-softmax", {"norm": "none"}),
    "gated_softmax_no_in_gate": ("gated-softmax", {"in_gate": False, **_BEFORE}),
    "gated_softmax_no_out_gate": ("gated-softmax", {"out_gate": "none"}),
    "gated_softmax_no_out_gate_no_norm": ("gated-softmax", {"out_gate": "none", "norm": "none"}),
    "gated_softmax_no_in_gate_no_norm": _gated(out_gate="after-norm"),
    "gated_relu_no_in_gate_no_norm": _gated(numerator="relu", out_gate="after-norm"),
    "gated_softmax_no_gate": _gated(norm="layer"),
    "gated_softmax_no_gate_rmsnorm": _gated(norm="rms"),
    "gated_softmax_no_gate_rmsnorm_nodivS": _gated(norm="rms", divisor="none"),
    "gated_softmax_no_gate_L2norm_nodivS": _gated(norm="l2", divisor="none"),
    "gated_softmax_no_gate_L2norm_nodivS_noclamp": _gated(**_UNCAPPED_L2),
    "gated_ReLU_no_gate_L2norm_nodivS_noclamp": _gated(numerator="relu", **_UNCAPPED_L2),
    "gated_softmax_out_gate_L2norm_nodivS_noclamp": _gated(
        score_cap=None, norm="l2", divisor="count", out_gate="before-norm"
    ),
    "gated_softmax_post_out_gate_L2norm_nodivS_noclamp": _gated(
        score_cap=None, norm="l2", divisor="count", out_gate="after-norm"
    ),
    "gated_softmax_no_gate_no_norm": _gated(),
    "gated_softmax_no_gate_customnorm": _gated(norm="scaled-l2"),
    "gated_softmax_cumgate": _gated(divisor="cumulative-gate"),
    "cumulative_gated_softmax": _gated(out_gate="after-norm", out_gate_activation="exp"),
    "gated_softmax_plusplus": ("gated-softmax", _PLUS_PLUS),
    "gated_softmax_plusplus_extratoks": ("gated-softmax", _PLUS_PLUS),
    "gated_softmax_decay": (
        "gated-softmax",
        {"rotary": "none", "decay": "softplus", "decay_scale": 1 / 1024, **_BEFORE},
    ),
    "linear_elu": ("linear", {"feature_map": "elu", "rotary": "rope"}),
    "linear_relu": ("linear", {"feature_map": "relu", "rotary": "rope"}),
    "linear_cosine": (
        "linear",
        {"feature_map": "cosine", "norm": "none", "value_norm": "position", "rotary": "rope"},
    ),
    "linear_mamba": (
        "mamba2",
        {"expand": 1, "d_state": 64, "conv_width": 2, "skip_per_channel": True},
    ),
}

ROWS = {"paper-1": PAPER_1, "paper-2": PAPER_2}

# what paper 1's code computes under a name that says something else, as options beside those of the row
AS_TRAINED: dict[str, dict[str, Any]] = {
    "softmax_taylor_80terms": {"norm": "none"},  # it divides by the sum, and then uses the matrix from before
    "linear_cosine": {"feature_map": "cosine-over-heads"},  # its `normalize` runs over the heads
    "softmax_detach_denom_gate": {"divisor_epsilon": 1e-4},
}

# of paper 1's 38 names, those without a mixer here, and those whose trained weights mean something that no mixer computes
_MISSING = "its code needs a file that the authors have not published"
NOT_HERE = {"gated_softmax_plusplus_mamba": _MISSING, "gated_softmax_plusplus_mamba2": _MISSING}
NOT_LOADED = NOT_HERE | {
    "gated_softmax_decay": "its decays come from the token before, without an activation, and may grow instead",
}
