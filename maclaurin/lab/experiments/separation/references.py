"""What the sweeps gave when they were first measured, with 1000 networks a point: the share of networks that succeed.

All around `Setting()`: n = 1000, d = 52, m = 40, a0 = 0.01, a1 = 1.2, c = 0.8. Ties (see `formulas.tied`) are marked by the
code, not here: there rounding decides, and a reference holds for one machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from maclaurin.lab.experiments.separation.formulas import Setting

TOLERANCE = 0.03  # of a share of 1000 networks

THRESHOLDS: dict[str, dict[float, float]] = {  # a1* by n
    "softmax": {1e2: 0.405, 1e3: 0.471, 1e4: 0.507, 1e5: 0.531, 1e6: 0.549},
    "linear": {1e2: 1.96, 1e3: 7.22, 1e4: 23.95, 1e5: 76.9, 1e6: 244},
    "elu": {1e2: 2.29, 1e3: 8.39, 1e4: 27.5, 1e5: 87.4, 1e6: 275},
    "taylor-2": {1e2: 1.25, 1e3: 3.31, 1e4: 7.81, 1e5: 17.5, 1e6: 38.5},
    "power-2": {1e3: 3.24, 1e6: 38.5},
    "power-4": {1e3: 1.48, 1e6: 8.2},
    "power-8": {1e3: 0.73, 1e6: 2.5},
    "power-16": {1e3: 0.37, 1e6: 1.0},
}
D_PRIMES = {  # at n = 100, 1000, 10⁴, 10⁵ with noise 0.1
    "softmax": (36.2, 44.6, 51.5, 57.6),
    "linear": (5.56, 2.18, 0.80, 0.28),
    "taylor-2": (10.6, 4.5, 1.7, 0.60),
    "power-8": (36.2, 44.4, 49.8, 44.6),
}
SCALES = {(0.5, 0.7): 0.19, (0.5, 1.2): 0.993, (0.25, 0.7): 0.0, (0.25, 1.2): 0.99, (0.125, 1.2): 0.003, (0.125, 2.0): 0.993}


@dataclass(frozen=True)
class Sweep:
    """values: of the fields that change, the first one drawn; around: fields that differ from the base all along.

    softmax, linear: the references, in the order of the values.
    """

    key: str
    values: dict[str, list[Any]]
    softmax: Sequence[float]
    linear: Sequence[float]
    around: dict[str, Any]
    log: bool = False


def sweeps(base: Setting) -> list[Sweep]:
    """One field at a time; with d, n changes too, so that the columns repeat as often as in the base."""
    repeats = round(base.n / (base.d - 2))
    dims = [4, 7, 12, 22, 32, 42, 52, 102]
    lengths = [times * (base.d - 2) for times in (1, 2, 4, 10, 20, 200, 2000, 20000)]
    a1 = [0.1, 0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 1.2, 2.0, 3.0]
    a0 = [0.01, 0.1, 0.3, 0.4, 0.5, 0.55, 0.6, 0.7]
    heads = [1, 2, 5, 10, 15, 20, 40, 160, 320, 1000]
    return [
        Sweep("a1", {"a1": a1}, [0, 0, 0.018, 0.185, 0.959, 0.995, *[0.996] * 5], [0] * 9 + [0.003, 0.010], {}),
        Sweep("a0", {"a0": a0}, [0.996, 0.996, 0.996, 0.980, 0.037, 0.001, 0, 0], [0] * 8, {}),
        Sweep(
            "c",
            {"c": [0.1, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]},
            [0.005, 0.03, 0.115, 0.174, 0.538, 0.856, 0.996, 1.0],
            [0] * 8,
            {},
        ),
        Sweep(
            "m",
            {"m": heads},
            [0.252, 0.425, 0.751, 0.945, 0.986, 0.996, 0.996, 0.991, 0.979, 0.934],
            [0] * 10,
            {},
            log=True,
        ),
        Sweep(
            "d",
            {"d": dims, "n": [repeats * (d - 2) for d in dims]},
            [0.005, 0.021, 0.326, 0.800, 0.940, 0.988, 0.996, 1.0],
            [0] * 8,
            {},
            log=True,
        ),
        Sweep("n", {"n": lengths}, [0.996] * 8, [0.387, 0.024, 0.010, 0.003, 0, 0, 0, 0], {}, log=True),
        Sweep("n, a1=.7", {"n": lengths[1:]}, [0.996] * 7, [0.010, *[0] * 6], {"a1": 0.7}, log=True),
        Sweep(
            "m, c=.5",
            {"m": [5, 15, 40, 100]},
            [0.903, 1.0, 1.0, 0.998],
            [0] * 4,
            {"c": 0.5, "d": 402, "n": repeats * 400},
        ),
    ]
