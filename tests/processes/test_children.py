"""Children end with their parent."""

import signal
import subprocess
import sys

from maclaurin.processes.children import lifeline


def test_a_child_lives_as_long_as_its_lifeline():
    code = "import time, maclaurin.processes.children as c; c.end_with_parent(); print(1, flush=True); time.sleep(60)"
    with lifeline() as stdin:
        child = subprocess.Popen([sys.executable, "-c", code], stdin=stdin, stdout=subprocess.PIPE)
        child.stdout.readline()
        assert child.poll() is None
    assert child.wait(20) == -signal.SIGTERM
