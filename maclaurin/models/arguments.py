"""Keyword arguments of a model's call: what callers in transformers, TRL and peft pass is known, the rest is a mistake."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from maclaurin.common.choices import near_miss

# generate, Trainer and collators pass them to every model; here they say nothing that other arguments do not
WITHOUT_EFFECT = frozenset(
    ("cache_position", "cu_seq_lens_k", "max_length_k", "max_length_q", "num_items_in_batch", "token_type_ids")
)
OF_GENERATE = ("tokenizer", "assistant_tokenizer")  # generate reads them, and hands them on with the model's own
IMPOSSIBLE = {
    "output_attentions": (True, "mixers have no matrix of attention weights to return"),
    "output_hidden_states": (True, "this model does not return them"),
    "output_router_logits": (True, "there are no experts to route to"),
    "is_causal": (False, "a language model sees only what came before"),
}


def refuse_unknown(given: dict[str, Any], *calls: Callable[..., Any]) -> None:
    """Refuses what is left over of a call's keyword arguments. calls: whose parameters may have been meant."""
    for name, value in given.items():
        if name == "kwargs" and isinstance(value, dict):  # pipelines of transformers pass the parameter of that name by name
            refuse_unknown({one: value[one] for one in value if one != "return_dict"}, *calls)
        elif name in IMPOSSIBLE:
            refused, why = IMPOSSIBLE[name]
            if value is refused:
                raise ValueError(f"{name} must not be {value}: {why}")
        elif name not in WITHOUT_EFFECT:
            known = [parameter for call in calls for parameter in inspect.signature(call).parameters]
            raise TypeError(f"unknown argument {name!r}{near_miss(name, known)}")
