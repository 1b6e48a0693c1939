"""A claim: one statement with what is expected, what was measured, and whether it held. The numbers decide, nobody else."""

from __future__ import annotations

import math
from dataclasses import dataclass

# where a first derivation or reference run was wrong: what is expected now; docs/lab.md names what it was, and why
CORRECTED = "corrected"


@dataclass(frozen=True)
class Claim:
    """source: where `expected` is from: "derived", "corrected" or the paper. held: None where it does not apply."""

    key: str
    text: str
    expected: str
    measured: str
    held: bool | None
    source: str = "derived"


def near(key: str, text: str, measured: float, expected: float, tolerance: float, source: str = "derived") -> Claim:
    """Within an absolute tolerance."""
    held = math.isfinite(measured) and abs(measured - expected) <= tolerance
    return Claim(key, text, f"{_number(expected)} ± {_number(tolerance)}", _number(measured), held, source)


def near_relative(key: str, text: str, measured: float, expected: float, tolerance: float, source: str = "derived") -> Claim:
    """Within a share of the expected value."""
    held = math.isfinite(measured) and abs(measured - expected) <= tolerance * abs(expected)
    return Claim(key, text, f"{_number(expected)} ± {100 * tolerance:g} %", _number(measured), held, source)


def between(key: str, text: str, measured: float, low: float, high: float, source: str = "derived") -> Claim:
    return Claim(key, text, f"{_number(low)} to {_number(high)}", _number(measured), low <= measured <= high, source)


def at_most(key: str, text: str, measured: float, limit: float, source: str = "derived") -> Claim:
    return Claim(key, text, f"≤ {_number(limit)}", _number(measured), measured <= limit, source)


def at_least(key: str, text: str, measured: float, limit: float, source: str = "derived") -> Claim:
    return Claim(key, text, f"≥ {_number(limit)}", _number(measured), measured >= limit, source)


def true(key: str, text: str, measured: str, held: bool, expected: str = "yes", source: str = "derived") -> Claim:
    """A statement that is no single number; `measured` says what was seen."""
    return Claim(key, text, expected, measured, bool(held), source)


def not_applicable(key: str, text: str, why: str, source: str = "derived") -> Claim:
    return Claim(key, text, "–", why, None, source)


def _number(value: float) -> str:
    return f"{value:.4g}"
