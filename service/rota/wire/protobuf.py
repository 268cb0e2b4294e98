"""Records as protobuf messages, in both directions.

The JSON shapes say which names a message has and what is checked of them; here the same shapes are read from
and written to protobuf. So HTTP and gRPC cannot differ in what they admit, nor in how they refuse it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from rota.protocol.limits import Limits
from rota.protocol.messages import TopicPartitions
from rota.wire.fields import (
    AnyObject,
    Boolean,
    Bound,
    Field,
    Integer,
    Integer64,
    Octets,
    Text,
    TextMap,
    Wait,
    invalid,
    resolve,
)
from rota.wire.records import ListOf, ObjectShape, Pair
from rota.wire.requests import TopicSelector

Read = Callable[[Any, Limits], Any]
"""The value that a message's field stands for in a document; None where it is absent."""
Write = Callable[[Any, Any], None]
"""Put a value of ours, which is not None, into a message. None in its place: the field takes the value as it is."""


class Shape:
    """A record's protobuf twin. `lists_may_be_absent`: an empty list counts as none, as in a query string."""

    def __init__(self, record: ObjectShape, descriptor: Descriptor, *, lists_may_be_absent: bool = False) -> None:
        fields = descriptor.fields_by_name
        self._readers: list[tuple[str, Read]] = []
        self._writers: list[tuple[str, str, Write | None, Any]] = []
        """Attribute, field, how it is written, and the field's default; None where protobuf knows whether it is set."""
        for entry in record.entries:
            field = fields[entry.name if entry.name in fields else entry.attribute_name]
            read, write = _codec(entry.field, field, lists_may_be_absent=lists_may_be_absent)
            self._readers.append((entry.name, read))
            absent = None if field.has_presence else () if field.is_repeated else field.default_value
            self._writers.append((entry.attribute_name, field.name, write, absent))

    def document(self, message: Any, limits: Limits) -> dict[str, Any]:
        """What `Record.decode` takes: the same names as in JSON, with bytes as they are.

        A list that is too long has no items: `decode` refuses it for its length.
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


class _PairShape:
    """The twin of `Pair`: a message of two fields that is a plain tuple in memory."""

    def __init__(self, pair: Pair) -> None:
        self._first, self._second = pair.names

    def document(self, message: Any, _limits: Limits) -> dict[str, Any]:
        return {self._first: getattr(message, self._first), self._second: getattr(message, self._second)}

    def fill(self, message: Any, value: tuple[Any, Any]) -> None:
        setattr(message, self._first, value[0])
        setattr(message, self._second, value[1])


class _SelectorShape:
    """Partitions of a topic, which a query string writes as `orders/0,1,2`."""

    def document(self, message: Any, _limits: Limits) -> str:
        return f"{message.topic}/{','.join(map(str, message.partitions))}"

    def fill(self, message: Any, value: TopicPartitions) -> None:
        message.topic = value.topic
        message.partitions.extend(value.partitions)


def parse(message_type: type[Message], data: bytes) -> Any:
    """The message in these bytes; `INVALID_REQUEST` if there is none."""
    try:
        return message_type.FromString(data)
    except DecodeError:
        raise invalid(f"the message is not a valid {message_type.DESCRIPTOR.name}") from None


def _codec(kind: Field, field: FieldDescriptor, *, lists_may_be_absent: bool) -> tuple[Read, Write | None]:
    match kind:
        case ListOf(item=ObjectShape() | Pair() | TopicSelector() as item):
            shape = _item_shape(item, field)
            return _messages(shape, field.name, kind.max_items, empty=None if lists_may_be_absent else [])
        case ListOf(item=item):
            return _scalars(item, field.name, kind.max_items, empty=None if lists_may_be_absent else [])
        case TextMap():
            return _map(field.name)
        case Octets() | Text() | Integer() | Boolean() | Wait():
            return _reader(field), None
        case Integer64():
            return _as_in_json(field.name, kind), None
        case AnyObject():
            return _object(field.name)
        case _:
            return _reader(field), _encoder(field.name, kind.encode)


def _item_shape(
    item: ObjectShape | Pair | TopicSelector, field: FieldDescriptor
) -> Shape | _PairShape | _SelectorShape:
    if isinstance(item, ObjectShape):
        assert field.message_type is not None
        return Shape(item, field.message_type)
    return _PairShape(item) if isinstance(item, Pair) else _SelectorShape()


def _reader(field: FieldDescriptor) -> Read:
    name = field.name

    def read(message: Any, _limits: Limits) -> Any:
        return getattr(message, name)

    def read_if_present(message: Any, _limits: Limits) -> Any:
        return getattr(message, name) if message.HasField(name) else None

    return read_if_present if field.has_presence else read


def _as_in_json(name: str, kind: Integer64) -> Read:
    """A number that JSON may hold as a string; protobuf always holds it as it is."""

    def read(message: Any, _limits: Limits) -> Any:
        return kind.encode(getattr(message, name))

    return read


def _encoder(name: str, encode: Callable[[Any], Any]) -> Write:
    def write(message: Any, value: Any) -> None:
        setattr(message, name, encode(value))

    return write


def _object(name: str) -> tuple[Read, Write]:
    """A JSON object, which travels as its text."""

    def read(message: Any, _limits: Limits) -> Any:
        return json.loads(getattr(message, name)) if message.HasField(name) else None

    def write(message: Any, value: dict[str, Any]) -> None:
        setattr(message, name, json.dumps(value, ensure_ascii=False, separators=(",", ":")))

    return read, write


def _messages(shape: Shape | _PairShape | _SelectorShape, name: str, most: Bound, *, empty: Any) -> tuple[Read, Write]:
    def read(message: Any, limits: Limits) -> Any:
        items = getattr(message, name)
        if len(items) > resolve(most, limits):
            return _without_items(most, limits)
        return [shape.document(item, limits) for item in items] or empty

    def write(message: Any, value: Any) -> None:
        add = getattr(message, name).add
        for item in value:
            shape.fill(add(), item)

    return read, write


def _scalars(item: Field, name: str, most: Bound, *, empty: Any) -> tuple[Read, Write]:
    def read(message: Any, limits: Limits) -> Any:
        items = getattr(message, name)
        if len(items) > resolve(most, limits):
            return _without_items(most, limits)
        return list(items) or empty

    def write(message: Any, value: Any) -> None:
        getattr(message, name).extend(item.encode(each) for each in value)

    return read, write


def _without_items(most: Bound, limits: Limits) -> list[None]:
    """A list that is too long. A message of 8 MiB may have four million items: to read them takes seconds."""
    return [None] * (resolve(most, limits) + 1)


def _map(name: str) -> tuple[Read, Write]:
    def read(message: Any, _limits: Limits) -> dict[str, str]:
        return dict(getattr(message, name))

    def write(message: Any, value: tuple[tuple[str, str], ...] | Mapping[str, str]) -> None:
        getattr(message, name).update(dict(value))

    return read, write
