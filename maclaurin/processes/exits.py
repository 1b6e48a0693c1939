"""How a command that cannot do its work ends: with a sentence and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def errors_as_sentences() -> Iterator[None]:
    """Bad input is one sentence and exit code 2; anything else is a bug and shows where it happened."""
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        print(f"maclaurin: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    except FloatingPointError as error:  # training cannot go on; the message says where it broke
        print(f"maclaurin: {error}", file=sys.stderr)
        raise SystemExit(1) from error
