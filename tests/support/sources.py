"""Finders for what our sources must not contain; each walks a syntax tree and returns the offending nodes."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "service" / "rota"
# The packages that decide. They take the time and all ids from outside, so that a seed reproduces what they did.
PURE = ("core", "protocol")

# id() and hash() of a string differ from run to run; the others are input and output.
_IMPURE_BUILTINS = {"hash", "id", "input", "open", "print"}
_SET_TYPES = {"AbstractSet", "MutableSet", "Set", "frozenset", "set"}
_SET_METHODS = {"difference", "intersection", "symmetric_difference", "union"}
# What comes out of these does not depend on the order of what goes in.
_ORDER_BLIND = {"Counter", "all", "any", "frozenset", "len", "max", "min", "set", "sorted", "sum"}
_ORDER_TAKERS = {"dict", "enumerate", "iter", "list", "map", "next", "reversed", "tuple", "zip"}


@dataclass(frozen=True, slots=True)
class Source:
    """A module of ours, read and parsed."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """Its path below `rota`."""
        return self.path.relative_to(PACKAGE).as_posix()

    @property
    def package(self) -> str:
        """The package below `rota` that it belongs to; its own name for a module directly in `rota`."""
        return self.name.partition("/")[0]

    def at(self, node: ast.AST) -> str:
        """Where a node stands, so that an editor finds it."""
        return f"{self.path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


def parse(text: str, path: str = "<text>") -> ast.Module:
    """As `ast.parse`. A collection of garbage in its midst may run Python code, on which CPython 3.11 fails with
    `SystemError: AST constructor recursion depth mismatch` (gh-106905).
    """
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text, path)
    finally:
        if is_collecting:
            gc.enable()


@cache
def sources() -> tuple[Source, ...]:
    """All modules of the package but the generated ones. Callers do not change them."""
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if path.relative_to(PACKAGE).parts[0] != "v1"]
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    return tuple(Source(path, text, parse(text, str(path))) for path, text in texts.items())


def pure_sources() -> list[Source]:
    """The modules of the packages that decide."""
    return [source for source in sources() if source.package in PURE]


def impure_calls(tree: ast.Module) -> Iterator[ast.AST]:
    """Calls of built-ins that differ from run to run, or do input and output. The import linter forbids modules."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in _IMPURE_BUILTINS:
                yield node


def functions_longer_than(lines: int, tree: ast.Module) -> Iterator[ast.AST]:
    """Functions of more lines than that, decorators not counted."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (node.end_lineno or 0) - node.lineno >= lines:
            yield node


def loops_over_sets(tree: ast.Module) -> Iterator[ast.AST]:
    """Places where the order of a set, which differs from run to run, gets into a result.

    Best effort: a set is known by its display, its constructor, an operation on one, the annotation of its name or
    attribute, or by all that its name is assigned in a function. What is sorted or only counted may come from a set.
    """
    fields = _fields_that_are_sets(tree)
    blind = set(_order_blind_arguments(tree))
    for scope in _scopes(tree):
        names = fields | _names_of_sets(scope)
        for node in scope:
            if node not in blind and any(_is_set(source, names) for source in _taken_in_order(node)):
                yield node


def _taken_in_order(node: ast.AST) -> list[ast.expr]:
    """What a node reads one by one, where the order shows in the outcome."""
    match node:
        case ast.For(iter=looped) | ast.Starred(value=looped):
            return [looped]
        case ast.ListComp(generators=loops) | ast.GeneratorExp(generators=loops) | ast.DictComp(generators=loops):
            return [loop.iter for loop in loops]
        case ast.Call(func=ast.Name(id=taker), args=arguments) if taker in _ORDER_TAKERS:
            return arguments
        case ast.Call(func=ast.Attribute(attr="join" | "fromkeys" | "extend"), args=[argument, *_]):
            return [argument]
        case ast.Call(func=ast.Attribute(value=popped, attr="pop"), args=[]):
            return [popped]
    return []


def _scopes(tree: ast.Module) -> list[list[ast.AST]]:
    """The nodes of each outermost function with all that is inside of it, and those outside of any."""
    outside: list[ast.AST] = []
    functions: list[list[ast.AST]] = []
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append(list(ast.walk(node)))
        else:
            outside.append(node)
            waiting.extend(ast.iter_child_nodes(node))
    return [outside, *functions]


def _order_blind_arguments(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node.func) in _ORDER_BLIND:
            yield from node.args
        if isinstance(node, ast.Set):
            yield from node.elts


def _fields_that_are_sets(tree: ast.Module) -> set[str]:
    """Attributes that a class of the module declares as a set, each with a dot before its name."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    fields = [node for each in classes for node in each.body if isinstance(node, ast.AnnAssign)]
    return {f".{_name(field.target)}" for field in fields if _is_set_type(field.annotation)}


def _names_of_sets(scope: list[ast.AST]) -> set[str]:
    """Names that are annotated as a set in a scope, or assigned nothing but sets."""
    is_set: dict[str, bool] = {}
    for node in scope:
        match node:
            case (
                ast.AnnAssign(target=ast.Name(id=name), annotation=kind)
                | ast.arg(arg=name, annotation=ast.expr() as kind)
            ):
                is_set[name] = is_set.get(name, True) and _is_set_type(kind)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                is_set[name] = is_set.get(name, True) and _is_set(value, set())
    return {name for name, yes in is_set.items() if yes}


def _is_set_type(annotation: ast.expr) -> bool:
    return _name(annotation.value if isinstance(annotation, ast.Subscript) else annotation) in _SET_TYPES


def _is_set(node: ast.expr, names: set[str]) -> bool:
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Name(id=name):
            return name in names
        case ast.Attribute(attr=name):
            return f".{name}" in names
        case ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.Call(func=ast.Attribute(value=operand, attr=attr)) if attr in _SET_METHODS:
            return _is_set(operand, names)
        case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr() | ast.Sub() | ast.BitXor(), right=right):
            return _is_set(left, names) or _is_set(right, names)
    return False


def _name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""
