"""One run on two hosts: network namespaces with addresses of their own, and torchrun's rendezvous between them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest

from maclaurin.common.files import read_json
from maclaurin.training import train
from maclaurin.training.checkpoints import checkpoints, last_whole, step_of
from tests.training.test_ranks import losses, recipe

ADDRESSES = ("10.231.23.1", "10.231.23.2")
PORT = 29523


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)


@pytest.fixture
def hosts():
    """Two namespaces with a cable between them: their names, and those of their ends of the cable."""
    if shutil.which("ip") is None:
        pytest.skip("two hosts need the command ip of iproute2")
    names = [f"maclaurin-{os.getpid()}-{number}" for number in (1, 2)]
    ends = [f"mac{os.getpid() % 10**6}v{number}" for number in (1, 2)]
    made = []
    try:
        for name in names:
            ip("netns", "add", name)
            made.append(name)
        ip("link", "add", ends[0], "netns", names[0], "type", "veth", "peer", "name", ends[1], "netns", names[1])
        for name, end, address in zip(names, ends, ADDRESSES, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            ip("-n", name, "link", "set", end, "up")
            ip("-n", name, "link", "set", "lo", "up")
    except subprocess.CalledProcessError as error:
        for name in made:
            ip("netns", "del", name)
        pytest.skip(f"this machine does not allow network namespaces: {error.stderr.strip()}")
    yield list(zip(names, ends, strict=True))
    for name in names:
        ip("netns", "del", name)


def started(host, number, words, said):
    name, end = host
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc_per_node", "1"]
    meeting = ["--rdzv_backend", "c10d", "--rdzv_endpoint", f"{ADDRESSES[0]}:{PORT}", "--rdzv_id", "two-hosts"]
    # namespaces share the name of the machine, by which torchrun would look for its address
    own = ["--local_addr", ADDRESSES[number], "--rdzv_conf", f"is_host={'false' if number else 'true'}"]
    command = ["ip", "netns", "exec", name, *torchrun, *meeting, *own, "-m", "maclaurin", "train", *words]
    here = os.environ | {"GLOO_SOCKET_IFNAME": end, "OMP_NUM_THREADS": "1"}
    with open(said, "w") as stream:
        return subprocess.Popen(command, env=here, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True)


@contextmanager
def both(folder, hosts, own):
    """The run on both of them, and the files with what each says."""
    (folder / "run.yaml").write_text(json.dumps({name: getattr(own, name) for name in own.__dataclass_fields__}))
    said = [folder / f"said-{number}.txt" for number in range(2)]
    words = ["--config", str(folder / "run.yaml"), "--resume", "auto"]
    running = [started(host, number, words, said[number]) for number, host in enumerate(hosts)]
    try:
        yield running, said
    finally:
        for process in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def wait_for(what, seconds=400):
    until = time.monotonic() + seconds
    while not what() and time.monotonic() < until:
        time.sleep(0.1)
    assert what()


def test_a_run_on_two_hosts_takes_the_steps_of_one_process(folder, hosts):
    one = recipe(folder, steps=4, save_every=4, eval_every=4, batch_size=4, output=str(folder / "one"))
    train(one)
    with both(folder, hosts, recipe(folder, steps=4, save_every=4, eval_every=4)) as (running, said):
        wait_for(lambda: all(process.poll() is not None for process in running))
        assert [process.returncode for process in running] == [0, 0], [file.read_text() for file in said]
    assert read_json(folder / "run" / "run.json")["sequences_per_step"] == 4
    assert losses(folder, "run") == pytest.approx(losses(folder, "one"), abs=1e-5)


@pytest.mark.slow
def test_a_cut_cable_ends_the_run_on_both_hosts_and_it_goes_on_from_a_whole_checkpoint(folder, hosts):
    """On the host that has lost the rendezvous torchrun itself waits for minutes: the scheduler has to end it."""
    own = recipe(folder, steps=2000, save_every=2, eval_every=2000, trainer={"ddp_timeout": 15, "logging_steps": 100})
    with both(folder, hosts, own) as (running, said):
        wait_for(lambda: len(checkpoints(folder / "run")) == 2)
        name, end = hosts[1]
        ip("-n", name, "link", "set", end, "down")
        wait_for(
            lambda: all("has lost another one" in file.read_text() for file in said)
        )  # they cannot agree on who says it
        wait_for(lambda: running[0].poll() == 1)
    assert all(file.read_text().count("has lost another one") == 1 for file in said)
    last = step_of(last_whole(folder / "run"))
    assert 4 <= last < 2000
    ip("-n", name, "link", "set", end, "up")
    with both(folder, hosts, replace(own, steps=last + 2)) as (running, said):
        wait_for(lambda: all(process.poll() is not None for process in running))
        assert [process.returncode for process in running] == [0, 0], [file.read_text() for file in said]
    assert step_of(checkpoints(folder / "run")[-1]) == last + 2
