"""The entry point that docs/serving-vllm.md shows, against a stub of vLLM's registry. vLLM itself is not run."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM

PAGE = Path(__file__).parents[2] / "docs" / "serving-vllm.md"


class Registry:
    """As vLLM documents it: names of architectures, and where their classes are."""

    def __init__(self):
        self.models = {}

    def get_supported_archs(self):
        return self.models.keys()

    def register_model(self, name, place):
        assert re.fullmatch(r"[\w.]+:\w+", place), "a string is imported when it is needed, a class would be at once"
        assert name not in self.models
        self.models[name] = place


def test_the_entry_point_registers_the_architecture_once(monkeypatch):
    registry, scope = Registry(), {}
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(ModelRegistry=registry))
    code = re.search(r"^    def register\(\):\n(?:     .*\n)+", PAGE.read_text(), re.MULTILINE)[0]
    exec(re.sub("^    ", "", code, flags=re.MULTILINE), scope)
    scope["register"]()
    scope["register"]()  # vLLM calls it in every process, and may call it again
    # the name under which config.json asks for it
    config = MaclaurinConfig.of_size("tiny", vocab_size=257, bos_token_id=None, eos_token_id=None, num_hidden_layers=1)
    assert list(registry.models) == [MaclaurinForCausalLM.__name__] and config.model_type == "maclaurin"


def test_states_of_first_order_have_one_shape_whatever_the_length():
    """What vLLM's slots ask for; those of second order do not."""
    from maclaurin import build_mixer

    for name, fixed in (("gla", True), ("mamba2", True), ("gated-delta", True), ("2mamba", False)):
        mixer = build_mixer(name, 64, 2)
        assert (mixer.state_nbytes(10) == mixer.state_nbytes(5000)) is fixed
