"""Files as strangers, broken disks and other versions write them: bytes changed anywhere, or a right format full of lies."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.case import Draw

DEEP = 100_000
HUGE_INTEGER = "9" * 5000
BOMB = "\n".join(["a0: &a0 [x,x,x,x,x,x,x,x,x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10))])


@dataclass(frozen=True)
class Trap:
    """What a file may try in a folder `root`: to run code, to have something written, or read, beside its own `home`."""

    root: Path

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def outside(self) -> Path:
        """May hold the same files as `home`, which a file could point to."""
        return self.root / "outside"

    @property
    def marker(self) -> Path:
        """Exists once its code has run."""
        return self.root / "marker"

    @property
    def escape(self) -> Path:
        """Exists once something was written where it pointed."""
        return self.root / "escaped"

    @property
    def command(self) -> str:
        return f"touch {self.marker}"

    @property
    def code(self) -> str:
        return f"import pathlib\npathlib.Path({str(self.marker)!r}).touch()\n"


def mutate(draw: Draw, path: Path, trap: Trap) -> None:
    """Change a file in place, by its bytes or by what its name says it holds."""
    ways = [_bytes, *FORMATS.get(path.suffix, [])]
    way = draw.choice(ways)
    draw.note("mutation", way.__name__.strip("_"))
    if way is _bytes and draw.chance(0.2):
        _replaced(draw, path, trap)
        return
    content = way(draw, path.read_bytes(), trap)
    path.unlink()  # it may be a link
    path.write_bytes(content)


def _replaced(draw: Draw, path: Path, trap: Trap) -> None:
    """By nothing, a folder, or a link."""
    way = draw.one("replaced by", ("nothing", "a folder", "a link to nowhere", "a link out", "a link out"))
    path.unlink()
    if way == "a folder":
        path.mkdir()
    elif way == "a link to nowhere":
        path.symlink_to(trap.escape / "nowhere")
    elif way == "a link out":
        path.symlink_to(draw.choice((trap.outside / path.relative_to(trap.home), Path("/etc/passwd"))))


def _bytes(draw: Draw, content: bytes, trap: Trap) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 5))):
        start = draw.randrange(len(changed) + 1)
        end = min(len(changed), start + draw.choice((1, 4, 64, 1000)))
        way = draw.choice(("flip", "flip", "truncate", "insert", "delete", "repeat", "zero", "empty"))
        if way == "flip" and changed:
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        elif way == "truncate":
            del changed[start:]
        elif way == "insert":
            changed[start:start] = draw.randbytes(draw.choice((1, 8, 100)))
        elif way == "delete":
            del changed[start:end]
        elif way == "repeat":
            changed[start:start] = changed[start:end]
        elif way == "zero":
            changed[start:end] = bytes(end - start)
        elif draw.chance(0.1):
            changed.clear()
    return bytes(changed)


class _Raw(str):
    """Text that goes into JSON as it is: what `json.dumps` cannot say."""


def _value(draw: Draw, old: Any, trap: Trap) -> Any:
    """Something else where `old` stood: another type, a number out of range, a path, a structure without end."""
    out = ("../../escaped", str(trap.escape), "/etc/passwd", "..", str(trap.escape / "file.safetensors"))
    numbers = (0, -1, 1, 2**31, 2**40, 2**63, -(2**63), 1e308, float("nan"), float("inf"), 0.5, _Raw(HUGE_INTEGER))
    texts = ("", "x", "\x00", "\ud800", "é" * 200, "1", "null", "<script>alert(1)</script>", "__class__", *out)
    others: tuple[Any, ...] = (
        None,
        True,
        False,
        [],
        {},
        [None],
        [[]],
        {"": {}},
        [old],
        {"x": old},
        str(old),
        _Raw("[" * DEEP + "]" * DEEP),
    )
    if isinstance(old, str) and old.endswith(".safetensors") and draw.chance(0.3):
        return draw.choice((f"../outside/{old}", str(trap.outside / old)))
    if isinstance(old, int | float) and not isinstance(old, bool) and draw.chance(0.5):
        return draw.choice((old + 1, old - 1, -old, old * 1000, old * 10**9, float(old), str(old)))
    return draw.choice(draw.choice((numbers, texts, others)))


def _changed(draw: Draw, content: Any, trap: Trap) -> Any:
    """One entry of a structure replaced, left out, renamed, added or given twice."""
    if not isinstance(content, dict | list) or not content or draw.chance(0.03):
        return _value(draw, content, trap)
    keys = list(content) if isinstance(content, dict) else list(range(len(content)))
    key = draw.choice(keys)
    if isinstance(content[key], dict | list) and content[key] and draw.chance(0.7):
        changed = _changed(draw, content[key], trap)
        return {**content, key: changed} if isinstance(content, dict) else [*content[:key], changed, *content[key + 1 :]]
    way = draw.choice(("value", "value", "value", "value", "drop", "rename", "add", "swap", "remote code"))
    copy = content.copy()
    if way == "value":
        copy[key] = _value(draw, content[key], trap)
    elif way == "drop":
        del copy[key]
    elif way == "swap":
        other = draw.choice(keys)
        copy[key], copy[other] = copy[other], copy[key]
    elif isinstance(copy, list):
        copy.insert(key, _value(draw, content[key], trap))
    elif way == "rename":
        copy[draw.choice(("", "x", f"{key} ", "__init__", "self", "output"))] = copy.pop(key)
    elif way == "add":
        copy[draw.choice(("x", "dtype", "torch_dtype", "quantization_config", "model_type", "architectures"))] = _value(
            draw, "x", trap
        )
    else:
        classes = ("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer", "AutoModel")
        copy["auto_map"] = {
            name: draw.choice(("evil.Evil", ["evil.Evil", None], f"{trap.escape}--evil.Evil")) for name in classes
        }
        if draw.chance(0.5):
            copy["model_type"] = draw.choice(("evil", None, "llama"))
    return copy


def _dumped(content: Any) -> bytes:
    """JSON with raw texts in it."""
    raw: list[str] = []

    def marked(value: Any) -> Any:
        if isinstance(value, _Raw):
            raw.append(value)
            return f"@raw{len(raw) - 1}@"
        if isinstance(value, dict):
            return {key: marked(inner) for key, inner in value.items()}
        return [marked(inner) for inner in value] if isinstance(value, list) else value

    text = json.dumps(marked(content), indent=1)
    for number, inner in enumerate(raw):
        text = text.replace(f'"@raw{number}@"', inner)
    return text.encode("utf-8", "surrogatepass")


def _json(draw: Draw, content: bytes, trap: Trap) -> bytes:
    changed = json.loads(content)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        changed = _changed(draw, changed, trap)
    return _dumped(changed)


def _json_twice(draw: Draw, content: bytes, trap: Trap) -> bytes:
    """The same key again with another value; a byte order mark; something after the end."""
    text = content.decode().strip()
    if text.startswith("{") and draw.chance(0.5):
        known = json.loads(content)
        key = draw.choice(list(known)) if known else "x"
        again = _dumped({key: _value(draw, known.get(key), trap)}).decode("utf-8", "surrogatepass").strip()[1:-1]
        return f"{text[:-1]}, {again}}}".encode("utf-8", "surrogatepass")
    return draw.choice((b"\xef\xbb\xbf" + content, content + b"{}", content.decode().encode("utf-16"), content * 2))


def _lines(draw: Draw, content: bytes, trap: Trap) -> bytes:
    lines = content.splitlines()
    for _ in range(draw.choice((1, 1, 3))):
        at = draw.randrange(len(lines))
        entry = _dumped(_changed(draw, json.loads(content.splitlines()[at]), trap))
        lines[at] = entry.replace(b"\n", b"") if draw.chance(0.9) else entry
    return b"\n".join(lines) + b"\n"


def _safetensors(draw: Draw, content: bytes, trap: Trap) -> bytes:
    """Lies in the header, or about its length."""
    size = struct.unpack("<Q", content[:8])[0]
    header, data = content[8 : 8 + size], content[8 + size :]
    if draw.chance(0.1):
        return struct.pack("<Q", draw.choice((0, 1, size - 1, size + 8, 2**31, 2**63, 2**64 - 1))) + header + data
    described = json.loads(header)
    metadata = described.get("__metadata__", {})
    if metadata.get("state") and draw.chance(0.5):
        metadata["state"] = _json(draw, metadata["state"].encode(), trap).decode("utf-8", "replace")
    elif draw.chance(0.3):
        name = draw.choice([name for name in described if name != "__metadata__"])
        entry = described[name]
        field = draw.choice(("dtype", "shape", "data_offsets", "name"))
        if field == "dtype":
            entry["dtype"] = draw.choice(("F64", "F16", "BF16", "I64", "BOOL", "U8", "F8_E4M3"))
        elif field == "shape":
            entry["shape"] = draw.choice((entry["shape"][::-1], [*entry["shape"], 1], [1, *entry["shape"]], [], [0]))
        elif field == "name":
            described[draw.choice(("x", f"{name}.x", ""))] = described.pop(name)
        else:
            entry["data_offsets"] = [draw.choice((0, 1, len(data))), draw.choice((0, len(data), 2**40))]
    else:
        described = _changed(draw, described, trap)
    header = _dumped(described)
    return struct.pack("<Q", len(header)) + header + data


class _Payload:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (self.command,)


def _pickle(draw: Draw, content: bytes, trap: Trap) -> bytes:
    """A pickle that runs a command when it is read as one, bare or as torch writes it, or other plain content."""
    import torch

    payload = _Payload(trap.command)
    plain = draw.choice(
        (
            {},
            [],
            None,
            3,
            {"state": {}, "param_groups": []},
            {"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": [{}]},
        )
    )
    saved = draw.choice((payload, {"state": payload}, plain, plain))
    if draw.chance(0.3):
        return pickle.dumps(saved)
    stream = io.BytesIO()
    torch.save(saved, stream, _use_new_zipfile_serialization=draw.chance(0.7))
    return stream.getvalue()


def _yaml(draw: Draw, content: bytes, trap: Trap) -> bytes:
    lines = content.decode().splitlines()
    at = draw.randrange(len(lines))
    name = lines[at].partition(":")[0]
    values = (
        f"!!python/object/apply:os.system ['{trap.command}']",
        f"!!python/object/new:os.system ['{trap.command}']",
        "!!python/name:os.system",
        "!!binary /w==",
        "*nothing",
        "&a [*a]",
        "{a: 1, a: 2}",
        "[" * 5000,
        "2001-01-01",
        "0o17",
        ".nan",
        "-.inf",
        "~",
        "1_000",
        "9" * 5000,
        "yes",
        "|",
        "'",
        "../../escaped",
        str(trap.escape),
        str(_value(draw, 1, trap))[:10_000],
    )
    if draw.chance(0.1):
        return BOMB.encode()
    lines[at] = draw.choice((f"{name}: {draw.choice(values)}", f"{draw.choice(values)}: 1", f"<<: {draw.choice(values)}"))
    return "\n".join(lines).encode("utf-8", "surrogatepass")


FORMATS: dict[str, list[Any]] = {
    ".json": [_json, _json, _json, _json_twice],
    ".jsonl": [_lines, _lines],
    ".safetensors": [_safetensors, _safetensors],
    ".pt": [_pickle],
    ".pth": [_pickle],
    ".yaml": [_yaml, _yaml, _yaml],
}
