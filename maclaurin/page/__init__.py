"""What HTML pages are made of: figures, tables and code in one file that loads nothing else; figures as PNG."""

from __future__ import annotations

from importlib.util import find_spec

__all__ = ["missing"]


def missing() -> str:
    """A sentence that says what must be installed to make a page; empty if nothing."""
    absent = [name for name in ("plotly", "transformers") if find_spec(name) is None]
    return f"a report needs {' and '.join(absent)}: pip install 'maclaurin[report]'" if absent else ""
