"""Mixers with options that nobody wrote down: any of the values that an option may have, a few at a time."""

from __future__ import annotations

from typing import Any

import torch

import maclaurin
from fuzz.case import Draw, check_sentence
from maclaurin.mixers import (
    Mixer,
    attention,
    base,
    blocks,
    gated,
    inline,
    luna,
    metala,
    mixer_entry,
    mlstm,
    near_window,
    normalized,
    projected,
    recurrent,
)
from maclaurin.mixers import delta as delta_mixer
from maclaurin.mixers import selective_rope as selective
from maclaurin.ops import softmax

SWITCH = (False, True)
# by name; what does not fit the mixer or its other options is refused when it is built
VALUES: dict[str, tuple[Any, ...]] = {
    "activation": projected.WHERE_ACTIVE,
    "aug": metala.AUGMENTATIONS,
    "bank": luna.BANKS,
    "block": (None, *blocks.BLOCKS),
    "conv_width": (0, 1, 2, 4),
    "d_state": (1, 3, 16),
    "decay": projected.DECAYS,
    "decay_rank": (1, 4),
    "decay_scale": (0.1, 3.0),
    "divisor": gated.DIVISORS,
    "dt_rank": (1, 3),
    "eta": normalized.ETAS,
    "expand": (1, 2),
    "feature_map": tuple(dict.fromkeys((*attention.FEATURE_MAPS, *inline.FEATURE_MAPS, *normalized.FEATURE_MAPS))),
    "fold_at": (None, 1, 5, 9),
    "fold_every": (1, 3, 32),
    "forget": recurrent.FORGETS,
    "gate_cap": (None, 1.0, 15.0),
    "head_dim": (2, 4, 6),
    "init": base.INITS,
    "input_gate": mlstm.INPUT_GATES,
    "key_dim": (1, 2, 4, 6),
    "learn_order_weights": SWITCH,
    "local_width": (1, 3, 4),
    "n_groups": (1, 2),
    "near_norm": near_window.NEAR_NORMS,
    "near_window": (None, 1, 4, 7),
    "norm": tuple(dict.fromkeys((*attention.NORMS, *gated.NORMS, *delta_mixer.NORMS, *mlstm.NORMS))),
    "num_channels": (1, 3),
    "num_features": (1, 4, 9),
    "num_kv_heads": (1, 2, 3),
    "numerator": softmax.NUMERATORS,
    "order": (None, 1, 2, 3, 4, (0, 1, 2), (1, 2)),
    "out_gate": gated.OUT_GATES,
    "out_gate_activation": gated.GATE_ACTIVATIONS,
    "projection_bias": projected.BIASES,
    "qk_norm": SWITCH,
    "rotary": projected.ROTARIES,
    "rotary_dim": (None, 2, 4),
    "rotary_options": (
        None,
        *({"increments": kind} for kind in selective.INCREMENTS),
        *({"gate": kind, "bias": True} for kind in selective.GATES),
        {"temperature": "rfa", "rank": 2},
    ),
    "scale_first": SWITCH,
    "score_cap": (None, 0.5, 5.0),
    "tau": (1.0, 16.0),
    "value_discretization": projected.DISCRETISATIONS,
    "value_norm": attention.VALUE_NORMS,
    "width": (4, 9),
    "window": (None, 1, 3, 7),
}


def draw_mixer(draw: Draw, dtype: torch.dtype) -> Mixer | None:
    """Built under a default dtype of its own, as loaders do it, then in `dtype`. None where the options do not fit."""
    name = draw.one("mixer", maclaurin.available_mixers())
    draw.note("op", name)
    known = mixer_entry(name).options()
    options = {}
    for option in draw.sample(sorted(known), draw.randint(0, min(4, len(known)))):
        if isinstance(known[option], bool):
            options[option] = not known[option]
        elif option in VALUES:
            options[option] = draw.choice(VALUES[option])
    if options.get("rotary") == "selective" and draw.chance(0.5):
        options["rotary_options"] = draw.choice(VALUES["rotary_options"])
    draw.note("options", options)
    num_heads = draw.choice((1, 2, 3, 4))
    d_model = draw.note("d_model", num_heads * draw.choice((1, 2, 4, 6, 8)))
    causal = not (mixer_entry(name).mixer.bidirectional and draw.chance(0.1))
    torch.manual_seed(draw.randrange(2**31))
    torch.set_default_dtype(draw.one("built under", (torch.float32, torch.float32, torch.bfloat16, torch.float64)))
    try:
        return maclaurin.build_mixer(name, d_model, num_heads, causal=causal, **options).to(dtype).requires_grad_(False)
    except (ValueError, TypeError) as error:
        check_sentence(error)
        return None
    finally:
        torch.set_default_dtype(torch.float32)
