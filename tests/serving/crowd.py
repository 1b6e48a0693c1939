"""A crowd of requests that come, leave, fork and are cancelled at random, and what each of them gets alone."""

from __future__ import annotations

import random
from typing import Any

import torch

from maclaurin.convert import linearise
from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM, StateCache
from maclaurin.serving import Engine, PrefixCache, Request, Sampling
from tests.convert.conftest import build

VOCABULARY = 61


def small_model(mixer: str | list[str], seed: int = 0, **options: Any) -> MaclaurinForCausalLM:
    """Two layers whose recurrent states are smaller than the prompts: they fold early."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = MaclaurinConfig(
        **sizes, vocab_size=VOCABULARY, mixer=mixer, bos_token_id=None, eos_token_id=None, mixer_options=options or None
    )
    return MaclaurinForCausalLM(config).eval()


def converted_model(family: str, students: list[str], **options: Any) -> Any:
    """A decoder of transformers with these students in place of its attention. Its source may have a window."""
    source = build(family).eval()
    source.config.sliding_window = options.pop("sliding_window", None)
    return linearise(source, students, options)


@torch.inference_mode()
def alone(model: Any, prompt: list[int], count: int) -> list[int]:
    """The greedy continuation, one prompt and one token at a time."""
    cache, output, ids = StateCache(model.config.num_hidden_layers), [], prompt
    for _ in range(count):
        logits = model(torch.tensor([ids]), past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        ids = [int(logits[0, -1].argmax())]
        output += ids
    return output


@torch.inference_mode()
def is_greedy(model: Any, prompt: list[int], output: list[int]) -> bool:
    """Whether it is the continuation that the prompt gets alone: each token is the likeliest after those before it, in one
    call without a state. Where two are so close that the forms round them differently, one token at a time decides."""
    if not output:
        return True
    logits = model(torch.tensor([prompt + output[:-1]]), use_cache=False).logits[0]
    return logits[len(prompt) - 1 :].argmax(-1).tolist() == output or alone(model, prompt, len(output)) == output


def prompt_of(rng: random.Random, heads: list[list[int]], longest: int) -> list[int]:
    return rng.choice(heads) + [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, longest))]


def crowd(
    model: Any, requests: int, seed: int = 0, longest: int = 60, most: int = 40, **options: Any
) -> list[tuple[Request, list[int]]]:
    """Requests that were finished or cancelled, each with all tokens that its output follows."""
    rng = random.Random(seed)
    heads = [[], [rng.randrange(VOCABULARY) for _ in range(longest)], [rng.randrange(VOCABULARY) for _ in range(17)]]
    engine = Engine(model, max_active=7, prefill_tokens=24, prefixes=PrefixCache(2**26, block=8), **options)
    found: list[tuple[Request, list[int]]] = []
    for _ in range(requests):
        before = [(request, seen) for request, seen in found if request.done and request.state is not None]
        sampling = Sampling(rng.randint(1, most))
        if before and rng.random() < 0.3:  # goes on from an earlier one, as often as it comes
            earlier, seen = rng.choice(before)
            new = [*earlier.unread, *prompt_of(rng, [[]], 9)]
            request = engine.submit(new, sampling, state=earlier.state, keep_state=rng.random() < 0.5)
            found.append((request, seen + earlier.output[:-1] + new))
        else:
            prompt = prompt_of(rng, heads, longest)
            found.append((engine.submit(prompt, sampling, keep_state=rng.random() < 0.5), prompt))
        for _ in range(rng.choice([0, 0, 1, 5])):
            engine.step()
        if rng.random() < 0.1:
            engine.cancel(rng.choice(found)[0])
    engine.run()
    assert engine.stats()["active"] == engine.stats()["state_bytes"] == 0
    return found
