"""Where memory or threads run out, a call ends in a MemoryError or does with fewer of them, and can be made again."""

import subprocess
import sys

import pytest

from maclaurin.ops import native

pytestmark = [
    pytest.mark.skipif(not native.available(), reason="built without a C++ compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="limits the address space as Linux does"),
]

# Every case in a thread of its own, because the team of an OpenMP belongs to the thread that calls it. Between the limits
# every call is made again: it must then give the bits that it gave before.
LIMITED = """
import contextlib, os, resource, sys, threading, time
import torch
from maclaurin import ops
from maclaurin.ops import native

def tokens(T, K=16):
    return [torch.randn(1, T, 6, K) for _ in range(3)] + [-torch.rand(1, T, 6)]

def decode():
    y, state = ops.power_attention(*token, state=kept)
    return y, *state.tensors().values()

def fold():
    y, state = ops.power_attention(*wide, state=folded, fold_every=8)
    return y, *state.tensors().values()

torch.set_num_threads(1)
short, token, wide = tokens(100), tokens(1), tokens(1, 64)
kept = ops.power_attention(*short)[1]
kept = ops.power_attention(*tokens(1), state=kept)[1]  # with slots behind its tokens
folded = ops.power_attention(*tokens(14, 64), fold_at=8, fold_every=8)[1]
folded = ops.power_attention(*wide, state=folded, fold_at=8, fold_every=8)[1]
x, weight, memory = torch.randn(4, 100, 32), torch.rand(32, 4), torch.randn(1, 6, 16, 17)
gates, dy = -torch.rand(4, 100, 32), torch.randn(1, 100, 6, 16)
# what takes more than the 64 MB that malloc may have in reserve for a thread: an output, and the blocks of a kernel
endless, fading = (torch.full((1, 1, 64), value).expand(2, 150_000, 64) for value in (1.0, -1.0))
q, k, v = torch.randn(3, 1, 2, 2, 1500).unbind()
outputs = native.call("quadratic", *short, 0.25, False, True, 0)
calls = {
    "quadratic": lambda: native.call("quadratic", *short, 0.25, False, True, 0),
    "quadratic_backward": lambda: native.call("quadratic_backward", dy, *short, *outputs, 0.25, False, True, 0),
    "chunked": lambda: native.call("chunked", *short, None, 0.25, True, 16, 100),
    "whole": lambda: native.call("whole", *short, 0.25, True),
    "linear": lambda: native.call("linear", *short, memory, 0.25, 1.0, True, 32, True),
    "short_conv": lambda: [native.call("short_conv", x, weight, None, None, True)],
    "linear_scan": lambda: [native.call("linear_scan", x, gates, None)],
    "selective_scan": lambda: native.call("selective_scan", x, -gates, weight, x[:, :, :4], x[:, :, 4:8], None),
    "large output": lambda: [native.call("linear_scan", endless, fading, None)],
    "large blocks": lambda: native.call("chunked", q, k, v[..., :16], None, None, 0.25, True, 16, 0),
    "decode": decode,
    "fold": fold,
}

def in_use():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()

@contextlib.contextmanager
def limited(kind, room):
    before = resource.getrlimit(kind)
    used = in_use() if kind == resource.RLIMIT_AS else len(os.listdir("/proc/self/task"))
    resource.setrlimit(kind, (used + room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)

def try_one(name, expected, kind, room, threads):
    torch.set_num_threads(threads)
    torch.empty(1)  # torch's own notes about this thread
    outcome = "done"
    with limited(kind, room):
        try:
            got = calls[name]()
        except MemoryError as error:
            outcome, got = f"refused: {error}", expected
    again = calls[name]()
    torch.set_num_threads(1)
    same = all(map(torch.equal, got, expected)) and all(map(torch.equal, again, expected))
    print(name, room >> 20, threads, outcome if same else "WRONG")

kind, rooms = (resource.RLIMIT_AS, (-(2**28), 0, 3 * 2**20, 12 * 2**20, 40 * 2**20)) if sys.argv[1] == "memory" else \\
    (resource.RLIMIT_NPROC, (0, 1, 3))
if kind == resource.RLIMIT_NPROC and os.getuid() == 0:
    os.setuid(60000 + os.getpid() % 5000)  # such a limit does not bind root
for name in calls:
    expected = list(calls[name]())
    for room in rooms:
        for threads in (2, 4):
            thread = threading.Thread(target=try_one, args=(name, expected, kind, room, threads))
            thread.start()
            thread.join()
            while os.path.exists(f"/proc/self/task/{thread.native_id}"):
                time.sleep(0.001)  # it gives its memory back when Python has forgotten it
print("END")
"""


@pytest.mark.parametrize("what", ["memory", "threads"])
def test_a_process_lives_on_without(what):
    done = subprocess.run([sys.executable, "-c", LIMITED, what], capture_output=True, text=True, timeout=300)
    assert done.stdout.endswith("END\n"), done.stdout[-300:] + done.stderr[-600:]
    assert "WRONG" not in done.stdout and not done.stderr
    if what == "memory":
        for name, error in {"large output": "the native operator linear_scan", "large blocks": "the native kernel"}.items():
            assert f"{name} -256 2 refused: {error}" in done.stdout
