"""The house rules that a syntax tree can check. Each function takes source text and returns its violations."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
BROAD = frozenset({"Exception", "BaseException"})
EMPTY_NAMES = ("Manager", "Helper", "Utils", "Utilities")
# Not part of a longer path or an address: a machine's own folders, at the start of an absolute path.
MACHINE_PATH = re.compile(r"(?<![\w.~/-])/(?:work|root|home|Users)/[\w.-]+")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def too_many_lines(source: str) -> list[str]:
    """The length of a file of more than FILE_LINES_MAX lines."""
    lines = len(source.splitlines())
    return [f"{lines} lines"] if lines > FILE_LINES_MAX else []


def no_docstring(source: str) -> list[str]:
    """Modules without a docstring."""
    return [] if ast.get_docstring(_tree(source)) else ["no docstring"]


def long_functions(source: str) -> list[str]:
    """Functions of more than FUNCTION_LINES_MAX lines, not counting the docstring."""
    sizes = ((function, _lines(function)) for function, _ in _functions(_tree(source)))
    return [f"{function.name}: {lines} lines" for function, lines in sizes if lines > FUNCTION_LINES_MAX]


def prints(source: str) -> list[str]:
    """Calls of print."""
    return [f"line {call.lineno}: print" for call in _calls(_tree(source, "print")) if _names(call.func) == {"print"}]


def broad_handlers(source: str) -> list[str]:
    """Dotted names of the functions ("" outside any) that catch everything: `except:`, Exception or BaseException."""
    tree = _tree(source, "except:", *BROAD)
    owners = {child: name for function, name in _functions(tree) for child in ast.walk(function)}
    handlers = (node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler))
    return [owners.get(handler, "") for handler in handlers if handler.type is None or BROAD & _names(handler.type)]


def draws(source: str) -> list[str]:
    """Uses of numpy's random numbers."""
    attributes = (node for node in ast.walk(_tree(source, "random")) if isinstance(node, ast.Attribute))
    return [f"line {node.lineno}: random" for node in attributes if node.attr == "random"]


def managers(source: str) -> list[str]:
    """Classes named manager, helper or utilities: names without information."""
    classes = (node.name for node in ast.walk(_tree(source, *EMPTY_NAMES)) if isinstance(node, ast.ClassDef))
    return [name for name in classes if name.endswith(EMPTY_NAMES)]


def machine_paths(text: str) -> list[str]:
    """Absolute paths of a particular machine."""
    return MACHINE_PATH.findall(text)


def _tree(source: str, *words: str) -> ast.Module:
    """The syntax tree; empty if `words` are given and the source has none of them, because parsing is slow."""
    return parsed(source if not words or any(word in source for word in words) else "")


@functools.lru_cache(maxsize=2)  # the rules look at one file after the other
def parsed(source: str) -> ast.Module:
    """The syntax tree of a source text."""
    return ast.parse(source)


def _functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[Function, str]]:
    """Every function below a node with its dotted name, outer ones first."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):  # contains no functions but lambdas
            continue
        name = f"{prefix}{child.name}" if isinstance(child, Function | ast.ClassDef) else ""
        if isinstance(child, Function):
            yield child, name
        yield from _functions(child, f"{name}." if name else prefix)


def _lines(function: Function) -> int:
    first = function.body[0]
    documented = ast.get_docstring(function, clean=False) is not None
    docstring = (first.end_lineno or first.lineno) - first.lineno + 1 if documented else 0
    return (function.end_lineno or function.lineno) - function.lineno + 1 - docstring


def _calls(tree: ast.Module) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def _names(node: ast.AST) -> set[str]:
    return {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
