"""Packages import only what CONTRIBUTING.md puts below them, whether at the top of a file, inside a function or by name."""

import ast
import re
from collections.abc import Container, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LISTED = re.compile(r"^ {4}(?: *(\d+)  | +)(maclaurin/\S+) +\S", re.MULTILINE)  # level and path; parts have no level
DOTTED = re.compile(r"maclaurin(\.\w+)+\.?")  # a module as a string; what follows the last dot may be filled in


def levels(text: str) -> dict[str, int]:
    """The level of every package and module that the list has one for, by its name below `maclaurin`."""
    return {path.removeprefix("maclaurin/").rstrip("/"): int(level) for level, path in LISTED.findall(text) if level}


def modules(package: Path) -> dict[str, Path]:
    """Every module of a package by its dotted name."""
    found = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def named(node: ast.Import | ast.ImportFrom, module: str, path: Path) -> list[str]:
    """What a statement imports, dotted names from the root on, those it takes out of a module among them."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    home = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    above = home[: len(home) - node.level + 1] if node.level else []
    return [".".join([*above, *filter(None, [node.module]), alias.name]) for alias in node.names]


def inside(name: str, known: Container[str]) -> str:
    """The module that a dotted name is, or is a part of; "" if it is none of ours."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


def imported(module: str, path: Path, known: dict[str, Path]) -> Iterator[tuple[int, str]]:
    """Line and module of everything that a file imports, or names in a string as those who import later do."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = named(node, module, path)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and DOTTED.fullmatch(node.value):
            names = [node.value.rstrip(".")]
        yield from ((node.lineno, found) for name in names if (found := inside(name, known)))


def unit(module: str, path: Path) -> str:
    """What the list names: a package, a module beside them, or the package of all itself."""
    parts = module.split(".")
    if len(parts) == 1:
        return "__init__.py"
    return f"{parts[1]}.py" if len(parts) == 2 and path.name != "__init__.py" else parts[1]


def against_the_order(package: Path, order: dict[str, int]) -> list[str]:
    """A sentence for each import of something that is not below the importing package, and for each that is not listed."""
    known = modules(package)
    units = {module: unit(module, path) for module, path in known.items()}
    wrong = [f"{name} is not in the list" for name in sorted(set(units.values()) - set(order))]
    for module, path in sorted(known.items()):
        for line, target in imported(module, path, known):
            own, other = units[module], units[target]
            if own != other and order.get(other, 0) >= order.get(own, 0):
                wrong.append(f"{path.relative_to(package.parent)}:{line} imports {target}")
    return wrong


def test_imports_follow_the_order_of_contributing():
    assert against_the_order(ROOT / "maclaurin", levels((ROOT / "CONTRIBUTING.md").read_text())) == []


def test_the_list_names_every_package_and_nothing_else():
    listed = {path for _, path in LISTED.findall((ROOT / "CONTRIBUTING.md").read_text())}
    package = ROOT / "maclaurin"
    packages = {path.parent for pattern in ("*/__init__.py", "*/*/__init__.py") for path in package.glob(pattern)}
    there = {f"{folder.relative_to(ROOT)}/" for folder in packages}
    there |= {str(file.relative_to(ROOT)) for file in package.glob("*.py")}
    assert listed == there


ORDER = """
     1  maclaurin/low/        the bottom
     2  maclaurin/left/       above it
          maclaurin/left/in/  a part of it
     2  maclaurin/right/      beside it
     3  maclaurin/__init__.py names from below
     4  maclaurin/top.py      the top
"""


def written(package: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    return package


@pytest.fixture
def tree(tmp_path):
    """A package that keeps the order above."""
    files = {
        "__init__.py": "from maclaurin.left import thing\n",
        "low/__init__.py": "",
        "low/tool.py": "import os\nfrom pathlib import Path\n",
        "left/__init__.py": "from .user import thing\n",
        "left/user.py": "from maclaurin.low import tool\nfrom ..low.tool import Path\nthing = 1\n",
        "left/in/__init__.py": "from maclaurin.left import thing\n",
        "right/__init__.py": "",
        "top.py": "import maclaurin\nfrom maclaurin import right\n",
    }
    return written(tmp_path / "maclaurin", files)


def test_a_tree_that_keeps_the_order_passes(tree):
    assert against_the_order(tree, levels(ORDER)) == []


@pytest.mark.parametrize(
    ("file", "text", "target"),
    [
        ("low/tool.py", "import maclaurin.left.user", "maclaurin.left.user"),
        ("low/tool.py", "def f(): from maclaurin.left import thing", "maclaurin.left"),
        ("low/tool.py", "def f(): from ..left.user import thing", "maclaurin.left.user"),
        ("low/tool.py", "if TYPE_CHECKING: from maclaurin.top import main", "maclaurin.top"),
        ("low/tool.py", "import maclaurin", "maclaurin"),
        ("low/tool.py", "import_module('maclaurin.left')", "maclaurin.left"),
        ("low/tool.py", "import_module(f'maclaurin.left.{name}')", "maclaurin.left"),
        ("low/tool.py", "run(['python', '-m', 'maclaurin.top'])", "maclaurin.top"),
        ("left/user.py", "from maclaurin import right", "maclaurin.right"),
        ("left/in/__init__.py", "from ...right import thing", "maclaurin.right"),
    ],
)
def test_an_import_against_the_order_is_found(tree, file, text, target):
    (tree / file).write_text(text)
    assert against_the_order(tree, levels(ORDER)) == [f"maclaurin/{file}:1 imports {target}"]


@pytest.mark.parametrize(("file", "name"), [("new/__init__.py", "new"), ("new/part.py", "new"), ("new.py", "new.py")])
def test_a_package_or_module_that_is_not_listed_is_found(tree, file, name):
    (tree / file).parent.mkdir(exist_ok=True)
    (tree / file).write_text("")
    assert against_the_order(tree, levels(ORDER)) == [f"{name} is not in the list"]
