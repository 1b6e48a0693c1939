"""Servers of models that nobody has trained, as processes of their own, and what they cost.

python -m maclaurin.bench.servers FOLDER     # transformers' server without the seam: a request at a time, by `generate`
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

TICKS = getattr(os, "sysconf", lambda _: 100)("SC_CLK_TCK")
PAGE = getattr(os, "sysconf", lambda _: 4096)("SC_PAGE_SIZE")


class Server:
    """A process that answers at `url`. Its costs are read from /proc: Linux only."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.url = process, url
        self.address = urlsplit(url).netloc

    def cpu_seconds(self) -> float:
        fields = self._proc("stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def resident_mib(self) -> float:
        return int(self._proc("statm").split()[1]) * PAGE / 2**20

    def _proc(self, name: str) -> str:
        return Path(f"/proc/{self.process.pid}/{name}").read_text()


def make_model(folder: Path, size: str, mixer: str) -> None:
    """Of bytes; nothing ends its answers, so that their lengths are those that are asked for."""
    import torch

    from maclaurin.data.tokenizer import byte_tokenizer
    from maclaurin.models import MaclaurinConfig, MaclaurinForCausalLM

    torch.manual_seed(0)
    config = MaclaurinConfig.of_size(size, vocab_size=257, mixer=mixer, bos_token_id=None, eos_token_id=None)
    MaclaurinForCausalLM(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)


def ours(folder: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "maclaurin", "serve", str(folder), "--port", "0", "--threads", "1", *options]


def transformers_own(folder: Path) -> list[str]:
    return [sys.executable, "-m", "maclaurin.bench.servers", str(folder)]


@contextmanager
def serving(command: list[str]) -> Iterator[Server]:
    """The server of a command that prints its address once it answers; with one thread."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        assert process.stdout is not None
        if not (url := process.stdout.readline().strip()):
            raise RuntimeError(f"the server did not start: {' '.join(command)}")
        yield Server(process, url)
    finally:
        process.terminate()
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()


def _serve_by_transformers(folder: str) -> None:
    import torch
    from transformers.cli.serving.completion import CompletionHandler
    from transformers.cli.serving.server import build_server
    from transformers.cli.serving.utils import GenerationState

    from maclaurin.serving.http import server
    from maclaurin.serving.http.seam import HeldModels
    from maclaurin.serving.http.served import opened
    from maclaurin.serving.http.settings import Settings

    settings = Settings(port=0)
    with server.listening(settings) as bound:
        torch.set_num_threads(1)
        server.quietly()
        models, states = HeldModels(opened([folder], settings), settings, lambda: None), GenerationState()
        names = [name for name in inspect.signature(build_server).parameters if name.endswith("_handler")]
        handlers = dict.fromkeys(names) | {"completion_handler": CompletionHandler(models, states)}
        app = build_server(model_manager=models, generation_state=states, **handlers)
        server.answer(app, bound, lambda port: print(f"http://127.0.0.1:{port}", flush=True))


if __name__ == "__main__":
    _serve_by_transformers(sys.argv[1])
