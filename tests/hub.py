"""A hub on this machine: folders, served with just enough of the Hugging Face hub's API to fetch models and datasets."""

import hashlib
import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + 34 * "0"
KINDS = ("models", "datasets")
GATED = "owner/gated"  # shown to those only whom its owner has let in


class Hub(ThreadingHTTPServer):
    """`repositories`: kind/owner/name -> folder. `asked`: the files whose content was asked for, as owner/name/file."""

    daemon_threads = True

    def __init__(self, repositories):
        super().__init__(("127.0.0.1", 0), Answer)
        self.repositories = repositories
        self.asked = []

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def stop(self):
        """From here on connections are refused."""
        self.shutdown()
        self.server_close()


class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        path, kind, repository, rest = self._parsed()
        folder = self.server.repositories.get(f"{kind}/{repository}")
        if repository == GATED:
            self._send(403, b"", {"X-Error-Code": "GatedRepo"})
        elif folder is None:
            # the status the hub has for those who are not logged in, whether there is such a name or not
            self._send(401, b"", {"X-Error-Code": "RepoNotFound"})
        elif not path.startswith("api/"):
            self._file(repository, folder, "/".join(rest[2:]))  # resolve/COMMIT/FILE
        elif rest[:1] == ["tree"]:
            self._json([describe(folder, file, "path") for file in files(folder, "/".join(rest[2:]))])
        else:
            siblings = [describe(folder, file, "rfilename") for file in files(folder)]
            self._json({"id": repository, "sha": COMMIT, "siblings": siblings, "tags": [], "downloads": 0})

    do_HEAD = do_GET

    def _parsed(self):
        """The path, kind, owner/name, and what comes after: in a file's address the kind of models is left out."""
        path = unquote(urlsplit(self.path).path).strip("/")
        parts = path.removeprefix("api/").split("/")
        kind = parts.pop(0) if parts[0] in KINDS else "models"
        return path, kind, "/".join(parts[:2]), parts[2:]

    def _file(self, repository, folder, file):
        if not (folder / file).is_file():
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        if self.command == "GET":
            self.server.asked.append(f"{repository}/{file}")
        content = (folder / file).read_bytes()
        self._send(200, content, {"ETag": f'"{digest(content)}"', "X-Repo-Commit": COMMIT})

    def _json(self, value):
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status, content, headers=None):
        self.send_response(status)
        for key, value in ({"Content-Length": str(len(content))} | (headers or {})).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_):
        pass


def digest(content):
    return hashlib.sha1(content).hexdigest()


def files(folder, under=""):
    return sorted(path.relative_to(folder).as_posix() for path in (folder / under).rglob("*") if path.is_file())


def describe(folder, file, key):
    content = (folder / file).read_bytes()
    return {"type": "file", key: file, "oid": digest(content), "size": len(content)}


@contextmanager
def serving(repositories):
    hub = Hub(repositories)
    thread = Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        hub.stop()
        thread.join()


def use(monkeypatch, address, cache):
    """This process asks the hub at that address, and keeps what it gets in that folder."""
    import datasets
    from huggingface_hub import constants

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", address)
