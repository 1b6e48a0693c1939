"""The versions a run was made with: an entry of versions.json for each start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from maclaurin.common.files import read_json, write_json
from maclaurin.machine.inventory import devices, versions

FILE = "versions.json"


def save_provenance(output: Path, *, first_step: int) -> None:
    """Adds this start to the earlier ones, so that a run resumed under another PyTorch says so."""
    starts = load_provenance(output) if first_step else []
    starts.append({"first_step": first_step, "versions": versions(), "devices": devices()})
    write_json(output / FILE, starts)


def load_provenance(output: Path) -> list[dict[str, Any]]:
    """The starts of a run, oldest first; none where the file is missing or damaged: a run goes on without it."""
    try:
        starts = read_json(output / FILE, list)
    except (OSError, ValueError):
        return []
    return [start for start in starts if isinstance(start, dict)]
