"""A mixer behind a context: the bytes of its state, counted and predicted, and one token more, counted and timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from maclaurin.common.timing import Timing, interleaved
from maclaurin.mixers import build_mixer
from maclaurin.mixers.base import Mixer, MixerState

STEPS = 32  # in a row: each has one fold of tokens into the memory


@dataclass(frozen=True)
class Cost:
    """Of one token behind a context. nbytes: of the real tensors. predicted_nbytes: what the mixer says. ms: quartiles."""

    context: int
    nbytes: int
    predicted_nbytes: int
    multiply_adds: int
    ms: Timing


@torch.no_grad()
def states(mixer: Mixer, contexts: Sequence[int], seed: int) -> dict[int, MixerState]:
    """The state behind each context, of one sequence of random tokens."""
    generator = torch.Generator().manual_seed(seed)
    found: dict[int, MixerState] = {}
    state: MixerState | None = None
    done = 0
    for context in sorted(contexts):
        _, state = mixer(
            torch.randn(1, context - done, mixer.d_model, generator=generator, dtype=torch.float32, device="cpu"), state
        )
        assert state is not None
        found[context], done = state, context
    return found


def multiply_adds(mixer: Mixer, state: MixerState) -> int:
    """Of one token more: each weight of a matrix once; a kept number once a query head that reads it; a number of a
    memory once when it is written, and once a query head when it is read.
    """
    grouped = mixer.num_heads // getattr(mixer, "num_kv_heads", mixer.num_heads)
    total = sum(parameter.numel() for parameter in mixer.parameters() if parameter.dim() > 1)
    for name, tensor in state.tensors().items():
        kind = name.rsplit(".", 1)[-1]
        if kind == "memory":
            total += (1 + grouped) * tensor.numel()
        elif kind in ("keys", "values") and not name.startswith("conv"):
            total += grouped * tensor.numel()
    return total


@torch.no_grad()
def times(behind: dict[tuple[Mixer, int], MixerState], seconds: float) -> dict[tuple[Mixer, int], Timing]:
    """Milliseconds a token of each mixer behind each context, all taking turns, so that what else the machine does meets
    them alike. Each turn starts from the same state.
    """

    def in_a_row(mixer: Mixer, start: MixerState) -> Callable[[], None]:
        token = torch.zeros(1, 1, mixer.d_model, dtype=torch.float32, device="cpu")

        def run() -> None:
            state: MixerState | None = start.clone()
            for _ in range(STEPS):
                _, state = mixer(token, state)

        return run

    keys = {str(index): key for index, key in enumerate(behind)}
    runs: dict[str, Callable[[], object]] = {name: in_a_row(key[0], behind[key]) for name, key in keys.items()}
    found = interleaved(runs, seconds=seconds, fewest=3, most=15)
    return {keys[name]: Timing(t.median / STEPS, t.low / STEPS, t.high / STEPS) for name, t in found.items()}


def costs(
    names: Sequence[str], contexts: Sequence[int], *, dim: int, heads: int, seed: int, seconds: float
) -> dict[str, list[Cost]]:
    """By mixer, what a token costs behind each context. seconds: of timing a context."""
    torch.manual_seed(seed)
    mixers = {name: build_mixer(name, dim * heads, heads) for name in names}
    behind = {
        (mixer, context): state for mixer in mixers.values() for context, state in states(mixer, contexts, seed).items()
    }
    timed = times(behind, seconds * len(contexts))

    def cost(mixer: Mixer, context: int) -> Cost:
        state = behind[mixer, context]
        sizes = (_nbytes(state), mixer.state_nbytes(context), multiply_adds(mixer, state))
        return Cost(context, *sizes, timed[mixer, context])

    return {name: [cost(mixer, context) for context in sorted(contexts)] for name, mixer in mixers.items()}


def _nbytes(state: MixerState) -> int:
    """Of all its tensors, counted one by one."""

    def size(tensor: Tensor) -> int:
        return tensor.numel() * tensor.element_size()

    return sum(map(size, state.tensors().values()))
