"""Every Triton kernel of the tile table compiled for GPUs that need not be here: registers, spills, shared memory.

Triton compiles without a GPU. What is found is what the assembler says; speed is another matter.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

from maclaurin.common.arguments import one_of
from maclaurin.ops.gpu.availability import INTERPRETED
from maclaurin.ops.gpu.tiles import BF16, BF16_BEFORE_HOPPER, TF32, Tile, table_of

__all__ = ["INTERPRETED", "TARGETS", "Case", "Compiled", "all_cases", "cases", "checked_targets", "compiled", "table"]

Key = tuple[str, str, str, int, str]  # kernel, target, kind, channels, tile

TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "gfx942")
KINDS = ("bf16", "tf32")
CHANNELS = (32, 64, 128)
SHARED = {"sm_80": 166912, "sm_90": 232448, "sm_100": 232448, "gfx942": 65536}  # bytes that a program may use
SMALL_SHARED = 101376  # of all others
SPILLS_ALLOWED = {"forward": 0, "backward": 64}  # bytes
STEP = Tile(32, 32, 4)

_INTS = {"T", "S", "H", "G", "F", "N", "chunk", "chunks", "span", "splits"}
_SIZES = {"step": ("DK", "DV", "W"), "conv": ("C",)}  # numbers there, pointers elsewhere
_FLOATS = {"out_scale", "guard", "scale2", "c", "scale"}
_FLOAT32 = frozenset(
    (
        *("E", "CF", "C", "WEIGHT", "ACROSS", "HI", "LO", "TOTAL", "LOGS", "DELTA", "HALF", "SUMS", "START", "END", "SIZE"),
        *("GRAMS", "DGRAMS", "MOMENTS", "MU", "DZ", "DQ", "DK_", "DV_", "PARTS", "STATE"),
    )
)


@dataclass(frozen=True)
class Case:
    """One kernel as it is launched. constants: what it is compiled for."""

    kernel: str
    constants: dict[str, Any]
    tile: Tile
    channels: int
    kind: str

    @property
    def name(self) -> str:
        return self.kernel + (" backward" if self.constants.get("BACKWARD") else "")

    def key(self, target: str) -> Key:
        return self.name, target, self.kind, self.channels, str(self.tile)


@dataclass(frozen=True)
class Compiled:
    """registers of a thread, bytes of spills of a thread and of shared memory of a program."""

    kernel: str
    target: str
    kind: str
    channels: int
    tile: str
    registers: int
    spills: int
    shared: int

    @property
    def key(self) -> Key:
        return self.kernel, self.target, self.kind, self.channels, self.tile

    @property
    def direction(self) -> str:
        return "backward" if "backward" in self.kernel else "forward"

    @property
    def allowed(self) -> bool:
        fits = self.shared <= SHARED.get(self.target, SMALL_SHARED)
        return fits and self.spills <= SPILLS_ALLOWED[self.direction]

    def __str__(self) -> str:
        what = f"{self.target:7} {self.kind} {self.channels:3} {self.kernel:19} tile {self.tile:12}"
        found = f"{self.registers:3} registers {self.spills:4} B spills {self.shared:6} B shared"
        return f"{what} {found}{'' if self.allowed else '  too many'}"


def cases(target: str, kind: str, channels: int) -> Iterator[Case]:
    """What runs there for heads of so many channels, with decay and normaliser."""
    tiles = table_of(_capability(target), not target.startswith("sm_"))[kind, max(channels, 32)]
    precision = TF32 if kind == "tf32" else BF16 if _capability(target) >= (9, 0) else BF16_BEFORE_HOPPER
    both = {"DK": channels, "DV": channels}
    products = {"P": precision.products, "EMULATE": False}
    common = {**both, **products, "DECAY": True}
    gram = {"PZ": precision.gram, "NORMALIZE": True}

    def case(kernel: str, tile: Tile, constants: dict[str, Any], *sides: str) -> Case:
        return Case(kernel, constants | dict(zip(sides, (tile.bm, tile.bn), strict=False)), tile, channels, kind)

    yield case("direct_forward", tiles.forward, common | {"NORMALIZE": True}, "BM", "BN")
    yield case("direct_backward_kv", tiles.backward_kv, common, "BM", "BN")
    yield case("direct_backward_q", tiles.backward_q, common, "BM", "BN")
    yield case("softmax_forward", tiles.forward, common, "BM", "BN")
    yield case("softmax_backward_kv", tiles.backward_kv, common, "BM", "BN")
    yield case("softmax_backward_q", tiles.backward_q, common, "BM", "BN")
    walk = common | {"R": 1, "HAS_START": False, "HAS_END": True}
    yield case("state_walk", tiles.walk, walk | {"BACKWARD": False}, "BT", "IB")
    yield case("state_walk", tiles.walk, walk | {"BACKWARD": True}, "BT", "IB")
    moments = both | {"R": 1, "HAS_C": False, "P": precision.gram, "EMULATE": False}
    yield case("moments_of_chunk", tiles.moments, moments, "BT")
    yield case("moments_walk", STEP, {"BLOCK": 1024, "BACKWARD": False, "HAS_START": False})
    through = common | gram | {"CENTRED": True, "HAS_START": False}
    yield case("chunk_forward", tiles.forward, through, "BM", "BN")
    yield case("chunk_backward_q", tiles.through_state, through, "BM")
    yield case("chunk_backward_k", tiles.through_state, common | gram | {"HAS_END": False}, "BM")
    yield case("chunk_backward_v", tiles.through_state, common | {"HAS_END": False}, "BM")
    conv = {"W": 4, "HAS_BIAS": True, "SILU": True, "BT": 32, "BC": 64}
    yield case("conv_forward", STEP, conv)
    yield case("conv_backward", STEP, conv)
    yield case("step_read", STEP, {"WIDE": 2 * channels, "BF": 32, "FEATURES": 160, "R": 1})
    step = {"BK": channels, "BV": channels, "WIDE": 2 * channels, "BS": 32, "DECAY": True, "NORMALIZE": True}
    yield case("step_join", STEP, step)


def all_cases(
    targets: Sequence[str] = TARGETS, kinds: Sequence[str] = KINDS, channels: Sequence[int] = CHANNELS
) -> Iterator[tuple[str, Case]]:
    """With the target that each is for."""
    for target, kind, size in product(targets, kinds, channels):
        for case in cases(target, kind, size):
            yield target, case


def table(targets: Sequence[str] = TARGETS) -> Iterator[Compiled]:
    """One after the other, as they are done: a compilation takes seconds, and Triton keeps those it has made."""
    for target, case in all_cases(targets):
        yield compiled(case, target)


def checked_targets(words: str) -> tuple[str, ...]:
    """Comma-separated targets, or "all"."""
    targets = TARGETS if words == "all" else tuple(words.split(","))
    for target in targets:
        one_of("--gpu-compile", target, TARGETS if "," in words else ("all", "kept", *TARGETS))
    if find_spec("triton") is None:
        raise ValueError("--gpu-compile needs Triton, which is not installed")
    return targets


def _capability(target: str) -> tuple[int, int]:
    """(9, 0) for sm_90; AMD's have none, and multiply bfloat16 as GPUs before Hopper do."""
    return divmod(int(target[3:]), 10) if target.startswith("sm_") else (8, 0)


def compiled(case: Case, target: str) -> Compiled:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = _function(case.kernel)
    signature = {name: _type(name, case) for name in function.arg_names}
    aligned = {
        (n,): [["tt.divisibility", 16]]
        for n, name in enumerate(function.arg_names)
        if signature[name][0] == "*" or name in ("T", "S", "chunk") or re.fullmatch(r"s[a-z][bth]", name)
    }
    source = ASTSource(fn=function, signature=signature, constexprs=case.constants, attrs=aligned)
    is_nvidia = target.startswith("sm_")
    where = GPUTarget("cuda", int(target[3:]), 32) if is_nvidia else GPUTarget("hip", target, 64)
    found = triton.compile(source, target=where, options={"num_warps": case.tile.warps, "num_stages": case.tile.stages})
    registers, spills = _of_nvidia(found) if is_nvidia else _of_amd(found.asm["amdgcn"])
    return Compiled(*case.key(target), registers, spills, found.metadata.shared)


def _function(name: str) -> Any:
    from maclaurin.ops.gpu import chunk_kernels, conv_kernels, direct_kernels, softmax_kernels, state_kernels, step_kernels

    modules = (conv_kernels, direct_kernels, softmax_kernels, state_kernels, chunk_kernels, step_kernels)
    return next(found for module in modules if (found := getattr(module, name, None)))


def _type(name: str, case: Case) -> str:
    if name in case.constants:
        return "constexpr"
    if name in _FLOATS:
        return "fp32"
    element = "bf16" if case.kind == "bf16" else "fp32"
    if case.kernel.startswith("step") and name in ("FIRST", "SECOND"):
        return "*i16"
    if name in _SIZES.get(case.kernel.partition("_")[0], ()):
        return "i32"
    if name in ("FIRST", "LAST"):
        return "*i32"
    if name in _FLOAT32:
        return "*fp32"
    return "i32" if name in _INTS or name.islower() else f"*{element}"


def _of_nvidia(found: Any) -> tuple[int, int]:
    """Registers, and bytes of spills: where there is a stack, the assembler is asked what is on it."""
    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.TemporaryDirectory() as folder:
        cubin, ptx = Path(folder, "kernel.cubin"), Path(folder, "kernel.ptx")
        cubin.write_bytes(found.asm["cubin"])
        text = subprocess.run([tools / "cuobjdump", "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
        usage = dict(re.findall(r"(REG|STACK):(\d+)", text))
        if usage["STACK"] == "0":
            return int(usage["REG"]), 0
        ptx.write_text(found.asm["ptx"])
        arch = re.findall(r"\.target (sm_\w+)", found.asm["ptx"])[0]
        for tool in ("ptxas", "ptxas-blackwell"):
            command = [str(tools / tool), "-v", f"-arch={arch}", str(ptx), "-o", "/dev/null"]
            said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
            if spills := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said):
                return int(usage["REG"]), max(int(bytes_) for bytes_ in spills.groups())
    raise RuntimeError(f"no assembler of Triton takes {arch}")


def _of_amd(assembly: str) -> tuple[int, int]:
    registers = re.findall(r"\.vgpr_count:\s+(\d+)", assembly)[0]
    spills = re.findall(r"\.vgpr_spill_count:\s+(\d+)", assembly)[0]
    return int(registers), 4 * int(spills)
