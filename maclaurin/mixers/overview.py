"""Facts about mixers, computed from the mixers themselves."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from maclaurin.mixers.base import Mixer, MixerState
from maclaurin.mixers.published import is_published, spelled_out
from maclaurin.mixers.registry import available_mixers, build_mixer, mixer_entry


def _attention_flops(q: Any, k: Any, v: Any, dropout_p: float = 0.0, is_causal: bool = False, **_: Any) -> int:
    """Counted from the shapes; for a causal call, only the visible pairs."""
    count = int(sdpa_flop_count(q, k, v))
    return count * (k[2] + 1) // (2 * k[2]) if is_causal else count


# torch counts its attention on every device but the CPU
ATTENTION_FLOPS = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops}


def overview(pattern: str, d_model: int, num_heads: int, lengths: Sequence[int]) -> list[dict[str, Any]]:
    """A row per mixer that matches the pattern: cost, state bytes by length, crossover, options, citation.

    Or of one row of the thesis, such as `paper-2/2Mamba`.
    """
    names = [pattern] if is_published(pattern) else available_mixers(pattern) or [mixer_entry(pattern).name]
    rows = []
    for name in names:
        registered, own = spelled_out(name, {})
        entry = mixer_entry(registered)
        mixer = build_mixer(registered, d_model, num_heads, **own)
        rows.append(
            {
                "name": name,
                "summary": entry.summary,
                "training": "O(T)" if mixer.finite_state else "O(T²)",
                "decoding": "constant" if mixer.finite_state else "grows",
                "state_nbytes": {str(length): mixer.state_nbytes(length) for length in lengths},
                "crossover": crossover_length(mixer),
                "options": entry.options() | own,
                "citation": entry.citation,
                "help": _help(entry.mixer),
            }
        )
    return rows


def explanation(name: str, d_model: int, num_heads: int, contexts: Sequence[int]) -> dict[str, Any]:
    """What there is to know about one mixer beside its row: maths, state, cost per token. The cost is counted, not timed."""
    registered, own = spelled_out(name, {})
    mixer = build_mixer(registered, d_model, num_heads, **own)
    counts = {context: _multiply_adds(mixer, context) for context in contexts}
    return {
        "maths": inspect.cleandoc(inspect.getmodule(type(mixer)).__doc__ or ""),
        "parameters": sum(parameter.numel() for parameter in mixer.parameters()),
        "bidirectional": mixer.bidirectional,
        "state": {tensor: list(x.shape[1:]) for tensor, x in _after(mixer, contexts[-1]).tensors().items()},
        "multiply_adds": {str(context): count for context, count in counts.items()},
    }


@torch.no_grad()
def _after(mixer: Mixer, context: int) -> MixerState:
    state: MixerState | None
    generator = torch.Generator().manual_seed(0)
    _, state = mixer(torch.randn(1, context, mixer.d_model, generator=generator, dtype=torch.float32, device="cpu"))
    assert state is not None
    return state


@torch.no_grad()
def _multiply_adds(mixer: Mixer, context: int) -> dict[str, int]:
    """Matrix products per token: in a forward pass over `context` tokens, and in one decoding step after them."""
    x = torch.zeros(1, context, mixer.d_model, dtype=torch.float32, device="cpu")
    with FlopCounterMode(display=False, custom_mapping=ATTENTION_FLOPS) as forward:
        _, state = mixer(x)
    with FlopCounterMode(display=False, custom_mapping=ATTENTION_FLOPS) as step:
        mixer(x[:, :1], state)
    return {"training": forward.get_total_flops() // (2 * context), "decoding": step.get_total_flops() // 2}


def _help(mixer: type[Mixer]) -> str:
    """What the class and its bases say of their options."""
    documented = [owner for owner in mixer.__mro__ if issubclass(owner, Mixer) and owner is not Mixer]
    return "\n".join(inspect.cleandoc(owner.__doc__ or "") for owner in documented)


def crossover_length(mixer: Mixer, softmax: Mixer | None = None) -> int | None:
    """The length from which on the state is no larger than the KV cache of softmax attention, of the same width unless
    given, or None. States that buffer tokens before folding them grow and shrink: the last crossing counts.
    """
    if not mixer.finite_state:
        return None
    softmax = softmax or build_mixer("softmax", mixer.d_model, mixer.num_heads, rotary="none")
    first = softmax.state_nbytes(1)
    token = softmax.state_nbytes(2) - first  # a cache grows by as much with every token
    length = 2 * mixer.state_nbytes(10**6) // token + 1  # surely beyond it
    while length > 1 and mixer.state_nbytes(length - 1) <= first + (length - 2) * token:
        length -= 1
    return length
