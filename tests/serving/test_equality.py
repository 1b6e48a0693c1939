"""What a sequence gets does not depend on the crowd it runs in: joins, leaves, forks, prefixes, cancelled neighbours."""

import random

import pytest

from maclaurin.mixers import available_mixers
from maclaurin.models.lighter import lighter
from maclaurin.serving import Engine, PrefixCache, Sampling
from tests.serving.crowd import VOCABULARY, alone, converted_model, crowd, is_greedy, prompt_of, small_model

HYBRIDS = [["softmax", "2mamba"], ["sliding-window", "gla"], ["mamba2", "fox"]]

# the families differ in their windows and norms; window: of students, beside which the far tokens are linear
CONVERTED = {
    "llama": {"students": ["2mamba", "softmax"]},
    "mistral": {"students": ["softmax", "hedgehog"], "sliding_window": 11, "num_features": 16},
    "qwen2": {"students": ["taylor", "elu"]},
    "qwen3": {"students": ["taylor", "sliding-window"], "window": 8},
}


def check(model, found):
    for request, seen in found:
        assert request.finish_reason in ("length", "cancelled")
        assert is_greedy(model, seen, request.output)
        if request.state is not None:
            assert request.state.get_seq_length() == len(seen) + max(0, len(request.output) - 1)
    assert sum(request.finish_reason == "length" for request, _ in found) > len(found) / 2


@pytest.mark.parametrize("mixer", ["2mamba", "2mamba-orders", "gla", "taylor", *HYBRIDS], ids=str)
def test_each_of_a_crowd_gets_what_it_gets_alone(mixer):
    model = small_model(mixer)
    check(model, crowd(model, 12, most=24))


@pytest.mark.parametrize("mixer", ["2mamba", "2mamba-orders"])
def test_each_of_a_crowd_gets_what_it_gets_alone_from_states_in_bfloat16(mixer):
    """Which tokens are rounded depends on how many came before them, and on nothing else."""
    model = lighter(small_model(mixer), state_dtype="bfloat16")
    rng = random.Random(0)
    head = [rng.randrange(VOCABULARY) for _ in range(40)]
    jobs = [(head[: rng.choice([0, 40])] + prompt_of(rng, [[]], 60), Sampling(rng.randint(30, 90))) for _ in range(12)]
    engine = Engine(model, max_active=5, prefill_tokens=24, prefixes=PrefixCache(2**26, block=8))
    requests = []
    for prompt, sampling in jobs:
        requests.append(engine.submit(prompt, sampling))
        for _ in range(rng.choice([0, 1, 9])):
            engine.step()
    engine.run()
    for (prompt, sampling), request in zip(jobs, requests, strict=True):
        one = Engine(model)
        expected = one.submit(prompt, sampling)
        one.run()
        assert request.output == expected.output
        if mixer == "2mamba":  # whose single steps are rounded as well
            assert request.output == alone(model, prompt, sampling.max_tokens)


@pytest.mark.parametrize("family", CONVERTED)
def test_each_of_a_crowd_gets_what_it_gets_alone_from_a_converted_model(family):
    model = converted_model(family, **CONVERTED[family])
    check(model, crowd(model, 12, most=24))


@pytest.mark.slow
@pytest.mark.parametrize("family", CONVERTED)
def test_each_of_two_hundred_gets_what_it_gets_alone_from_a_converted_model(family):
    model = converted_model(family, **CONVERTED[family])
    check(model, crowd(model, 200, seed=1))


@pytest.mark.slow
@pytest.mark.parametrize("mixer", [*available_mixers(), *HYBRIDS], ids=str)
def test_each_of_two_hundred_gets_what_it_gets_alone(mixer):
    model = small_model(mixer)
    check(model, crowd(model, 200, seed=1))


def test_samples_do_not_depend_on_the_crowd():
    model, rng = small_model("2mamba"), random.Random(0)
    sampling = Sampling(20, temperature=1.0, top_p=0.9, top_k=30, seed=5)
    outputs = []
    for others in (0, 5):
        engine = Engine(model)
        request = engine.submit([1, 2, 3], sampling)
        for _ in range(others):
            engine.submit([rng.randrange(VOCABULARY) for _ in range(30)], Sampling(30, temperature=1.0))
        engine.run()
        outputs.append(request.output)
    assert outputs[0] == outputs[1]
