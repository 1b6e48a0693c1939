"""A name with an underscore belongs to its package, and nothing that ships needs the tools of tests."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_layers import ROOT, inside, modules, named, unit, written

TOOLS_OF_TESTS = ("doctest", "pytest", "unittest")
Use = tuple[int, str, str]  # line, the unit that the name is said to be in ("" if the syntax does not tell), the name


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def defined(nodes: list[ast.AST]) -> set[str]:
    """The private names that a file gives to anything: functions, classes, variables, attributes."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return set(filter(is_private, names))


def used(module: str, path: Path, nodes: list[ast.AST], units: dict[str, str]) -> Iterator[Use]:
    """Private names that a file imports, or reads as attributes."""
    bound = {}  # names of this file that are modules
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name, alias in zip(named(node, module, path), node.names, strict=True):
                if name in units:
                    bound[alias.asname or alias.name] = units[name]
                elif is_private(last := name.rpartition(".")[2]) and (home := inside(name, units)):
                    yield node.lineno, units[home], last
    for node in nodes:
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            yield node.lineno, bound.get(ast.unparse(node.value), ""), node.attr


def breaches(package: Path) -> list[str]:
    """A sentence for each private name that a package uses of another, and for each import of a tool of tests.

    An attribute of an object counts where other packages define it and its own does not: those of libraries do not count.
    """
    paths = modules(package)
    trees = {module: [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))] for module, path in sorted(paths.items())}
    units = {module: unit(module, path) for module, path in paths.items()}
    homes: dict[str, set[str]] = {}
    for module, nodes in trees.items():
        for name in defined(nodes):
            homes.setdefault(name, set()).add(units[module])
    found = []
    for module, nodes in trees.items():
        own, file = units[module], paths[module].relative_to(package.parent)
        for line, home, name in used(module, paths[module], nodes, units):
            if own not in ({home} if home else homes.get(name, {own})):
                found.append(f"{file}:{line} uses {name}")
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                tools = [name for name in named(node, module, paths[module]) if name.split(".")[0] in TOOLS_OF_TESTS]
                found += [f"{file}:{node.lineno} imports {name}" for name in tools]
    return found


def test_private_names_stay_in_their_package_and_tools_of_tests_in_the_tests():
    assert breaches(ROOT / "maclaurin") == []


@pytest.fixture
def tree(tmp_path):
    """A package that keeps its private names to itself."""
    files = {
        "low/__init__.py": "",
        "low/tool.py": "_hidden = 1\nclass Tool:\n    def _turn(self): self._angle = _hidden\n",
        "low/user.py": "from maclaurin.low.tool import _hidden\nfrom . import tool\ntool._hidden, tool.Tool()._turn()\n",
        "high/__init__.py": "",
        "high/user.py": "",
    }
    return written(tmp_path / "maclaurin", files)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "import os\nos._exit(0)",  # of a library
        "from maclaurin.low.tool import Tool\nprint(Tool.__name__)",
        "class Mine:\n    def _turn(self): pass\nMine()._turn()",  # of its own, by chance the name of another's
    ],
)
def test_private_names_at_home_pass(tree, text):
    (tree / "high/user.py").write_text(text)
    assert breaches(tree) == []


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("from maclaurin.low.tool import _hidden", "uses _hidden"),
        ("from ..low.tool import _hidden as shown", "uses _hidden"),
        ("def f(): from maclaurin.low.tool import _hidden", "uses _hidden"),
        ("import maclaurin.low.tool; maclaurin.low.tool._hidden", "uses _hidden"),
        ("from maclaurin.low import tool as t; t._hidden", "uses _hidden"),
        ("_hidden = 2; from maclaurin.low import tool; tool._hidden", "uses _hidden"),  # its own is another one
        ("def f(tool): tool._turn()", "uses _turn"),
        ("def f(tool): return tool._angle", "uses _angle"),
        ("from unittest.mock import patch", "imports unittest.mock.patch"),
        ("def f(): import pytest", "imports pytest"),
    ],
)
def test_a_private_name_of_another_package_or_a_tool_of_tests_is_found(tree, text, what):
    (tree / "high/user.py").write_text(text)
    assert breaches(tree) == [f"maclaurin/high/user.py:1 {what}"]
