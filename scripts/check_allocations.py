"""Every tensor that the package makes says its dtype and device: `python scripts/check_allocations.py [folder …]`.

A program may change torch's defaults at any time, as loaders do while they build a model. A buffer that follows them has
another size than the kernel that fills it expects, and a table that is kept from call to call stays wrong for good. So
calls such as torch.empty(…) name both `dtype` and `device`. Parameters are what the defaults are for: a call inside
nn.Parameter(…) follows them, as those of nn.Linear do.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "maclaurin"
PARAMETERS = {"Parameter", "ParameterDict"}
# whole numbers whatever the default is, or the numbers that they are given
OF_DEFAULT_DEVICE = {"randint", "randperm", "tril_indices", "triu_indices", "as_tensor", "asarray"}
OF_DEFAULTS = {
    *("empty", "empty_strided", "zeros", "ones", "full", "eye"),
    *("rand", "randn", "normal", "arange", "range", "linspace", "logspace"),
    *("tensor", "scalar_tensor"),
    *("bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window"),
}


def missing(call: ast.Call) -> list[str]:
    """The arguments that a call of torch.<factory>(…) leaves to torch's defaults; none for any other call."""
    match call.func:
        case ast.Attribute(value=ast.Name(id="torch"), attr=name) if name in OF_DEFAULTS | OF_DEFAULT_DEVICE:
            wanted = ["device"] if name in OF_DEFAULT_DEVICE else ["dtype", "device"]
            given = {keyword.arg for keyword in call.keywords}
            return [] if None in given else [argument for argument in wanted if argument not in given]
    return []


def calls_outside_parameters(node: ast.AST) -> Iterator[ast.Call]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            name = getattr(child.func, "attr", getattr(child.func, "id", None))
            if name in PARAMETERS:
                continue
            yield child
        yield from calls_outside_parameters(child)


def offences(path: Path) -> Iterator[str]:
    for call in calls_outside_parameters(ast.parse(path.read_text(encoding="utf-8"))):
        if arguments := missing(call):
            yield f"{path}:{call.lineno}: {ast.unparse(call.func)} without {' and '.join(arguments)}"


def main(folders: list[str]) -> int:
    found = []
    for folder in map(Path, folders or [PACKAGE]):
        for path in sorted(folder.rglob("*.py")):
            found += offences(path)
    for line in found:
        print(line, file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
