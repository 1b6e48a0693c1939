"""A decoder of transformers that was converted is served as models of this package are."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from maclaurin.convert import linearise
from maclaurin.data.tokenizer import byte_tokenizer
from tests.serving.http.conftest import alone, running


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    texts = {"vocab_size": 257, "bos_token_id": None, "eos_token_id": 256, "initializer_range": 0.3}
    path = tmp_path_factory.mktemp("converted") / "hybrid"
    linearise(LlamaForCausalLM(LlamaConfig(**sizes, **texts)), ["2mamba", "softmax"]).save_pretrained(path)
    byte_tokenizer().save_pretrained(path)
    return path


def test_a_converted_model_answers_many_and_keeps_sessions(converted):
    prompts = ["one", "a longer prompt than the first one", "x" * 90]
    with running(converted) as server, ThreadPoolExecutor() as pool:

        def ask(prompt):
            body = {"prompt": prompt, "max_tokens": 20, "temperature": 0}
            return server.ask("POST", "/v1/completions", body)[1]

        found = list(pool.map(ask, prompts))
        assert [one["choices"][0]["text"] for one in found] == [alone(server, prompt, 20) for prompt in prompts]
        assert all(one["usage"]["state_bytes"] > 0 for one in found)
        _, session = server.ask("POST", "/v1/sessions", {"prompt": prompts[1]})
        path, asked = f"/v1/sessions/{session['id']}/completions", {"max_tokens": 9, "temperature": 0}
        _, first = server.ask("POST", path, {"prompt": "", **asked})
        assert first["choices"][0]["text"] == alone(server, prompts[1], 9)
        _, second = server.ask("POST", path, {"prompt": " and", **asked})
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(prompts[1])
