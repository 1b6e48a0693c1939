"""One run on two hosts: network namespaces with addresses of their own, and torchrun's rendezvous between them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from maclaurin.common.files import read_json
from maclaurin.training import train
from maclaurin.training.checkpoints import checkpoints, last_whole
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


def started(host, number, words):
    name, end = host
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc_per_node", "1"]
    meeting = ["--rdzv_backend", "c10d", "--rdzv_endpoint", f"{ADDRESSES[0]}:{PORT}", "--rdzv_id", "two-hosts"]
    # namespaces share the name of the machine, by which torchrun would look for its address
    own = ["--local_addr", ADDRESSES[number], "--rdzv_conf", f"is_host={'false' if number else 'true'}"]
    command = ["ip", "netns", "exec", name, *torchrun, *meeting, *own, "-m", "maclaurin", "train", *words]
    here = os.environ | {"GLOO_SOCKET_IFNAME": end, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env=here, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def both(folder, hosts, own):
    (folder / "run.yaml").write_text(json.dumps({name: getattr(own, name) for name in own.__dataclass_fields__}))
    return [started(host, number, ["--config", str(folder / "run.yaml")]) for number, host in enumerate(hosts)]


def ended(running):
    try:
        return [process.communicate(timeout=500)[0] for process in running]
    finally:
        for process in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def test_a_run_on_two_hosts_takes_the_steps_of_one_process(folder, hosts):
    one = recipe(folder, steps=4, save_every=4, eval_every=4, batch_size=4, output=str(folder / "one"))
    train(one)
    running = both(folder, hosts, recipe(folder, steps=4, save_every=4, eval_every=4))
    said = ended(running)
    assert [process.returncode for process in running] == [0, 0], said
    assert read_json(folder / "run" / "run.json")["sequences_per_step"] == 4
    assert losses(folder, "run") == pytest.approx(losses(folder, "one"), abs=1e-5)


@pytest.mark.slow
def test_a_cut_cable_ends_both_hosts_with_a_sentence_and_whole_checkpoints(folder, hosts):
    endless = {"steps": 10**5, "save_every": 2, "eval_every": 10**5}
    running = both(folder, hosts, recipe(folder, **endless, trainer={"ddp_timeout": 20}))
    until = time.monotonic() + 400
    while not (folder / "run" / "checkpoint-4").exists() and time.monotonic() < until:
        assert all(process.poll() is None for process in running), [process.stdout.read() for process in running]
        time.sleep(0.1)
    ip("-n", hosts[1][0], "link", "set", hosts[1][1], "down")
    said = ended(running)
    assert all(process.returncode for process in running), said
    assert "has lost another one" in said[0] + said[1] and "start again with --resume auto" in said[0] + said[1]
    assert last_whole(folder / "run") == checkpoints(folder / "run")[-1]
