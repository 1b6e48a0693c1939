"""What one more token costs after a long context: the mixers of all layers, in one process and in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from maclaurin.common.timing import Timing, interleaved
from maclaurin.training.model_size import layers
from maclaurin.training.recipe import Recipe

CONTEXT = 16384  # tokens
PREFILL = 2048  # tokens at a time
STEPS = 32  # consecutive ones are timed together: a state that is folded now and then is folded in each


@torch.no_grad()
def decoding(recipes: Mapping[str, Recipe], *, seconds: float = 8.0) -> dict[str, Timing]:
    """Milliseconds of one decoding step after 16k tokens on one thread, over turns that all of them take."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine several would measure their synchronisation
    try:
        turns: dict[str, Callable[[], object]] = {name: _Steps(recipe).run for name, recipe in recipes.items()}
        return {
            name: Timing(found.median / STEPS, found.low / STEPS, found.high / STEPS)
            for name, found in interleaved(turns, seconds=seconds).items()
        }
    finally:
        torch.set_num_threads(before)


class _Steps:
    """The mixers of a model after so many tokens; layers of one kind are one mixer with several states."""

    def __init__(self, recipe: Recipe) -> None:
        torch.manual_seed(0)
        width = recipe.config().hidden_size
        x = torch.randn(1, CONTEXT, width, dtype=torch.float32, device="cpu")
        self.token = torch.randn(1, 1, width, dtype=torch.float32, device="cpu")
        self.layers = []
        for mixer, count in layers(recipe, "cpu"):
            state = None
            for start in range(0, CONTEXT, PREFILL):
                _, state = mixer(x[:, start : start + PREFILL], state)
            assert state is not None
            self.layers.append((mixer, [state.clone() for _ in range(count)]))

    def run(self) -> None:
        for _ in range(STEPS):
            for mixer, states in self.layers:
                for place, state in enumerate(states):
                    _, states[place] = mixer(self.token, state)
