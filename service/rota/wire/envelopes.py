"""Requests, answers and journal events between replicas: the messages' own fields as JSON, nothing added.

Replicas of one release talk to each other, so the form follows the dataclasses: an envelope is the type's name and
its fields by name. Fields that a peer of another release does not know are dropped, and those it does not send keep
their defaults. What comes in is checked by type before it is built.
"""

from __future__ import annotations

import dataclasses
import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from rota.protocol import messages


class MalformedEnvelope(ValueError):
    """Bytes that no replica sends."""


_TYPES: dict[str, type] = {kind.__name__: kind for pair in messages.REPLY_OF.items() for kind in pair}


def pack(message: Any, **extra: Any) -> bytes:
    """A message with its type's name; `extra` holds JSON values that travel beside it."""
    return json.dumps({"type": type(message).__name__, "fields": _encode(message), **extra}).encode()


def unpack(data: bytes) -> tuple[Any, dict[str, Any]]:
    """The message and what travelled beside it; raises `MalformedEnvelope`."""
    try:
        envelope = json.loads(data)
        kind = _TYPES[envelope.pop("type")]
        return _decoder(kind)(envelope.pop("fields")), envelope
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise MalformedEnvelope(f"not an envelope: {type(error).__name__}") from error


def unpack_request(data: bytes) -> Any:
    """The message of `unpack`, where it is a request; raises `MalformedEnvelope`."""
    message, _ = unpack(data)
    if type(message) not in messages.REPLY_OF:
        raise MalformedEnvelope("not an envelope of a request")
    return message


def _encode(value: Any) -> Any:
    if isinstance(value, bytes):
        return b64encode(value).decode("ascii")
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if dataclasses.is_dataclass(value):
        return {field.name: _encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value


@cache
def _decoder(kind: Any) -> Callable[[Any], Any]:
    """How a value of this type is built from JSON."""
    if kind is bytes:
        return lambda value: b64decode(value, validate=True)
    if get_origin(kind) is dict:
        return lambda value: _checked(dict, value)
    if get_origin(kind) is tuple:
        return _tuple_decoder(get_args(kind))
    if get_origin(kind) in (Union, UnionType):
        (inner,) = (arm for arm in get_args(kind) if arm is not NoneType)
        return lambda value: None if value is None else _decoder(inner)(value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    if dataclasses.is_dataclass(kind):
        return _dataclass_decoder(kind)
    return lambda value: _checked(kind, value)


def _tuple_decoder(arguments: tuple[Any, ...]) -> Callable[[Any], Any]:
    if arguments[-1] is Ellipsis:
        item = _decoder(arguments[0])
        return lambda value: tuple(item(part) for part in value)
    parts = [_decoder(argument) for argument in arguments]
    return lambda value: tuple(part(item) for part, item in zip(parts, value, strict=True))


def _dataclass_decoder(kind: Any) -> Callable[[Any], Any]:
    decoders = {name: _decoder(hint) for name, hint in get_type_hints(kind).items()}

    def build(value: dict[str, Any]) -> Any:
        return kind(**{name: decoders[name](part) for name, part in value.items() if name in decoders})

    return build


def _checked(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"a {kind.__name__} was expected")
    if kind is int:
        return bounded(value)
    return whole(value) if isinstance(value, str) else value


def bounded(number: Any) -> int:
    """The number; ValueError for one of more than 64 bits, and for anything else: no field of a message holds it."""
    if type(number) is not int or not -(2**63) <= number < 2**63:
        raise ValueError("not a number that a replica sends")
    return number


def whole(text: str) -> str:
    """The text; UnicodeError where JSON has escaped half of a character, which neither digests nor stores take."""
    if not text.isascii():
        text.encode()
    return text


def list_of(given: Any) -> list[Any]:
    """A list from JSON; TypeError for anything else."""
    if type(given) is not list:
        raise TypeError("not what a replica sends")
    return given


def checked(given: Any, kinds: tuple[Any, ...]) -> list[Any]:
    """The entries of a list from JSON; TypeError unless there are so many, and of these types for `isinstance`.

    UnicodeError as `whole` says.
    """
    if len(list_of(given)) != len(kinds) or not all(map(isinstance, given, kinds)):
        raise TypeError("not what a replica sends")
    for each in given:
        if isinstance(each, str):
            whole(each)
        elif isinstance(each, int):
            bounded(each)
    return list_of(given)
