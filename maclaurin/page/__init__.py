"""The kit of every HTML page: figures, tables and code in one file that asks for nothing from outside; figures as PNG."""

from __future__ import annotations

from importlib.util import find_spec

__all__ = ["missing"]


def missing() -> str:
    """What must be installed before a page can be made, as a sentence; empty if nothing."""
    absent = [name for name in ("plotly", "transformers") if find_spec(name) is None]
    return f"a report needs {' and '.join(absent)}: pip install 'maclaurin[report]'" if absent else ""
