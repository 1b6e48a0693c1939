"""Sessions: what comes after is what one request would have said, whatever became of state, memory and process."""

import json
import time
from pathlib import Path

import pytest

from tests.serving.http.conftest import running
from tests.serving.http.test_guard import slow_down

GREEDY = {"model": "tiny", "temperature": 0, "max_tokens": 10}
TEXT = {"temperature": 0, "max_tokens": 10}


def begun(server, key=None, **body):
    status, session = server.ask("POST", "/v1/sessions", body, key=key)
    assert status == 200, session
    return session["id"]


def more(server, name, prompt="", key=None, **options):
    status, answer = server.ask("POST", f"/v1/sessions/{name}/completions", {"prompt": prompt, **TEXT, **options}, key=key)
    assert status == 200, answer
    return answer["choices"][0]["text"]


def whole(server, prompt, count, model="tiny"):
    answer = server.client().completions.create(prompt=prompt, **{**GREEDY, "model": model, "max_tokens": count})
    return answer.choices[0].text


def test_a_text_goes_on_where_it_was(server):
    name = begun(server, prompt="12 green")
    assert more(server, name) + more(server, name) == whole(server, "12 green", 20)
    _, answer = server.ask("POST", f"/v1/sessions/{name}/completions", {"prompt": "!", **TEXT})
    # all but the last token of the output was read already
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 8 + 20 - 1
    assert server.ask("GET", f"/v1/sessions/{name}")[1]["tokens"] == 8 + 20 + 1 + 10


def test_a_chat_goes_on_by_openais_client(server):
    name = begun(server)
    client, plain = server.client(f"/v1/sessions/{name}"), server.client()
    history = []
    for words in ("Hello", "And then?", "Why?"):
        history.append({"role": "user", "content": words})
        said = client.chat.completions.create(messages=history[-1:], **GREEDY).choices[0].message.content
        if not any("\ufffd" in message["content"] for message in history):
            assert said == plain.chat.completions.create(messages=history, **GREEDY).choices[0].message.content
        history.append({"role": "assistant", "content": said})
    assert server.ask("GET", f"/v1/sessions/{name}")[1]["messages"] == history


def test_a_fork_goes_its_own_way_and_leaves_the_other_alone(server):
    name = begun(server, prompt="12 green")
    first = more(server, name)
    fork = server.ask("POST", f"/v1/sessions/{name}/fork", {})[1]["id"]
    other = more(server, fork, "xyz")
    assert fork != name
    assert first + more(server, name) == whole(server, "12 green", 20)
    again = begun(server, prompt="12 green")
    assert more(server, again) == first and more(server, again, "xyz") == other
    earlier = server.ask("POST", f"/v1/sessions/{name}/fork", {"tokens": 8})[1]["id"]
    assert more(server, earlier) == first


def test_a_session_stops_where_its_text_does(server):
    """The stop string is part of the tokens that it goes on from, and nothing after it is."""
    text = whole(server, "12 green", 20)
    stop = next(text[i] for i in range(2, 12) if text[i].isprintable() and text.index(text[i]) == i)
    name = begun(server, prompt="12 green")
    assert more(server, name, stop=stop, max_tokens=20) == text[: text.index(stop)]
    length = 8 + len((text[: text.index(stop)] + stop).encode())
    if "\ufffd" not in text:
        assert server.ask("GET", f"/v1/sessions/{name}")[1]["tokens"] == length
        assert more(server, name) == text[text.index(stop) + 1 :][:10] or len(text) < 20


@pytest.mark.parametrize("stops", [False, True])
def test_an_answer_that_has_ended_can_be_gone_on_with_at_once(server, monkeypatch, stops):
    text = whole(server, "12 green", 40)
    stop = next(letter for letter in text[2:] if letter.isprintable() and letter.isascii()) if stops else None
    slow_down(server.engine, monkeypatch, 0.1)
    name = begun(server, prompt="12 green")
    completions = server.client(f"/v1/sessions/{name}").completions
    for _ in range(2):
        chunks = completions.create(prompt="", model="tiny", temperature=0, max_tokens=6, stop=stop, stream=True)
        reason = next(chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason)
        assert reason == "length" or stops
    assert server.ask("DELETE", f"/v1/sessions/{name}")[0] == 200


def test_refusals(server):
    name = begun(server, prompt="ab")
    assert server.ask("POST", f"/v1/sessions/{name}/save")[0] == 409
    assert server.ask("POST", f"/v1/sessions/{name}/completions", {"n": 2})[0] == 400
    chat = {"messages": [{"role": "user", "content": "a"}]}
    assert server.ask("POST", f"/v1/sessions/{name}/chat/completions", chat)[1]["error"]["code"] == "session_kind"
    assert server.ask("POST", f"/v1/sessions/{begun(server)}/completions", {})[0] == 400
    assert server.ask("DELETE", f"/v1/sessions/{name}")[1]["deleted"] is True
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/save"), ("POST", "/load"), ("POST", "/fork")):
        assert server.ask(method, f"/v1/sessions/{name}{path}", {})[0] == 404
    for odd in ("..", "%2e%2e%2f", "0-" + "A" * 32, "a" * 64):
        assert server.ask("GET", f"/v1/sessions/{odd}")[0] in (404, 405)
    assert server.ask("GET", f"/v1/sessions/{'a' * 65}")[0] == 400


def test_what_was_saved_goes_on_after_a_death(folder, tmp_path):
    """Without a shutdown nothing but the saved files is left, as after kill -9."""
    with running(folder, folder=tmp_path) as server:
        name = begun(server, prompt="12 green")
        text = more(server, name)
        assert server.ask("POST", f"/v1/sessions/{name}/save")[1]["saved"] is True
        assert not any(name in str(path) or name in path.read_bytes().decode("latin-1") for path in files(tmp_path))
        with running(folder, folder=tmp_path) as second:
            assert second.ask("GET", "/v1/sessions")[1]["data"] == []
            _, answer = second.ask("POST", f"/v1/sessions/{name}/completions", TEXT)
            assert text + answer["choices"][0]["text"] == whole(second, "12 green", 20)
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 17  # its state was there
            second.ask("DELETE", f"/v1/sessions/{name}")
            assert not files(tmp_path / "sessions")


def test_a_graceful_end_saves_all_and_a_damaged_state_is_computed_again(folder, tmp_path):
    with running(folder, folder=tmp_path) as server:
        names = [begun(server, prompt=f"{i} green") for i in range(2)]
        texts = [more(server, name) for name in names]
    states = list((tmp_path / "sessions").glob("*.safetensors"))
    assert len(states) == 2
    for path in states:
        path.write_bytes(path.read_bytes()[:-100])
    with running(folder, folder=tmp_path) as server:
        for i, (name, text) in enumerate(zip(names, texts, strict=True)):
            assert text + more(server, name) == whole(server, f"{i} green", 20)
    for path in (tmp_path / "sessions").glob("*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "owner": 5}))
    (tmp_path / "sessions" / next((tmp_path / "sessions").glob("*.json"))).write_text("{")
    with running(folder, folder=tmp_path) as server:
        assert {server.ask("GET", f"/v1/sessions/{name}")[0] for name in names} == {404}


def test_a_session_goes_back_to_what_was_saved(folder, tmp_path):
    with running(folder, folder=tmp_path) as server:
        name = begun(server, prompt="12 green")
        assert server.ask("POST", f"/v1/sessions/{name}/load")[0] == 404
        server.ask("POST", f"/v1/sessions/{name}/save")
        text = more(server, name)
        assert server.ask("POST", f"/v1/sessions/{name}/load")[1]["tokens"] == 8
        assert more(server, name) == text


def test_sessions_belong_to_a_key(folder):
    keys = ("first-key", "second-key")
    with running(folder, keys=keys) as server:
        name = begun(server, key=keys[0], prompt="ab")
        assert server.ask("GET", f"/v1/sessions/{name}", key=keys[0])[0] == 200
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/fork"), ("POST", "/completions")):
            assert server.ask(method, f"/v1/sessions/{name}{path}", {}, key=keys[1])[0] == 404
        assert len(server.ask("GET", "/v1/sessions", key=keys[0])[1]["data"]) == 1
        assert server.ask("GET", "/v1/sessions", key=keys[1])[1]["data"] == []


@pytest.mark.parametrize("kept", [True, False])
def test_states_beyond_the_memory_leave_it_and_nothing_changes(folder, tmp_path, kept):
    with running(folder, session_bytes=1, folder=tmp_path if kept else None) as server:
        names = [begun(server, prompt=f"{i} green") for i in range(3)]
        texts = [more(server, name) for name in names]
        for i, (name, text) in enumerate(zip(names, texts, strict=True)):
            assert text + more(server, name) == whole(server, f"{i} green", 20)


def test_sessions_that_nobody_uses_end(folder):
    with running(folder, session_idle=0.5, max_sessions=2) as server:
        names = [begun(server) for _ in range(2)]
        assert server.ask("POST", "/v1/sessions", {})[1]["error"]["code"] == "too_many_sessions"
        time.sleep(0.6)
        assert server.ask("GET", f"/v1/sessions/{names[0]}")[0] == 404
        begun(server)


def files(folder: Path):
    return [path for path in folder.rglob("*") if path.is_file()]
