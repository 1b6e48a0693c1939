"""How a command that cannot do its work ends: with a sentence and an exit code."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

# packages that only some commands need -> the extra of this one that installs each
EXTRAS = {
    "accelerate": "hf",
    "datasets": "hf",
    "tensorboard": "hf",
    "tokenizers": "hf",
    "transformers": "hf",
    "yaml": "hf",
    "lm_eval": "eval",
    "PIL": "eval",
    "sklearn": "eval",
    "kaleido": "report",
    "plotly": "report",
    "fastapi": "serve",
    "h11": "serve",
    "prometheus_client": "serve",
    "uvicorn": "serve",
}


@contextmanager
def errors_as_sentences() -> Iterator[None]:
    """Bad input and a package that is not installed are one sentence and exit code 2; anything else is a bug and shows where
    it happened.
    """
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        print(f"maclaurin: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    except ImportError as error:
        package = _not_installed(error)
        if package is None:
            raise
        extra = EXTRAS[package]
        print(f"maclaurin: this needs {package}, which is not installed: pip install 'maclaurin[{extra}]'", file=sys.stderr)
        raise SystemExit(2) from error
    except FloatingPointError as error:  # training cannot go on; the message says where it broke
        print(f"maclaurin: {error}", file=sys.stderr)
        raise SystemExit(1) from error


def _not_installed(error: ImportError) -> str | None:
    """The package that is missing. Libraries that look for another themselves name it only in their message."""
    named = (package for package in EXTRAS if re.search(rf"\b{package}\b", str(error)))
    return next((package for package in named if find_spec(package) is None), None)
