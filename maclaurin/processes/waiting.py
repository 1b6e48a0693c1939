"""What threads do while they wait for the others of a parallel loop. By default they spin, each on a core, which gains a
tenth on an idle machine and loses most of the speed beside any other work.
"""

from __future__ import annotations

import os

ASLEEP = {"OMP_WAIT_POLICY": "PASSIVE"}


def wait_asleep() -> None:
    """In this process and its children, unless the environment says otherwise. OpenMP reads it as torch is imported."""
    for name, value in ASLEEP.items():
        os.environ.setdefault(name, value)
