"""OpenAI's own client: what it sends is honoured, and what it gets is in its format."""

import pytest

from tests.serving.http.conftest import alone

openai = pytest.importorskip("openai")
GREEDY = {"model": "tiny", "temperature": 0, "max_tokens": 12}
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


def test_a_completion_is_what_the_model_says_alone(server):
    answer = server.client().completions.create(prompt="12 green", **GREEDY)
    (choice,) = answer.choices
    assert choice.text == alone(server, "12 green", 12) and choice.finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (8, 12, 20)
    assert answer.usage.state_bytes > 0 and answer.usage.kv_cache_bytes == 20 * 2 * 2 * 32 * 4


def test_a_chat_is_what_the_model_says_after_its_template(server):
    answer = server.client().chat.completions.create(messages=CHAT, **GREEDY)
    said = alone(server, "system: Be brief.\nuser: Hello\nassistant: ", 12)
    assert answer.choices[0].message.content == said and answer.choices[0].message.role == "assistant"


def test_a_stream_is_the_same_answer_in_pieces(server):
    client = server.client()
    whole = client.chat.completions.create(messages=CHAT, **GREEDY)
    chunks = list(client.chat.completions.create(messages=CHAT, stream=True, **GREEDY))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "length"
    assert len({chunk.id for chunk in chunks}) == 1 and all(chunk.usage is None for chunk in chunks)
    with_usage = {"stream": True, "stream_options": {"include_usage": True}}
    *_, last = client.chat.completions.create(messages=CHAT, **with_usage, **GREEDY)
    assert not last.choices and last.usage.total_tokens == whole.usage.total_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_text_before_it(server, stream):
    client = server.client()
    text = client.completions.create(prompt="12 green", **GREEDY).choices[0].text
    stop = next(
        text[i : i + 2] for i in range(3, len(text) - 2) if text[i : i + 2].isprintable() and text.find(text[i : i + 2]) == i
    )
    answer = client.completions.create(prompt="12 green", stop=[stop, "never"], stream=stream, **GREEDY)
    chunks = list(answer) if stream else [answer]
    assert "".join(chunk.choices[0].text for chunk in chunks) == text[: text.index(stop)]
    assert chunks[-1].choices[0].finish_reason == "stop"
    if not stream:
        assert answer.usage.completion_tokens < 12


def test_n_choices_with_a_seed_are_different_and_always_the_same(server):
    client, options = server.client(), {"prompt": "a", "model": "tiny", "max_tokens": 12, "seed": 5, "temperature": 1.5}
    several = client.completions.create(n=3, **options)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    texts = [choice.text for choice in several.choices]
    assert len(set(texts)) == 3 and several.usage.prompt_tokens == 1 and several.usage.completion_tokens == 36
    assert [choice.text for choice in client.completions.create(n=3, **options).choices] == texts
    assert client.completions.create(**{**options, "seed": 6}).choices[0].text == texts[1]
    streamed = dict.fromkeys(range(3), "")
    for chunk in client.completions.create(n=3, stream=True, **options):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert list(streamed.values()) == texts


def test_top_k_of_one_is_greedy_whatever_the_temperature(server):
    greedy = server.client().completions.create(prompt="ab", **GREEDY).choices[0].text
    options = {**GREEDY, "temperature": 2.0, "extra_body": {"top_k": 1}}
    assert server.client().completions.create(prompt="ab", **options).choices[0].text == greedy
    assert (
        server.client().completions.create(prompt="ab", **{**GREEDY, "temperature": 2.0, "top_p": 1e-9}).choices[0].text
        == greedy
    )


def test_several_prompts_as_texts_and_as_tokens(server):
    client = server.client()
    texts = client.completions.create(prompt=["ab", "xyz"], **GREEDY).choices
    tokens = client.completions.create(prompt=[[97, 98], [120, 121, 122]], **GREEDY).choices
    assert [choice.text for choice in texts] == [choice.text for choice in tokens]
    assert texts[1].text == client.completions.create(prompt="xyz", **GREEDY).choices[0].text


def test_an_answer_that_was_begun_is_continued(server):
    client = server.client()
    begun = client.chat.completions.create(messages=CHAT, **{**GREEDY, "max_tokens": 6}).choices[0].message.content
    messages = [*CHAT, {"role": "assistant", "content": begun}]
    more = client.chat.completions.create(messages=messages, **{**GREEDY, "max_tokens": 6}).choices[0].message.content
    if "\ufffd" not in begun:
        assert begun + more == client.chat.completions.create(messages=CHAT, **GREEDY).choices[0].message.content


def test_the_responses_api_comes_from_transformers_through_the_seam(server):
    client, options = (
        server.client(),
        {"model": "tiny", "instructions": "Be brief.", "input": "Hello", "max_output_tokens": 12},
    )
    said = client.chat.completions.create(messages=CHAT, **GREEDY).choices[0].message.content
    assert client.responses.create(temperature=0, **options).output_text == said
    events = list(client.responses.create(temperature=0, stream=True, **options))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == said
    # each request has options of its own
    assert client.responses.create(temperature=2, **options).output_text != said
    assert client.responses.create(temperature=0, **options).output_text == said


def test_models(server):
    client = server.client()
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="not served here"):
        client.models.retrieve("other")


@pytest.mark.parametrize(
    ("options", "kind", "param"),
    [
        ({"model": "../../etc/passwd"}, openai.NotFoundError, "model"),
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"top_p": 0}, openai.BadRequestError, "top_p"),
        ({"max_tokens": 0}, openai.BadRequestError, "max_tokens"),
        ({"n": 17}, openai.BadRequestError, "n"),
        ({"prompt": "x" * 513}, openai.BadRequestError, "prompt"),
        ({"prompt": ""}, openai.BadRequestError, "prompt"),
        ({"prompt": [300]}, openai.BadRequestError, "prompt"),
        ({"stop": ["a"] * 5}, openai.BadRequestError, "stop"),
        ({"stop": ""}, openai.BadRequestError, "stop"),
        ({"prompt": [1, 2, -4]}, openai.BadRequestError, "prompt.2"),
        ({"prompt": ["a", ["b"]]}, openai.BadRequestError, "prompt.1.0"),
        ({"logit_bias": {"5": 1}}, openai.BadRequestError, "logit_bias"),
        ({"extra_body": {"unheard_of": 1}}, openai.BadRequestError, "unheard_of"),
    ],
)
def test_errors_name_what_is_wrong(server, options, kind, param):
    with pytest.raises(kind) as caught:
        server.client().completions.create(**{"prompt": "a", **GREEDY, **options})
    assert caught.value.type in ("invalid_request_error", "not_found_error") and caught.value.body["message"]
    assert caught.value.param == param


def test_many_at_once_get_what_each_gets_alone(server):
    from concurrent.futures import ThreadPoolExecutor

    client, prompts = server.client(), [f"{i} " + "green bottles " * (i % 7) for i in range(24)]

    def text(prompt):
        return client.completions.create(prompt=prompt, **{**GREEDY, "max_tokens": 3 + len(prompt) % 9}).choices[0].text

    one_by_one = [text(prompt) for prompt in prompts]
    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(text, prompts)) == one_by_one
