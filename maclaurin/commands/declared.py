"""Functions as their source declares them: arguments, defaults and docstring, without importing what they need to run."""

from __future__ import annotations

import ast
import importlib.util
import math
from collections.abc import Callable
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any


def declared(module: str, name: str) -> Callable[..., Any]:
    """A function of that name, signature and docstring, which does nothing."""
    tree = _tree(module)
    (found,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    arguments = found.args
    arguments.defaults = [ast.Constant(_value(module, default)) for default in arguments.defaults]
    arguments.kw_defaults = [default and ast.Constant(_value(module, default)) for default in arguments.kw_defaults]
    found.returns, found.decorator_list = None, []
    found.body = [ast.Expr(ast.Constant(ast.get_docstring(found) or ""))]
    names: dict[str, Any] = {}
    exec(compile(ast.fix_missing_locations(ast.Module([found], [])), module, "exec"), names)
    stub: Callable[..., Any] = names[name]
    return stub


@cache
def _source(module: str) -> str:
    """The package that holds it may be imported: those of the lab are light, their modules are not."""
    home, _, own = module.rpartition(".")
    if not home:
        raise ValueError(f"{module} is no module of a package")
    spec = importlib.util.find_spec(home)
    folders = spec.submodule_search_locations if spec and spec.submodule_search_locations else []
    for folder in folders:
        for file in (Path(folder, f"{own}.py"), Path(folder, own, "__init__.py")):
            if file.is_file():
                return file.read_text(encoding="utf-8")
    raise ValueError(f"there is no module {module}")


def _tree(module: str) -> ast.Module:
    return ast.parse(_source(module))


def _value(module: str, node: ast.expr) -> Any:
    """What a default is: written out, a constant of math, or one of this module or of the one that it is imported from."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "math":
        return getattr(math, node.attr)
    if isinstance(node, ast.Tuple):
        parts = (_value(module, one.value) if isinstance(one, ast.Starred) else [_value(module, one)] for one in node.elts)
        return tuple(chain.from_iterable(parts))
    if not isinstance(node, ast.Name):
        return ast.literal_eval(node)
    for line in _tree(module).body:
        if isinstance(line, ast.ImportFrom) and line.module and any(alias.name == node.id for alias in line.names):
            return _value(line.module, node)
        if isinstance(line, ast.Assign) and any(isinstance(one, ast.Name) and one.id == node.id for one in line.targets):
            return _value(module, line.value)
    raise ValueError(f"{module} does not define {node.id}")
