"""How messages look on the wire: the structs of `rota.protocol.messages`, less what is in the path or internal.

A `Shape` makes a struct of the fields of a message that a document has. msgspec decodes and validates it, writes it and
describes it as a JSON schema. Parts of messages, such as a member that leaves, are on the wire as they are. ADR 113 has
the reasons.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import NODEFAULT, Struct, inspect, structs

from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.limits import Limits
from rota.protocol.suggestions import unknown
from rota.protocol.values import Limit, Unit, Via
from rota.protocol.wire.rejections import kind_of, reject

_NO_JSON = "the body is not valid JSON"
_INTEGER = re.compile(r"-?[0-9]{1,17}")
_SELECTOR = re.compile(r"(?s)(.*)/((?:-?[0-9]{1,10}(?:,-?[0-9]{1,10})*)?)", re.ASCII)
_NO_FIELDS: Mapping[str, Any] = MappingProxyType({})
_DEFAULT_LIMITS = Limits()
_encode = msgspec.json.Encoder().encode


def invalid(detail: str) -> RejectedRequest:
    return RejectedRequest(ErrorCode.INVALID_REQUEST, detail)


def too_large(detail: str) -> RejectedRequest:
    return RejectedRequest(ErrorCode.PAYLOAD_TOO_LARGE, detail)


@dataclass(frozen=True, slots=True)
class Entry:
    """A field of a message that is on the wire."""

    name: str
    attribute: str
    annotation: Any
    """The type that the wire holds."""
    type: inspect.Type
    """The same, without null and what is noted beside it."""
    default: Any
    """In the form of the message; `NODEFAULT` if it has none."""
    is_optional: bool
    limit: Limit | None
    via: Via | None
    part: Any
    """The struct of each item of a list; None if it is no list of structs."""

    @property
    def absent(self) -> Any:
        """The value that stands for none, as every release reads it: empty, false, or a number that is not positive.

        Another default (a timeout, a page's size) may differ between two releases, so callers send it.
        """
        return self.default if not self.default or (type(self.default) is int and self.default < 0) else NODEFAULT

    def written(self, value: Any) -> Any:
        """A value of the message as the wire has it."""
        return value if value is None or self.via is None else self.via.write(value)

    @property
    def is_list(self) -> bool:
        return isinstance(self.type, inspect.VarTupleType)


@cache
def entries_of(message: type[Struct]) -> tuple[Entry, ...]:
    """The fields of a message that are on the wire."""
    described = inspect.type_info(message)
    assert isinstance(described, inspect.StructType)
    found = []
    for field, annotated in zip(described.fields, structs.fields(message), strict=True):
        kind = kind_of(field.type)
        if "internal" in kind.notes:
            continue
        via: Via | None = kind.notes.get("via")
        default = field.default if field.default_factory is NODEFAULT else field.default_factory()
        default = NODEFAULT if "required" in kind.notes else default
        annotation: Any = annotated.type
        if via is not None:
            annotation, kind = via.wire, kind_of(inspect.type_info(via.wire))
        item = kind_of(kind.type.item_type).type if isinstance(kind.type, inspect.VarTupleType) else None
        part = item.cls if isinstance(item, inspect.StructType) else None
        limit = kind.notes.get("limit")
        found.append(
            Entry(field.encode_name, field.name, annotation, kind.type, default, kind.is_optional, limit, via, part)
        )
    return tuple(found)


@cache
def limited_in(message: type[Struct]) -> tuple[Entry, ...]:
    """The fields that settings of the server bound, and the lists of parts that have such fields."""
    return tuple(each for each in entries_of(message) if each.limit or (each.part and limited_in(each.part)))


class Shape:
    """A message on the wire.

    `path` names the fields that the path of the call holds. A `closed` shape is what callers send: it refuses an
    unknown name, because a misspelt name must not count as absent. In it, null means absent. An open one is what a
    server sends: a reader ignores the names that a newer server adds. `tail` are fields of the document
    after those of the message; `outcome` is the value of a first one. `check` raises `RejectedRequest` for
    what no field says alone.
    """

    def __init__(
        self,
        message: type[Struct],
        *,
        closed: bool,
        path: Collection[str] = (),
        tail: Mapping[str, Any] = _NO_FIELDS,
        outcome: str | None = None,
        check: Callable[[Any], None] | None = None,
    ) -> None:
        self.message = message
        self.closed = closed
        self._path = path
        self._check = check
        self._tail, self._outcome = tail, outcome

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in entries_of(self.message) if entry.attribute not in self._path)

    @cached_property
    def struct(self) -> Any:
        """The document as a struct."""
        fields: list[Any] = []
        for entry in self.entries:
            if self.closed and entry.default is not NODEFAULT:
                wire = entry.annotation if entry.is_optional else entry.annotation | None
                fields.append((entry.name, wire, entry.written(entry.default)))
            else:
                fields.append((entry.name, entry.annotation))
        return msgspec.defstruct(
            self.message.__name__,
            [*fields, *self._tail.items()],
            kw_only=self.closed,
            forbid_unknown_fields=self.closed,
            tag_field="outcome" if self._outcome else None,
            tag=self._outcome,
        )

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        return msgspec.json.Decoder(self.struct)

    @cached_property
    def _limited(self) -> tuple[Entry, ...]:
        return limited_in(self.message) if self.closed else ()

    @cached_property
    def _converted(self) -> tuple[tuple[Entry, Via], ...]:
        return tuple((entry, entry.via) for entry in self.entries if entry.via is not None)

    @cached_property
    def _attributes(self) -> tuple[tuple[str, str], ...]:
        """Names on the wire, and in the message."""
        return tuple((entry.name, entry.attribute) for entry in self.entries)

    @cached_property
    def _values_of(self) -> Callable[[Any], Sequence[Any]]:
        names = [attribute for _, attribute in self._attributes]
        return attrgetter(*names) if len(names) > 1 else lambda message: [getattr(message, name) for name in names]

    # --- reading ------------------------------------------------------------------------------------

    def read(self, data: bytes, limits: Limits, **given: Any) -> Any:
        """The message of a JSON text; `given` has what the text does not hold. Raises `RejectedRequest`.

        An empty text is an empty object.
        """
        try:
            values = self._decoder.decode(data or b"{}")
        except msgspec.ValidationError as error:
            raise reject(error, self.struct) from None
        except (msgspec.DecodeError, RecursionError):
            raise invalid(_NO_JSON) from None
        return self._message_of(values, limits, given)

    def decode(self, document: Any, limits: Limits, **given: Any) -> Any:
        """Build the message of a parsed document, in which bytes may be bytes or base64."""
        try:
            values = msgspec.convert(document, self.struct)
        except msgspec.ValidationError as error:
            raise reject(error, self.struct) from None
        return self._message_of(values, limits, given)

    def open(self, document: Any) -> tuple[Any, Any]:
        """The document of an open shape as a struct, and the message in it. Raises `ValidationError`."""
        values = msgspec.convert(document, self.struct)
        return values, self._message_of(values, _DEFAULT_LIMITS, {})

    def _message_of(self, values: Any, limits: Limits, given: dict[str, Any]) -> Any:
        if self._limited:
            check_limits(self._limited, values, limits)
        for name, attribute in self._attributes:
            value = getattr(values, name)
            if value is not None:
                given[attribute] = value
        for entry, via in self._converted:
            if entry.attribute in given:
                try:
                    given[entry.attribute] = via.read(given[entry.attribute])
                except RejectedRequest as rejected:
                    raise _placed(entry.name, rejected) from None
        message = self.message(**given)
        if self._check is not None:
            self._check(message)
        return message

    def from_query(self, parameters: Iterable[tuple[str, str]]) -> dict[str, Any]:
        """The document that a query string stands for: lists repeat their name."""
        entries = {entry.name: entry for entry in self.entries}
        document: dict[str, Any] = {}
        for name, text in parameters:
            entry = entries.get(name)
            if entry is None:
                raise invalid(unknown("query parameter", name, entries))
            if not entry.is_list:
                is_number = isinstance(entry.type, inspect.IntType) and _INTEGER.fullmatch(text)
                document[name] = int(text) if is_number else text
            else:
                items = document.setdefault(name, [])
                items.append(_read_selector(text, f"{name}[{len(items)}]") if entry.part else text)
        return document

    # --- writing ------------------------------------------------------------------------------------

    def encode(self, message: Any) -> dict[str, Any]:
        """The document of what a caller sends, without the names that the message leaves absent: the reader may be of
        an earlier release, and refuse a name that it does not know.
        """
        document = {}
        for entry in self.entries:
            value = getattr(message, entry.attribute)
            if value is not None and value != entry.absent:
                document[entry.name] = entry.written(value)
        encoded: dict[str, Any] = msgspec.json.decode(_encode(document))
        return encoded

    def write(self, message: Any, *tail: Any) -> bytes:
        """The JSON text of a message of an open shape, with the values of `tail`."""
        values = self._values_of(message)
        if self._converted:
            values = [entry.written(value) for entry, value in zip(self.entries, values, strict=True)]
        return _encode(self.struct(*values, *tail))

    def to_query(self, message: Any) -> list[tuple[str, str]]:
        """The reverse of `from_query`; None and empty values are left out."""
        pairs: list[tuple[str, str]] = []
        for name, value in self.encode(message).items():
            values = value if isinstance(value, (list, tuple)) else [value]
            pairs += [(name, _query_text(item)) for item in values if item not in (None, "")]
        return pairs


def check_limits(fields: tuple[Entry, ...], values: Any, limits: Limits, place: str = "") -> None:
    """Raise `RejectedRequest` for a value that is larger than the server's settings admit."""
    for field in fields:
        value = getattr(values, field.name)
        if value is None:
            continue
        if field.limit is not None:
            check_limit(field.limit, value, limits, place + field.name)
        if field.part is not None and (inner := limited_in(field.part)):
            for number, part in enumerate(value):
                check_limits(inner, part, limits, f"{place}{field.name}[{number}].")


def check_limit(limit: Limit, value: Any, limits: Limits, place: str) -> None:
    most: int = getattr(limits, limit.name)
    if limit.unit is Unit.NUMBER:
        if not limit.least <= value <= most:
            raise RejectedRequest(limit.code, f"{place} must be from {limit.least} to {most}")
    elif len(value) > most:
        verb = "have" if limit.unit is Unit.ITEMS else "be"
        raise too_large(f"{place} must {verb} at most {most} {limit.unit}")


def _placed(name: str, rejected: RejectedRequest) -> RejectedRequest:
    """The rejection of a field's value, with the field's name."""
    glue = {"m": " ", "[": ""}.get(rejected.detail[0])
    return rejected if glue is None else invalid(f"{name}{glue}{rejected.detail}")


def _read_selector(text: str, name: str) -> dict[str, Any]:
    """Partitions of a topic in a query string: `orders/0,1,2`."""
    matched = _SELECTOR.fullmatch(text)
    if matched is None:
        raise invalid(f"{name} must look like topic/0,1,2")
    return {"topic": matched[1], "partitions": [int(number) for number in matched[2].split(",") if number]}


def _query_text(item: Any) -> str:
    match item:
        case {"topic": topic, "partitions": partitions}:
            return f"{topic}/{','.join(map(str, partitions))}"
        case bool():
            return "true" if item else "false"
        case _:
            return str(item)
