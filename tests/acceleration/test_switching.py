"""Acceleration is in force where it was asked for, and nowhere else."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import maclaurin
from maclaurin.acceleration import ARCHITECTURES, NotAccelerated
from maclaurin.ops.products import FasterLinear
from tests.acceleration.test_architectures import tokens
from tests.acceleration.tiny import TINY, tiny


def everything(module: Any) -> dict[str, Any]:
    """The names of a module, and those of its classes."""
    classes = {name: value for name, value in vars(module).items() if isinstance(value, type)}
    return dict(vars(module)) | {f"{c}.{name}": v for c, made in classes.items() for name, v in vars(made).items()}


@pytest.mark.parametrize("name", sorted(TINY))
def test_undo_restores_everything(name: str) -> None:
    module = sys.modules[type(tiny(name)).__module__]
    before, finders = everything(module), list(sys.meta_path)
    acceleration = maclaurin.accelerate_transformers()
    changed = {key for key, value in everything(module).items() if before[key] is not value}
    assert changed >= set(ARCHITECTURES[name].names)
    acceleration.undo()
    acceleration.undo()
    assert everything(module) == before
    assert sys.meta_path == finders


def test_the_last_of_several_to_be_undone_restores() -> None:
    module = sys.modules[type(tiny("mamba2")).__module__]
    theirs = module.mamba2_chunk_scan
    outer = maclaurin.accelerate_transformers()
    with maclaurin.accelerate_transformers():
        pass
    assert module.mamba2_chunk_scan is not theirs
    outer.undo()
    assert module.mamba2_chunk_scan is theirs


def test_projections_multiply_as_ours_do_until_undone() -> None:
    theirs = torch.nn.Linear.forward
    with maclaurin.accelerate_transformers():
        assert torch.nn.Linear.forward is FasterLinear.forward
    assert torch.nn.Linear.forward is theirs


def test_an_error_inside_restores() -> None:
    module = sys.modules[type(tiny("mamba2")).__module__]
    theirs = module.mamba2_chunk_scan
    with pytest.raises(KeyError), maclaurin.accelerate_transformers():
        raise KeyError
    assert module.mamba2_chunk_scan is theirs


def test_a_model_without_kernels_says_so() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=8)
    with maclaurin.accelerate_transformers(), pytest.warns(NotAccelerated, match="no kernels for 'llama'"):
        model = LlamaForCausalLM(config)
    with pytest.raises(ValueError, match="no kernels for 'llama'"):
        maclaurin.accelerate_transformers(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LlamaForCausalLM(config)


def test_a_model_with_a_linear_one_inside_is_covered() -> None:
    """Of those that see, the model of language is what has the kernels."""
    from transformers import Lfm2VlConfig, Lfm2VlForConditionalGeneration

    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_patches": 16,
    }
    config = Lfm2VlConfig(vision_config=vision, text_config=tiny("lfm2").config.to_dict())
    with maclaurin.accelerate_transformers(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = Lfm2VlForConditionalGeneration(config)
    assert not any("'lfm2" in str(warning.message) for warning in said)
    with maclaurin.accelerate_transformers(model):
        pass


def test_importing_alone_changes_nothing() -> None:
    program = """import sys, maclaurin.acceleration
print(any(type(finder).__module__.startswith("maclaurin.") for finder in sys.meta_path))"""
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300).stdout
    assert printed.strip() == "False"


def test_what_cannot_keep_documents_apart_refuses_them() -> None:
    positions = torch.tensor([[0, 1, 2, 0, 1]])
    with maclaurin.accelerate_transformers(), pytest.raises(ValueError, match="takes no packed batches"):
        tiny("glm5_next")(tokens(1, 5), position_ids=positions)


SCRIPT = """
import sys
from transformers.models.mamba2 import modeling_mamba2
in_force = modeling_mamba2.mamba2_chunk_scan.__code__.co_filename.startswith(sys.argv[1])
print("in force:", in_force, sys.argv[2:], "maclaurin" in sys.modules)
"""


@pytest.mark.parametrize("switch", ["run", "environment", "no", "off"])
def test_a_script_is_accelerated_from_outside(switch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    package = str(Path(maclaurin.__file__).parent)
    command = [sys.executable, str(script), package, "--flag", "1"]
    if switch == "run":
        command = [sys.executable, "-m", "maclaurin", "run", "--", *command[1:]]
    elif switch != "no":
        monkeypatch.setenv("MACLAURIN_ACCELERATE", "1" if switch == "environment" else "0")
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    expected = switch in ("run", "environment")
    assert f"in force: {expected} ['--flag', '1'] {expected}" in printed
