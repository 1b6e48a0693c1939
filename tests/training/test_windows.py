"""The stochastic window: as often as asked, never at the end, the same everywhere, and only while a step trains."""

import json
import math

import pytest
import torch
from transformers import AutoModelForCausalLM

from maclaurin.mixers.attention import Attention
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM
from maclaurin.training import Recipe, train
from maclaurin.training import run as run_module
from maclaurin.training.callbacks import StochasticWindow
from maclaurin.training.trainer import LanguageTrainer
from maclaurin.training.windows import WindowSchedule, own_windows
from tests.training.test_train import assert_same_weights, weights

STEPS = 10
SHORT, LONG = 4, 9
FIRST_DRAWS = "slsssssllsslslsl"  # of seed 0 at p = 0.5, wherever and whenever they are made


def recipe(folder, **fields):
    fields = {"length": 16, "batch_size": 1, "steps": STEPS, "eval_rows": 2, "warmup_steps": 2, "track": "none", **fields}
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2}
    swax = {
        "mixer": "mlstm,sliding-window",
        "mixer_options": json.dumps({"sliding-window": {"window": LONG}}),
        "short_window": SHORT,
    }
    return Recipe(**{"output": str(folder / "run"), "corpus": str(folder / "text"), **sizes, **swax, **fields})


@pytest.mark.parametrize("probability", [0.25, 0.5, 0.75, 1.0])
def test_the_short_window_comes_as_often_as_asked_and_never_at_the_end(probability):
    """0.9·p of all steps, within four standard deviations of the binomial."""
    steps = 20_000
    schedule = WindowSchedule(128, probability, steps, seed=3)
    draws = [schedule.is_short(step) for step in range(steps)]
    deviation = math.sqrt(0.9 * steps * probability * (1 - probability))
    assert abs(sum(draws) - 0.9 * steps * probability) <= 4 * deviation
    assert not any(draws[int(0.9 * steps) :])
    assert draws[int(0.9 * steps) - 100 : int(0.9 * steps)].count(True) > 0


def test_draws_depend_on_seed_and_step_alone():
    """Not on the state of any generator, on the steps before, or on the process: all ranks have these."""
    schedule = WindowSchedule(128, 0.5, 1000, seed=0)
    draws = [schedule.is_short(step) for step in range(16)]
    torch.manual_seed(7)
    assert [schedule.is_short(step) for step in reversed(range(16))] == draws[::-1]
    assert "".join("sl"[not short] for short in draws) == FIRST_DRAWS
    assert [WindowSchedule(128, 0.5, 1000, seed=1).is_short(step) for step in range(16)] != draws


def watched(monkeypatch):
    """(training, window) of every forward of a windowed layer."""
    seen = []
    forward = Attention.forward

    def record(self, *args, **kwargs):
        seen.append((self.training, self.window))
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(Attention, "forward", record)
    return seen


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_all_layers_share_the_draw_and_evaluation_has_the_long_window(
    folder,
    monkeypatch,
    accumulation,
    gradient_checkpointing,
):
    seen = watched(monkeypatch)
    fields = recipe(folder, accumulation=accumulation, gradient_checkpointing=gradient_checkpointing)
    train(fields)
    schedule = WindowSchedule(SHORT, 0.5, STEPS, seed=0)
    windows = [SHORT if schedule.is_short(step) else LONG for step in range(STEPS)]
    assert SHORT in windows and LONG in windows[: STEPS - 1]
    calls = 2 * accumulation * (1 + gradient_checkpointing)  # two windowed layers
    assert [window for training, window in seen if training] == [window for window in windows for _ in range(calls)]
    assert {window for training, window in seen if not training} == {LONG}
    for path in (folder / "run", *(folder / "run").glob("checkpoint-*")):
        saved = AutoModelForCausalLM.from_pretrained(path)
        assert set(own_windows(saved).values()) == {LONG}


def test_a_resumed_run_has_the_same_draws(folder, monkeypatch):
    """Bit for bit the weights of an undisturbed run, which no other sequence of windows gives."""
    train(recipe(folder))
    expected = weights(folder)
    (folder / "run").rename(folder / "undisturbed")

    class Dies(LanguageTrainer):
        def training_step(self, *args, **kwargs):
            if self.state.global_step == 5:
                raise RuntimeError("power cut")
            return super().training_step(*args, **kwargs)

    monkeypatch.setattr(run_module, "LanguageTrainer", Dies)
    with pytest.raises(RuntimeError, match="power cut"):
        train(recipe(folder))
    monkeypatch.setattr(run_module, "LanguageTrainer", LanguageTrainer)
    train(recipe(folder), resume=True)
    assert_same_weights(weights(folder), expected)
    train(recipe(folder, short_window=0, output=str(folder / "other")))
    never_short = AutoModelForCausalLM.from_pretrained(folder / "other").state_dict()
    assert any(not torch.equal(never_short[name], expected[name]) for name in expected)


def test_a_step_leaves_every_layer_its_own_window():
    model = MaclaurinForCausalLM(
        MaclaurinConfig.of_size(
            "tiny", vocab_size=20, mixer=["sliding-window", "softmax"], mixer_options={"sliding-window": {}}
        )
    )
    model.model.layers[2].mixer.window = 64
    callback = StochasticWindow(WindowSchedule(8, 1.0, 10, seed=0), model)

    class State:
        global_step = 0

    callback.on_step_begin(None, State, None)
    assert [layer.mixer.window for layer in model.model.layers] == [8, None, 8, None]
    callback.on_step_end(None, State, None)
    assert [layer.mixer.window for layer in model.model.layers] == [128, None, 64, None]


def test_mixers_with_commas_are_a_pattern():
    recipe = Recipe(mixer="mlstm,sliding-window", short_window=32)
    assert recipe.config(vocab_size=9).layer_mixers() == ["mlstm", "sliding-window"] * 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"short_window": -1}, "short_window must not be negative"),
        ({"short_window_probability": 1.5}, "short_window_probability must lie between 0 and 1, got 1.5"),
        ({"long_window_end": -0.1}, "long_window_end must lie between 0 and 1"),
        ({"mixer": "2mamba", "mixer_options": "{}"}, "short_window needs a layer with a window"),
        ({"short_window": LONG + 1}, f"short_window must not be above the layers' own window of {LONG}, got {LONG + 1}"),
    ],
)
def test_bad_schedules(folder, fields, message):
    with pytest.raises(ValueError, match=message):
        train(recipe(folder, **fields))
