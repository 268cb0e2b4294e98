"""Reads the SDK's source as what it says: definitions, where names come from, and documented attributes."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from types import ModuleType


class Module:
    """A module's source: its definitions, and where the names in it come from."""

    def __init__(self, module: ModuleType | None) -> None:
        assert module is not None
        self.name = module.__name__
        self._module = module
        self._tree = ast.parse(inspect.getsource(module))
        self._imported = {
            alias.asname or alias.name: (node.module or "", alias.name)
            for node in self._tree.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }

    def definition(self, name: str) -> ast.stmt | None:
        """A class, function or type alias; None where it is only passed on."""
        return next((node for node in self._tree.body if name in names_defined(node)), None)

    def value_of(self, name: str) -> object:
        """What a name stands for."""
        return getattr(self._module, name)

    def home_of(self, name: str) -> tuple[str, str] | None:
        """Module and name where something is imported from; None for built-ins."""
        if any(name in names_defined(node) for node in self._tree.body):
            return self.name, name
        return self._imported.get(name)


def lineage(module: Module, node: ast.ClassDef, known: Collection[str]) -> Iterator[tuple[Module, ast.ClassDef]]:
    """A class and those of its bases that readers do not know: what they have is shown as its own."""
    yield module, node
    for base in node.bases:
        home = module.home_of(base.id) if isinstance(base, ast.Name) and base.id not in known else None
        if home is not None and home[0].startswith("rota."):
            of_base = Module(importlib.import_module(home[0]))
            definition = of_base.definition(home[1])
            assert isinstance(definition, ast.ClassDef)
            yield from lineage(of_base, definition, known)


@dataclass(frozen=True, slots=True)
class Attribute:
    """What `__init__` sets on an object, with the docstring that follows."""

    name: str
    kind: ast.expr
    text: str


def attributes_of(node: ast.ClassDef) -> Iterator[Attribute]:
    """The public ones, which must be annotated."""
    init = next((each for each in node.body if getattr(each, "name", "") == "__init__"), None)
    body: list[ast.stmt] = getattr(init, "body", [])
    for each, following in zip(body, [*body[1:], ast.Pass()], strict=False):
        match each:
            case ast.AnnAssign(target=ast.Attribute(attr=name), annotation=kind) if not name.startswith("_"):
                yield Attribute(name, kind, following.value.value if is_text(following) else "")  # type: ignore[attr-defined]
            case ast.Assign(targets=targets):
                for target in targets:
                    is_own = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)
                    is_public = is_own and not target.attr.startswith("_")  # type: ignore[attr-defined]
                    assert not is_public, f"{node.name}: an annotation is missing at {ast.unparse(each)}"


def names_defined(node: ast.stmt) -> set[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return {name}
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
            return {name}
    return set()


def is_text(node: ast.AST) -> bool:
    value = getattr(node, "value", None)
    return isinstance(value, ast.Constant) and isinstance(value.value, str)
