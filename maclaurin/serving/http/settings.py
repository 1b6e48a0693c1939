"""What whoever starts a server decides, and no request can change."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from maclaurin.common.arguments import at_least_one

NAMES_OF_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Settings:
    """keys: API keys; without one, anybody who reaches the port may use the models. number: of this server among those
    behind one address; it begins the names of its sessions. folder: where sessions and prefixes are kept. bind: the address
    to listen at, where that is not the host by which it is known.

    state_dtype: of `lighter`. max_prompt and max_new: tokens of one sequence; max_body: bytes of a request; max_choices:
    sequences of a request.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    bind: str = ""
    keys: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    number: int = 0
    folder: Path | None = None
    max_active: int = 64
    queue: int = 256
    max_bytes: int | None = None
    state_dtype: str = "float32"
    prefix_bytes: int = 512 * 2**20
    session_bytes: int = 1024 * 2**20
    max_sessions: int = 10_000
    session_idle: float = 3600.0
    max_prompt: int = 32_768
    max_new: int = 4096
    max_choices: int = 16
    max_body: int = 4 * 2**20

    def __post_init__(self) -> None:
        for name in ("max_active", "queue", "max_sessions", "max_prompt", "max_new", "max_choices", "max_body"):
            at_least_one(name, getattr(self, name))
        if any(len(key) < 8 for key in self.keys):
            raise ValueError("an API key must have at least 8 characters")
        if not self.keys and not is_this_machine(self.host):
            raise ValueError(f"--host {self.host} is reached by other machines: give an --api-key too")

    @property
    def address(self) -> str:
        return self.bind or self.host


def is_this_machine(host: str) -> bool:
    try:
        return host in NAMES_OF_THIS_MACHINE or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
