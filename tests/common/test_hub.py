"""What the hub's libraries raise is one sentence, and nothing else is."""

import pytest
from huggingface_hub.errors import HTTPError

from maclaurin.common.hub import from_hub


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (HTTPError("cut off\nand more about it"), "cut off"),  # while a file is read, and no OSError
        (RuntimeError("Dataset scripts are no longer supported"), "Dataset scripts are no longer supported"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_the_reason_is_never_more_than_a_line(error, reason):
    with pytest.raises(ValueError, match=f"^this cannot be had from the hub: {reason}$") as caught, from_hub("this"):
        raise error
    assert caught.value.__cause__ is error


def test_what_is_a_bug_stays_one():
    with pytest.raises(KeyError), from_hub("this"):
        raise KeyError("no word of the hub")
