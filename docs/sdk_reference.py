"""Writes docs/reference/sdk.md: the SDK's public names with their signatures and docstrings."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from docs.source import Module, attributes_of, lineage

_WIDTH = 100
_SECTION = re.compile(r"^(Args|Raises):$", re.MULTILINE)
_SYNC = """`rota.client.sync` has the same names for programs without asyncio: `with` for `async with`, and what is
awaited here is waited for there. Callbacks, `work` and `assign` are plain functions, called in threads. A thread cannot
be cancelled: where a body would be, look at `term.is_valid` or `shard.is_held`, or wait for `term.lost`."""


def sdk_parts() -> Iterator[str]:
    """The page's parts, after its title."""
    import rota.client as sdk
    from rota.client import callbacks, client, events, options, roles

    yield inspect.getdoc(sdk) or ""
    yield _SYNC
    yield "[Defaults](defaults.md) gives the reason for each default time."
    yield from _function("", Module(client), "connect", level=2)
    yield _value(client, "INSTANCE_ID_VARIABLE", "The environment")
    described: dict[str, str] = {}
    for kind in (
        sdk.Client,
        sdk.Election,
        sdk.Term,
        sdk.Permits,
        sdk.Permit,
        sdk.WorkerPool,
        sdk.Shard,
        sdk.Consumer,
        sdk.ConnectWorker,
        sdk.Member,
    ):
        yield from _class(kind, described)
    yield "## Options"
    yield from _options(options)
    yield "## Callbacks"
    yield inspect.getdoc(callbacks.Listeners) or ""
    yield _told_of(callbacks, "Listener")
    yield from (_told_of(roles, name) for name in ("Assign", "Protocols", "Without"))
    yield "## Events of members"
    yield "Each is an item of `member.events()`."
    yield "\n".join(_events(events))
    yield "## Errors"
    yield inspect.getdoc(sdk.CoordinatorError) or ""
    kinds = [kind for name in sdk.__all__ if _is_error(kind := getattr(sdk, name), sdk.CoordinatorError)]
    yield "\n".join(f"- `{kind.__name__}`: {_joined(inspect.getdoc(kind) or '')}" for kind in kinds)


def _class(kind: type[Any], described: dict[str, str]) -> Iterator[str]:
    """A class; a method that another class inherits as well is described there, at its first owner."""
    import rota.client as sdk

    module = Module(inspect.getmodule(kind))
    node = module.definition(kind.__name__)
    assert isinstance(node, ast.ClassDef)
    yield f"## {kind.__name__}"
    yield _prose(ast.get_docstring(node) or "")
    family = [*lineage(module, node, sdk.__all__)]
    attributes = [_item(each.name, each.kind, each.text) for _, of in family for each in attributes_of(of) if each.text]
    members = [*_own_or_inherited(family)]
    properties = [each for _, each in members if _is_property(each) and each.returns and _is_documented(each)]
    listed = [_item(each.name, each.returns, ast.get_docstring(each) or "") for each in properties if each.returns]
    if attributes or listed:
        yield "\n".join([*attributes, *listed])
    inherited: dict[str, list[str]] = {}
    for home, each in members:
        if _is_told(each):
            owner = described.setdefault(ast.dump(each), kind.__name__)
            if owner == kind.__name__:
                yield from _function(f"{kind.__name__}.", home, each, level=3)
            else:
                inherited.setdefault(owner, []).append(f"`{each.name}`")
    for owner, names in inherited.items():
        yield f"{', '.join(names)}: as those of `{owner}`."


def _own_or_inherited(
    family: list[tuple[Module, ast.ClassDef]],
) -> Iterator[tuple[Module, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The methods and properties of a class, each as the first of its lineage has it."""
    seen: set[str] = set()
    for home, node in family:
        for each in node.body:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name not in seen:
                seen.add(each.name)
                yield home, each


def _item(name: str, kind: ast.expr, text: str) -> str:
    return f"- `{name}: {ast.unparse(kind)}`: {_joined(text)}"


def _function(
    owner: str, module: Module, given: str | ast.FunctionDef | ast.AsyncFunctionDef, *, level: int
) -> Iterator[str]:
    node = module.definition(given) if isinstance(given, str) else given
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    yield f"{'#' * level} {owner}{node.name}"
    yield f"```python\n{_signature(module, node)}\n```"
    yield _prose(ast.get_docstring(node) or "")


def _signature(module: Module, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """One line, or one for each parameter."""
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) and not _yields(node) else "def"
    parameters = [each for each in _parameters(module, node.args) if each != "self"]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{word} {node.name}({', '.join(parameters)}){returns}"
    if len(line) <= _WIDTH:
        return line
    return f"{word} {node.name}(\n" + "".join(f"    {each},\n" for each in parameters) + f"){returns}"


def _parameters(module: Module, given: ast.arguments) -> Iterator[str]:
    defaults = [None] * (len(given.args) - len(given.defaults)) + list(given.defaults)
    for each, default in zip(given.args, defaults, strict=True):
        yield _parameter(module, each, default)
    if given.kwonlyargs:
        yield "*"
    for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield _parameter(module, each, default)
    if given.kwarg:
        yield f"**{_parameter(module, given.kwarg, None)}"


def _parameter(module: Module, given: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(given) if default is None else f"{ast.unparse(given)} = {_default(module, default)}"


def _default(module: Module, default: ast.expr) -> str:
    """As it would be written; a constant as what it stands for."""
    value = module.value_of(default.id) if isinstance(default, ast.Name) else ast.literal_eval(default)
    return f"{value:_}" if type(value) is int and value >= 10_000 else repr(value).replace("'", '"')


def _prose(docstring: str) -> str:
    """A docstring with its sections as lists."""
    prose, *sections = _SECTION.split(docstring)
    parts = [prose.strip()]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        if title == "Raises":
            parts.append("Raises:")
        parts.append("\n".join(_items(body)))
    return "\n\n".join(part for part in parts if part)


def _items(body: str) -> Iterator[str]:
    for item in re.split(r"\n {4}(?=\w+: )", body):
        name, _, meaning = item.strip().partition(": ")
        if name:
            yield f"- `{name}`: {_joined(meaning)}"


def _options(module: Any) -> Iterator[str]:
    """The typed dictionaries of a module, with the defaults of the records beside them."""
    for node in ast.parse(inspect.getsource(module)).body:
        if not isinstance(node, ast.ClassDef) or not node.name.endswith("Options"):
            continue
        settings = getattr(module, node.name.replace("Options", "Settings"))()
        base = ast.unparse(node.bases[0])
        more = "" if base == "TypedDict" else f" It has those of `{base}`, too."
        yield f"### {node.name}\n\n{ast.get_docstring(node)}{more}"
        items = []
        for each, following in pairwise(node.body):
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                default = ast.parse(repr(getattr(settings, each.target.id)), mode="eval").body
                text = f"{ast.unparse(each)} = {_default(Module(module), default)}"
                items.append(f"- `{text}`: {_joined(following.value.value)}")  # type: ignore[attr-defined]
        yield "\n".join(items)


def _events(module: Any, only: str = "") -> Iterator[str]:
    tree = ast.parse(inspect.getsource(module))
    dataclasses = [each for each in tree.body if isinstance(each, ast.ClassDef) and each.decorator_list]
    for node in (each for each in dataclasses if only in ("", each.name)):
        fields = [
            f"{each.target.id}: {ast.unparse(each.annotation)}"
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        ]
        yield f"- `{node.name}({', '.join(fields)})`: {_joined(ast.get_docstring(node) or '')}"


def _value(module: Any, name: str, title: str) -> str:
    return f"## {title}\n\n`{getattr(module, name)}`: {_told_of(module, name)}"


def _told_of(module: Any, name: str) -> str:
    """The docstring that follows a name."""
    body = ast.parse(inspect.getsource(module)).body
    for each, following in pairwise(body):
        match each, following:
            case (
                ast.Assign(targets=[ast.Name(id=found)]) | ast.AnnAssign(target=ast.Name(id=found)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ) if found == name:
                return f"`{name}`: {_joined(text)}" if not name.isupper() else _joined(text)
    raise AssertionError(f"{name} has no docstring")


def _joined(text: str) -> str:
    return " ".join(text.split())


def _is_error(kind: Any, root: type[Exception]) -> bool:
    return isinstance(kind, type) and issubclass(kind, root) and kind is not root


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "property" for each in node.decorator_list)


def _is_told(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return _is_documented(node) and not _is_property(node)


def _is_documented(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return not node.name.startswith("_") and ast.get_docstring(node) is not None


def _yields(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Yield) for each in ast.walk(node))
