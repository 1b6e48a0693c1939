"""Whatever the Hugging Face hub refuses is bad input like any other: one sentence says what, and why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def from_hub(what: str) -> Iterator[None]:
    """Errors of the hub and of its libraries, within, as a ValueError; `what` names the thing, as in "corpus 'a/b'"."""
    from huggingface_hub.errors import GatedRepoError, HTTPError, RepositoryNotFoundError

    try:
        yield
    except GatedRepoError as error:
        raise ValueError(f"{what} is gated: ask for access on its page of the hub, then `hf auth login`") from error
    except RepositoryNotFoundError as error:
        raise ValueError(
            f"{what} is unknown to the hub, or private: check the name, or log in with `hf auth login`"
        ) from error
    # their messages are paragraphs, and a lost connection is not an OSError there
    except (OSError, ValueError, RuntimeError, HTTPError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ValueError(f"{what} cannot be had from the hub: {reason}") from error
