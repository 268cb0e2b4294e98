"""Reports exceptions of plug-ins' functions: the core catches them and goes on without an answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import wraps
from typing import Any, TypeAlias, TypeVar

from rota.core.types.plugin import ProtocolType, ServerSide, Succession, Units
from rota.core.types.wire_format import MalformedMetadata

Report: TypeAlias = Callable[[str, Exception], None]
"""Gets the name of a function, such as `gamble.takes_away`, and its exception."""
Part = TypeVar("Part", bound=ProtocolType | ServerSide | Succession | Units)


def reporting(protocol_type: ProtocolType, report: Report) -> ProtocolType:
    """The same type; each of its functions reports its exceptions, and raises them.

    Not `MalformedMetadata`, by which a function says that a client's bytes are wrong.
    """
    return _reporting(protocol_type, protocol_type.name, report)


def _reporting(part: Part, name: str, report: Report) -> Part:
    changes: dict[str, Any] = {}
    for each in fields(part):
        value = getattr(part, each.name)
        if isinstance(value, (ServerSide, Succession, Units)):
            changes[each.name] = _reporting(value, name, report)
        elif callable(value):
            changes[each.name] = _reported(value, f"{name}.{each.name}", report)
    return replace(part, **changes)


def _reported(function: Callable[..., Any], name: str, report: Report) -> Callable[..., Any]:
    @wraps(function)
    def called(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except MalformedMetadata:
            raise
        except Exception as error:
            report(name, error)
            raise

    return called
