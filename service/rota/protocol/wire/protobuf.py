"""Messages in protobuf, in both directions.

The entries of JSON say which fields a message has and what is checked of them; here the same entries are read from and
written to protobuf. So HTTP and gRPC cannot differ in what they admit, nor in how they refuse it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from msgspec import inspect

from rota.protocol.limits import MAX_SAFE_INTEGER, Limits
from rota.protocol.wire.shapes import Entry, check_limit, entries_of, invalid

Read = Callable[[Any, Limits], Any]
"""The value that a message's field stands for in a document; None if it is absent."""
Write = Callable[[Any, Any], None]
"""Put a value of the wire, which is not None, into a message. None in its place: the field takes the value as it is."""


class Twin:
    """The protobuf message of these fields. `empty` is what an empty list counts as; None: as absent."""

    def __init__(self, entries: Iterable[Entry], descriptor: Any, *, empty: Any = ()) -> None:
        fields = descriptor.fields_by_name
        self._readers: list[tuple[str, Read]] = []
        self._writers: list[tuple[str, str, Write | None, Any]] = []
        """Attribute, field, how it is written, and the field's default; None if protobuf knows whether it is set."""
        for entry in entries:
            field = fields[entry.name if entry.name in fields else entry.attribute]
            read, write = _codec(entry, field, empty)
            if entry.via is not None:
                write = _converted(entry.via.write, write or _setter(field.name))
            self._readers.append((entry.name, read))
            absent = None if field.has_presence else () if field.is_repeated else field.default_value
            self._writers.append((entry.attribute, field.name, write, absent))

    def document(self, message: Any, limits: Limits) -> dict[str, Any]:
        """What `Shape.decode` takes: the same names as in JSON, with bytes as they are.

        A list that is longer than the limits admit is refused before its items are read.
        """
        return {name: read(message, limits) for name, read in self._readers}

    def fill(self, message: Any, value: Any) -> None:
        """Write a message of ours; ValueError or TypeError for what protobuf cannot hold."""
        for attribute, name, write, absent in self._writers:
            given = getattr(value, attribute)
            if given is not None and given != absent:
                if write is None:
                    setattr(message, name, given)
                else:
                    write(message, given)


def parse(message_type: type[Message], data: bytes) -> Any:
    """The message in these bytes; `INVALID_REQUEST` if there is none."""
    try:
        return message_type.FromString(data)
    except DecodeError:
        raise invalid(f"the message is not a valid {message_type.DESCRIPTOR.name}") from None


def _codec(entry: Entry, field: FieldDescriptor, empty: Any) -> tuple[Read, Write | None]:
    name, get = field.name, _reader(field, is_optional=entry.is_optional)
    match entry.type:
        case inspect.DictType() if field.is_repeated:
            return lambda message, _: dict(getattr(message, name)), _map_writer(name)
        case inspect.DictType():  # A JSON object travels as its text.
            write = _converted(lambda value: msgspec.json.encode(value).decode(), _setter(name))
            return lambda message, _: None if (text := get(message, _)) is None else msgspec.json.decode(text), write
        case inspect.VarTupleType():
            return _list(entry, name, field, empty)
        case inspect.UnionType():  # JSON may have the number as a string.
            return lambda message, _: _as_in_json(getattr(message, name)), _converted(int, _setter(name))
    return get, None


def _reader(field: FieldDescriptor, *, is_optional: bool) -> Read:
    name = field.name
    if field.has_presence:
        return lambda message, _: getattr(message, name) if message.HasField(name) else None
    if is_optional:
        return lambda message, _: getattr(message, name) or None
    return lambda message, _: getattr(message, name)


def _map_writer(name: str) -> Write:
    return lambda message, value: getattr(message, name).update(value)


def _setter(name: str) -> Write:
    return lambda message, value: setattr(message, name, value)


def _converted(convert: Callable[[Any], Any], write: Write) -> Write:
    return lambda message, value: write(message, convert(value))


def _as_in_json(number: int) -> int | str:
    return number if number <= MAX_SAFE_INTEGER else str(number)


def _list(entry: Entry, name: str, field: FieldDescriptor, empty: Any) -> tuple[Read, Write]:
    parts = Twin(entries_of(entry.part), field.message_type) if entry.part else None

    def read(message: Any, limits: Limits) -> Any:
        items = getattr(message, name)
        if entry.limit is not None:  # A message of 8 MiB may have four million items: to read them takes seconds.
            check_limit(entry.limit, items, limits, name)
        return (list(items) if parts is None else [parts.document(item, limits) for item in items]) or empty

    def write(message: Any, value: Any) -> None:
        items = getattr(message, name)
        if parts is None:
            items.extend(value)
        else:
            for item in value:
                parts.fill(items.add(), item)

    return read, write
