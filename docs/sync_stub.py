"""Writes service/rota/client/sync.pyi: what type checkers know of the SDK's sync twin, read off the async classes.

The twin is one generic class, so its types cannot be seen in it. They follow by rule: what is awaited there is waited
for here, `async with` is `with`, async iterators are iterators, and what users hand in are plain functions.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path

from docs.source import Attribute, Module, attributes_of, is_text, lineage

STUB = Path(__file__).parents[1] / "service" / "rota" / "client" / "sync.pyi"
WIDTH = 120
_NOTE = (
    "# Written by docs/generate.py (make docs) from the classes of the same names in rota.client: change those instead."
)
_EVENT = '''class Event:
    """As a `threading.Event`."""

    def is_set(self) -> bool: ...
    def set(self) -> None: ...
    def clear(self) -> None: ...
    def wait(self, *, timeout: float | None = None) -> bool:
        """Wait for it to be set; `TimeoutError` after so many seconds."""
'''


def sync_stub() -> str:
    """The text of the stub."""
    from rota.client import client
    from rota.client.twin import TWINS

    classes = [kind for kind in TWINS if kind.__module__.startswith("rota.")]
    modules = {kind: Module(inspect.getmodule(kind)) for kind in classes}
    stub = _Stub({kind.__name__ for kind in classes})
    connect = stub.function(Module(client), Module(client).definition("connect"))
    # A class comes after the one that it is derived from.
    bodies = [stub.class_of(modules[kind], modules[kind].definition(kind.__name__)) for kind in classes]
    exported = ", ".join(f'"{name}"' for name in (*sorted({*(kind.__name__ for kind in classes), "Event"}), "connect"))
    names = f"__all__ = [{exported}]"
    if len(names) > WIDTH:
        names = "__all__ = [\n    " + exported.replace(", ", ",\n    ") + ",\n]"
    head = [_NOTE, "from __future__ import annotations", "\n".join(stub.imports()), names]
    return "\n\n".join((*head, *stub.aliases.values(), connect, _EVENT.rstrip(), *bodies)) + "\n"


class _Stub:
    """Collects what the definitions need beside themselves."""

    def __init__(self, twinned: set[str]) -> None:
        self._twinned = twinned
        self._needed: set[tuple[str, str]] = set()
        self.aliases: dict[str, str] = {}

    def imports(self) -> Iterator[str]:
        by_module: dict[str, set[str]] = {}
        for module, name in self._needed:
            by_module.setdefault(module, set()).add(name)
        # As isort has them: the standard library first, then ours.
        for ours in (False, True):
            for module in sorted(by_module):
                if module.startswith("rota.") is ours:
                    yield _import(module, sorted(by_module[module], key=_by_case))
            if not ours:
                yield ""

    def class_of(self, module: Module, node: ast.stmt | None) -> str:
        assert isinstance(node, ast.ClassDef)
        own, *unknown = lineage(module, node, self._twinned)
        parts = [_docstring(node)]
        for home, each in (*unknown, own):
            parts += [self._attribute(home, attribute) for attribute in attributes_of(each)]
        seen: set[str] = set()
        for home, each in (own, *unknown):
            parts += self._methods(home, each, seen)
        merged = {each.name for _, each in unknown}
        kept = [base for base in node.bases if not isinstance(base, ast.Name) or base.id not in merged]
        bases = ", ".join(self._type(module, base) for base in kept)
        head = f"class {node.name}({bases}):" if bases else f"class {node.name}:"
        return head + "\n" + textwrap.indent(_joined([part for part in parts if part]), "    ")

    def _methods(self, module: Module, node: ast.ClassDef, seen: set[str]) -> Iterator[str]:
        """Those that no class before it in the lineage has; `seen` are their names."""
        for each in node.body:
            if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) or each.name in seen:
                continue
            seen.add(each.name)
            if each.name == "__aenter__":
                yield self._block(module, each)
            elif not each.name.startswith("_"):
                yield self.function(module, each)

    def function(self, module: Module, node: ast.stmt | None) -> str:
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        assert node.returns is not None, f"{node.name} says nothing of what it returns"
        parameters = list(self._parameters(module, node.args))
        if node.name in _waits():
            parameters += ["*", "timeout: float | None = None"]
        decorators = "".join(f"@{ast.unparse(each)}\n" for each in node.decorator_list)
        returns = self._type(module, node.returns)
        line = f"def {node.name}({', '.join(parameters)}) -> {returns}:"
        if len(line) + 4 > WIDTH:
            line = f"def {node.name}(\n    " + ",\n    ".join(parameters) + f",\n) -> {returns}:"
        docstring = _docstring(node)
        return decorators + line + ("\n" + textwrap.indent(docstring, "    ") if docstring else " ...")

    def _parameters(self, module: Module, given: ast.arguments) -> Iterator[str]:
        defaults = [None] * (len(given.args) - len(given.defaults)) + list(given.defaults)
        for each, default in zip(given.args, defaults, strict=True):
            yield self._parameter(module, each, default)
        if given.kwonlyargs:
            yield "*"
        for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
            yield self._parameter(module, each, default)
        if given.kwarg:
            yield f"**{self._parameter(module, given.kwarg, None)}"

    def _parameter(self, module: Module, given: ast.arg, default: ast.expr | None) -> str:
        text = given.arg if given.annotation is None else f"{given.arg}: {self._type(module, given.annotation)}"
        if default is None:
            return text
        return f"{text} = {self._type(module, default)}" if given.annotation else f"{text}={ast.unparse(default)}"

    def _attribute(self, module: Module, given: Attribute) -> str:
        text = f'\n"""{given.text}"""' if given.text else ""
        return f"{given.name}: {self._type(module, given.kind)}{text}"

    def _block(self, module: Module, enter: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
        assert enter.returns is not None
        self._needed.add(("types", "TracebackType"))
        parameters = "self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None"
        returns = self._type(module, enter.returns)
        return f"def __enter__(self) -> {returns}: ...\ndef __exit__(\n    {parameters}\n) -> None: ..."

    def _type(self, module: Module, node: ast.expr) -> str:
        """A type, or a default, as it is here; what it names is imported."""
        changed = _Sync().visit(ast.parse(ast.unparse(node), mode="eval").body)
        for each in ast.walk(changed):
            if isinstance(each, ast.Name):
                self._need(module, each.id)
        return ast.unparse(changed).replace("'", '"')

    def _need(self, module: Module, name: str) -> None:
        home = module.home_of(name) if name not in self._twinned else None
        if name in ("Iterator",):
            home = ("collections.abc", name)
        if home is None or name in self.aliases:
            return
        if home[0].startswith("rota.") and (alias := self._alias_of_functions(*home)) is not None:
            self.aliases[name] = alias
        else:
            self._needed.add(home)

    def _alias_of_functions(self, module_name: str, name: str) -> str | None:
        """An alias of types that speaks of what is awaited is another here."""
        import importlib

        module = Module(importlib.import_module(module_name))
        node = module.definition(name)
        if not isinstance(node, ast.AnnAssign | ast.Assign):
            return None
        assert node.value is not None
        text: str = node.value.value if is_text(node) else ast.unparse(node.value)  # type: ignore[attr-defined]
        value = ast.parse(text, mode="eval").body
        names = {each.id for each in ast.walk(value) if isinstance(each, ast.Name)}
        if not names & ({"Awaitable", "Assignments"} | self._twinned):
            return None
        self._needed.add(("typing", "TypeAlias"))
        return f"{name}: TypeAlias = {self._type(module, value)}"


class _Sync(ast.NodeTransformer):
    """What becomes of a type when nothing is awaited."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        match node.value:
            case ast.Name(id="Awaitable"):
                return node.slice
            case ast.Name(id="AsyncIterator"):
                node.value = ast.Name("Iterator")
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """`Awaitable[None] | None` is `None`."""
        self.generic_visit(node)
        return node.left if ast.dump(node.left) == ast.dump(node.right) else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return ast.Name("Event") if ast.unparse(node) == "asyncio.Event" else node


def _waits() -> frozenset[str]:
    from rota.client.twin import WAITS

    return WAITS


def _docstring(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    text = ast.get_docstring(node)
    if text is None:
        return ""
    text = text.replace("`async with`", "`with`").replace("async with", "with").replace("an `with`", "a `with`")
    text = text.replace("An async function", "A function").replace("await ", "").replace("; plain or async", "")
    ends = '\n"""' if "\n" in text else '"""'
    return f'"""{text}{ends}'


def _joined(parts: list[str]) -> str:
    """Without an empty line after what has no docstring, as formatters have it in stubs."""
    return "".join(part + ("\n" if part.endswith("...") else "\n\n") for part in parts).rstrip("\n")


def _import(module: str, names: list[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    return line if len(line) <= WIDTH else f"from {module} import (\n    " + ",\n    ".join(names) + ",\n)"


def _by_case(name: str) -> tuple[bool, str]:
    """Constants come before classes, as isort has them."""
    return not name.isupper(), name
