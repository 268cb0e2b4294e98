"""Messages in protobuf, in both directions.

The shapes of JSON say which fields a message has and what is checked of them; here the same shapes are read from and
written to protobuf. So HTTP and gRPC cannot differ in what they admit, nor in how they refuse it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, get_origin

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from rota.protocol.limits import Limits
from rota.protocol.values import AtMost, Bound, Via
from rota.wire.shapes import Kind, Shape, invalid, is_struct, kind_of, nested_shape, resolve

Read = Callable[[Any, Limits], Any]
"""The value that a message's field stands for in a document; None if it is absent."""
Write = Callable[[Any, Any], None]
"""Put a value of ours, which is not None, into a message. None in its place: the field takes the value as it is."""


class Twin:
    """The protobuf message of a shape. `lists_may_be_absent`: an empty list counts as none, as in a query string."""

    def __init__(self, shape: Shape, descriptor: Any, *, lists_may_be_absent: bool = False) -> None:
        fields = descriptor.fields_by_name
        self._closed = shape.closed
        self._readers: list[tuple[str, Read]] = []
        self._writers: list[tuple[str, str, Write | None, Any]] = []
        """Attribute, field, how it is written, and the field's default; None if protobuf knows whether it is set."""
        for entry in shape.entries:
            field = fields[entry.name if entry.name in fields else entry.attribute]
            read, write = _codec(entry.kind, field, closed=shape.closed, lists_may_be_absent=lists_may_be_absent)
            self._readers.append((entry.name, read))
            absent = None if field.has_presence else () if field.is_repeated else field.default_value
            self._writers.append((entry.attribute, field.name, write, absent))

    def document(self, message: Any, limits: Limits) -> dict[str, Any]:
        """What `Shape.decode` takes: the same names as in JSON, with bytes as they are.

        A list that is too long has no items: `decode` refuses it for its length.
        """
        document = {name: read(message, limits) for name, read in self._readers}
        return {name: value for name, value in document.items() if value is not None} if self._closed else document

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


def _codec(kind: Kind, field: FieldDescriptor, *, closed: bool, lists_may_be_absent: bool) -> tuple[Read, Write | None]:
    via: Via | None = kind.mark(Via)
    wire = kind if via is None else kind_of(via.wire)
    name = field.name
    if get_origin(wire.core) is dict and field.is_repeated:
        return _map(name)
    if get_origin(wire.core) is dict:
        return _object(name)
    if wire.item is not None:
        most: Bound = (wire.mark(AtMost) or AtMost("max_partitions_per_request")).most
        empty = None if lists_may_be_absent else ()
        if is_struct(wire.item.core):
            twin = Twin(nested_shape(wire.item.core, closed=closed), field.message_type)
            return _messages(twin, name, most if closed else None, via, empty=empty)
        return _scalars(name, most if closed else None, empty=empty)
    if via is not None and field.type == FieldDescriptor.TYPE_STRING:
        return _reader(field), _converted(name, via.write)
    if via is not None and wire.core is not int:
        return _as_in_json(name, via.write), None
    return _reader(field), None


def _reader(field: FieldDescriptor) -> Read:
    name = field.name

    def read(message: Any, _limits: Limits) -> Any:
        return getattr(message, name)

    def read_if_present(message: Any, _limits: Limits) -> Any:
        return getattr(message, name) if message.HasField(name) else None

    return read_if_present if field.has_presence else read


def _as_in_json(name: str, write: Callable[[Any], Any]) -> Read:
    """A number that JSON may hold as a string; protobuf always holds it as it is."""

    def read(message: Any, _limits: Limits) -> Any:
        return write(getattr(message, name))

    return read


def _converted(name: str, convert: Callable[[Any], Any]) -> Write:
    def write(message: Any, value: Any) -> None:
        setattr(message, name, convert(value))

    return write


def _object(name: str) -> tuple[Read, Write]:
    """A JSON object, which travels as its text."""

    def read(message: Any, _limits: Limits) -> Any:
        return json.loads(getattr(message, name)) if message.HasField(name) else None

    def write(message: Any, value: dict[str, Any]) -> None:
        setattr(message, name, json.dumps(value, ensure_ascii=False, separators=(",", ":")))

    return read, write


def _messages(twin: Twin, name: str, most: Bound | None, via: Via | None, *, empty: Any) -> tuple[Read, Write]:
    def read(message: Any, limits: Limits) -> Any:
        items = getattr(message, name)
        if most is not None and len(items) > resolve(most, limits):
            return _without_items(most, limits)
        return [twin.document(item, limits) for item in items] or empty

    def write(message: Any, value: Any) -> None:
        add = getattr(message, name).add
        for item in value if via is None else via.write(value):
            twin.fill(add(), item)

    return read, write


def _scalars(name: str, most: Bound | None, *, empty: Any) -> tuple[Read, Write]:
    def read(message: Any, limits: Limits) -> Any:
        items = getattr(message, name)
        if most is not None and len(items) > resolve(most, limits):
            return _without_items(most, limits)
        return list(items) or empty

    def write(message: Any, value: Any) -> None:
        getattr(message, name).extend(value)

    return read, write


def _without_items(most: Bound, limits: Limits) -> list[None]:
    """A list that is too long. A message of 8 MiB may have four million items: to read them takes seconds."""
    return [None] * (resolve(most, limits) + 1)


def _map(name: str) -> tuple[Read, Write]:
    def read(message: Any, _limits: Limits) -> dict[str, str]:
        return dict(getattr(message, name))

    def write(message: Any, value: Any) -> None:
        getattr(message, name).update(dict(value))

    return read, write
