"""Decoding without waiting for the device: steps that look at no number, and steps on memory that stays in place."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from maclaurin import available_mixers
from maclaurin.models import DecodeGraph
from tests.models.test_generate import small
from tests.ops.test_off_cpu import Launches


@pytest.mark.parametrize("mixer", available_mixers())
@pytest.mark.parametrize("padded", [False, True])
def test_a_step_of_generate_looks_at_no_number(mixer, padded):
    """Between two sampled tokens nothing waits for the device."""
    model = small(mixer).to("meta")
    ids, mask = torch.ones(2, 12, dtype=torch.long, device="meta"), torch.ones(2, 12, dtype=torch.long, device="meta")
    with torch.no_grad():
        cache = model(ids, attention_mask=mask if padded else None).past_key_values
        with Launches():
            call = {"past_key_values": cache, "attention_mask": torch.cat([mask, mask[:, :1]], 1), "use_cache": True}
            inputs = model.prepare_inputs_for_generation(ids[:, :1], next_sequence_length=1, **call)
            logits = model(**inputs).logits
    assert inputs["attention_mask"] is None
    assert logits.shape == (2, 1, 50)


@pytest.mark.parametrize(
    ("mixer", "first"), [("2mamba", 2), ("mamba2", 1), ("gla", 1), ("delta", 1), ("sliding-window", 3), ("softmax", None)]
)
def test_steps_on_static_memory_are_those_of_the_model(mixer, first):
    """first: the step from which on the state has one shape, and would be captured."""
    model = small(mixer)
    prompt, new = torch.randint(1, 50, (2, 4)), torch.randint(1, 50, (2, 9))
    with torch.no_grad():
        expected = model(torch.cat([prompt, new], 1), use_cache=False).logits[:, 4:]
        graph = DecodeGraph(model, model(prompt).past_key_values)
    ready = None
    for t in range(9):
        logits = graph.step(new[:, t : t + 1])
        torch.testing.assert_close(logits, expected[:, t], rtol=1e-4, atol=1e-4)
        if graph.replay is not None and ready is None:
            ready, places = t + 1, [x.data_ptr() for layer in graph.cache.layers for x in layer.state.tensors().values()]
    assert ready == first
    if first is not None:
        assert places == [x.data_ptr() for layer in graph.cache.layers for x in layer.state.tensors().values()]
    assert graph.cache.get_seq_length() == 13


@pytest.mark.slow
def test_a_compiled_model_has_no_more_graphs_once_its_state_has_one_shape():
    torch._dynamo.reset()
    model = small("2mamba")
    counter = CompileCounterWithBackend("aot_eager")
    prompt, new = torch.randint(1, 50, (2, 4)), torch.randint(1, 50, (2, 6))
    with torch.no_grad():
        expected = model(torch.cat([prompt, new], 1), use_cache=False).logits[:, 4:]
        graph = DecodeGraph(torch.compile(model, backend=counter), model(prompt).past_key_values)
    made = []
    for t in range(6):
        torch.testing.assert_close(graph.step(new[:, t : t + 1]), expected[:, t], rtol=1e-4, atol=1e-4)
        made.append(counter.frame_count)
    assert graph.replay is not None and made[2] == made[-1] <= 3, made


def test_a_graph_needs_a_prompt():
    model = small("gla")
    cache = model(torch.ones(1, 3, dtype=torch.long)).past_key_values
    with pytest.raises(ValueError, match=r"ids must have shape \(batch, 1\), got \(1, 2\)"):
        DecodeGraph(model, cache).step(torch.ones(1, 2, dtype=torch.long))
    cache.reset()
    with pytest.raises(ValueError, match="cache must hold the state of at least one token"):
        DecodeGraph(model, cache)
