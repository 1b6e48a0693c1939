"""Other builds of the native library, for workers to load in place of the installed one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIBRARY = Path("lib", "libmaclaurin_native.so")


def build(sources: Path, folder: Path, *options: str) -> Path:
    """Compile `sources` below `folder`, which then is what `fuzz.worker --library` takes."""
    made = folder / "cmake"
    subprocess.run(["cmake", "-S", sources, "-B", made, *options], check=True, stdout=subprocess.DEVNULL)
    target = ("--target", "maclaurin_native", "--parallel", "2")
    subprocess.run(["cmake", "--build", made, *target], check=True, stdout=subprocess.DEVNULL)
    (folder / LIBRARY).parent.mkdir(exist_ok=True)
    shutil.copy(made / LIBRARY.name, folder / LIBRARY)
    return folder


def sanitized() -> Path:
    """The kernels under AddressSanitizer; compiled once, and again where the sources have changed."""
    return build(ROOT / "csrc", ROOT / "build" / "fuzz-asan", "-DCMAKE_BUILD_TYPE=Debug", "-DMACLAURIN_SANITIZE=address")


def sanitizer_runtime() -> str | None:
    """What a process must load before all else to run a sanitized library; None where the compiler has none.

    The C++ library too: the sanitizer looks for `__cxa_throw` as soon as it is there, before torch brings it along.
    """
    compiler = shutil.which("c++")
    if compiler is None or shutil.which("cmake") is None:
        return None
    command = [compiler, "-print-file-name={}"]
    found = [
        subprocess.run([part.format(name) for part in command], capture_output=True, text=True).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    return " ".join(found) if all(Path(path).is_absolute() and Path(path).exists() for path in found) else None


def sanitizer_environment(runtime: str) -> dict[str, str]:
    """Memory that Python itself keeps at exit is not a leak. The quarantine of freed memory is kept small."""
    return {"LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=64:allocator_may_return_null=1"}
