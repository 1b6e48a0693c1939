"""An engine takes requests from any thread, refuses what it cannot run, and gives back all that it was given."""

import pytest
import torch

from maclaurin.models import StateCache
from maclaurin.serving import Engine, PrefixCache, QueueFull, Sampling
from tests.convert.conftest import build
from tests.serving.crowd import VOCABULARY, alone, converted_model, small_model


@pytest.fixture(scope="module")
def model():
    return small_model(["2mamba", "sliding-window"])


def test_requests_of_a_thread_end_and_a_closed_engine_takes_none(model):
    engine, seen = Engine(model), []
    engine.start()
    request = engine.submit([1, 2, 3], Sampling(5), on_token=lambda one: seen.append((len(one.output), one.done)))
    assert engine.result(request, 60) == alone(model, [1, 2, 3], 5)
    assert [count for count, _ in seen][:5] == [1, 2, 3, 4, 5] and seen[-1] == (5, True)
    endless = engine.submit([1], Sampling(10**6))
    engine.close()
    assert endless.finish_reason == "cancelled"
    with pytest.raises(RuntimeError, match="closed"):
        engine.submit([1])


def test_a_full_queue_and_states_that_are_too_large_are_refused(model):
    engine = Engine(model, queue=2, max_bytes=model.model.layers[0].mixer.state_nbytes(4096) * 4)
    for _ in range(2):
        engine.submit([1], Sampling(3))
    with pytest.raises(QueueFull, match="2 requests wait already"):
        engine.submit([1], Sampling(3))
    engine.run()
    small = Engine(model, max_bytes=1000)
    with pytest.raises(ValueError, match="max_bytes=1000"):
        small.submit([1] * 500)


@pytest.mark.parametrize("tokens", [[], [VOCABULARY], [-1], ["a"], [True]])
def test_tokens_that_are_none_are_refused(model, tokens):
    with pytest.raises(ValueError, match="tokens must"):
        Engine(model).submit(tokens)


def test_a_stop_token_is_the_last_one(model):
    output = alone(model, [5, 6], 10)
    engine = Engine(model)
    request = engine.submit([5, 6], Sampling(10, stop_tokens=(output[3],)))
    engine.run()
    assert request.output == output[: output.index(output[3]) + 1] and request.finish_reason == "stop"


def test_logits_that_are_not_finite_end_a_request_alone(model):
    broken = small_model("gla")
    with torch.no_grad():
        broken.model.embed_tokens.weight[7] = torch.nan
    engine = Engine(broken)
    requests = [engine.submit([token], Sampling(4)) for token in (7, 8)]
    engine.run()
    assert [request.finish_reason for request in requests] == ["error", "length"]
    with pytest.raises(RuntimeError, match="not finite"):
        engine.result(requests[0])


def test_a_session_goes_on_from_its_file(model, tmp_path):
    engine = Engine(model)
    request = engine.submit([1, 2, 3], Sampling(30), keep_state=True)
    engine.run()
    request.state.save(tmp_path / "session.safetensors")
    state = StateCache.load(tmp_path / "session.safetensors")
    new = [*request.unread, 9, 8]
    again = engine.submit(new, Sampling(6), state=state)
    engine.run()
    assert again.output == alone(model, [1, 2, 3, *request.output, 9, 8], 6)
    (tmp_path / "other.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="is not a file of saved states"):
        StateCache.load(tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="StateCache of one sequence"):
        engine.submit([1], state=state.select([0, 0]))


def test_prefixes_survive_in_a_folder_within_their_bounds(model, tmp_path):
    head = [token % VOCABULARY for token in range(50)]
    for reused in (0, 48):  # the second engine is that of another process
        engine = Engine(model, prefixes=PrefixCache(10**6, block=8, folder=tmp_path))
        request = engine.submit([*head, 3], Sampling(4))
        engine.run()
        assert request.reused == reused and request.output == alone(model, [*head, 3], 4)
        engine.prefixes.save()
    other = Engine(small_model("gla", seed=1), prefixes=PrefixCache(10**6, block=8, folder=tmp_path))
    request = other.submit([*head, 3], Sampling(1))
    other.run()
    assert request.reused == 0
    tight = PrefixCache(10**6, block=8, folder=tmp_path / "tight", max_disk_bytes=1)
    engine = Engine(model, prefixes=tight)
    engine.submit([*head, 3], Sampling(4))
    engine.run()
    tight.save()
    assert tight.stats()["prefix_disk_bytes"] == 0


def test_a_long_prompt_makes_nobody_wait(model):
    engine = Engine(model, prefill_tokens=16)
    short = engine.submit([1], Sampling(20))
    engine.step()
    engine.submit([2] * 300, Sampling(1))
    for _ in range(10):
        engine.step()
    assert len(short.output) == 11 + 1


def test_the_size_that_is_shown_is_that_of_the_state():
    engine = Engine(small_model(["softmax", "gla"]))
    for tokens in (1, 2, 63, 64, 65, 100):
        request = engine.submit([1] * tokens, Sampling(1), keep_state=True)
        engine.run()
        assert engine.state_nbytes_about(tokens) == request.state.nbytes <= engine.state_nbytes(tokens)


def test_a_converted_model_knows_the_size_and_the_layout_of_its_states():
    converted = converted_model("mistral", ["2mamba", "softmax"], sliding_window=11)
    engine = Engine(converted)
    requests = [engine.submit([1, 2, 3] * 20, Sampling(4), keep_state=True) for _ in range(2)]
    engine.run()
    # 63 tokens, and their sizes are found for as many as 64: both layers keep no more
    assert requests[0].state.nbytes <= engine.state_nbytes(63) <= 1.1 * requests[0].state.nbytes
    other = Engine(converted_model("qwen2", ["2mamba", "softmax"]))
    assert other.submit([1], state=requests[0].state)
    with pytest.raises(ValueError, match="made with the same heads and channels"):
        Engine(converted_model("llama", ["taylor", "hedgehog"])).submit([1], state=requests[0].state)
    with pytest.raises(ValueError, match="tokens must hold"):
        other.submit([])


def test_a_model_without_states_is_refused():
    with pytest.raises(ValueError, match="`maclaurin convert` made, got a LlamaForCausalLM"):
        Engine(build("llama"))
