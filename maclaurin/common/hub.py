"""Whatever the Hugging Face hub refuses is bad input like any other: one sentence says what, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# what is fetched of a model: first what describes it, and if it is supported, its safetensors; never a pickle
DESCRIPTION = ("*.json", "*.txt", "*.model", "*.jinja", "*/config.json")
WEIGHTS = "*.safetensors"


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


def fetched(what: str, spec: str, wanted: Sequence[str]) -> Path:
    """The local folder of a model's files from the hub, or from the cache if the hub cannot be reached."""
    if spec.count("/") > 1 or spec.startswith((".", "/", "~")):
        raise ValueError(f"{what} {spec!r} is no folder here and no owner/name of the hub")
    from huggingface_hub import snapshot_download

    with from_hub(f"{what} {spec!r} is no folder here, and"):
        return Path(snapshot_download(spec, allow_patterns=list(wanted)))
