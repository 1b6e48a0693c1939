"""Text while it comes: the pieces are the whole, no character is cut, and nothing of a stop string shows."""

from hypothesis import given
from hypothesis import strategies as st
from maclaurin.data.tokenizer import byte_tokenizer
from maclaurin.serving.http.text import TextStream

TOKENIZER = byte_tokenizer()


def pieces(stream, tokens):
    for token in tokens:
        yield stream.push(token)
        if stream.stopped:
            return
    yield stream.flush()


@given(st.text(max_size=40))
def test_pieces_are_the_whole(text):
    tokens = TOKENIZER(text)["input_ids"]
    found = list(pieces(TextStream(TOKENIZER), tokens))
    assert "".join(found) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in found)


@given(st.lists(st.integers(0, 256), max_size=40))
def test_any_bytes_become_the_text_that_they_are(tokens):
    assert "".join(pieces(TextStream(TOKENIZER), tokens)).replace("\ufffd", "") == TOKENIZER.decode(
        tokens, skip_special_tokens=True
    ).replace("\ufffd", "")


@given(st.text("abc\u00e9", max_size=30), st.lists(st.text("abc\u00e9", min_size=1, max_size=4), max_size=3))
def test_the_text_ends_before_the_first_stop_string(text, stops):
    stream = TextStream(TOKENIZER, stops)
    found = list(pieces(stream, TOKENIZER(text)["input_ids"]))
    # what comes first ends it: a stop string that is complete earlier, of those the one that begins first
    ends = [place + len(stop) for stop in stops if (place := text.find(stop)) >= 0]
    if not ends:
        assert "".join(found) == text and not stream.stopped
        return
    seen = text[: min(ends)]
    assert stream.stopped and "".join(found) == seen[: min(seen.find(stop) for stop in stops if stop in seen)]
