"""Records and lists of fields: where the names of a message meet the names on the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from rota.protocol.errors import RejectedRequest
from rota.protocol.limits import Limits
from rota.wire.fields import Bound, Field, Integer, Schema, Wait, integer_from_text, invalid, resolve, too_large
from rota.wire.suggestions import unknown

_UNKNOWN_FIELD = "unknown field '"
REQUIRED: Final = object()
"""The default of an entry that has none."""


@dataclass(frozen=True, slots=True)
class Property:
    """One name of a record. `attribute` is the message's name for it, where that is another."""

    name: str
    field: Field
    default: Any = REQUIRED
    doc: str = ""
    attribute: str = ""

    @property
    def attribute_name(self) -> str:
        return self.attribute or self.name

    @property
    def absent(self) -> Any:
        """The value that stands for none, as every release reads it: empty, false, or a number that is not positive.

        Another default (a timeout, a page's size) may differ between two releases, so callers send it.
        """
        return self.default if not self.default or (type(self.default) is int and self.default < 0) else REQUIRED


@dataclass(frozen=True)
class ObjectShape:
    """A JSON object of known names. `build` makes the message of the decoded values.

    Unknown names are ignored, so that a newer peer may say more, unless the record is `closed`, as what callers send
    is: a name that is misspelt must not count as absent. `null` means absent.
    `complete` marks what the server sends: every name is always there.
    """

    build: Callable[..., Any]
    entries: tuple[Property, ...]
    complete: bool = False
    doc: str = ""
    title: str = field(default="")
    closed: bool = False

    def decode(self, value: Any, limits: Limits, **given: Any) -> Any:
        """Build the message; `given` brings what the document does not hold (what the path said)."""
        if type(value) is not dict:
            raise invalid("must be an object")
        if self.closed and not value.keys() <= self._names:
            raise invalid(unknown("field", self._first_unknown(value), self._names))
        for name, attribute, decode, default in self._readers:
            item = value.get(name)
            if item is not None:
                try:
                    given[attribute] = decode(item, limits)
                except RejectedRequest as rejected:
                    raise RejectedRequest(rejected.code, _placed(name, rejected.detail)) from None
            elif default is REQUIRED:
                raise invalid(f"{name} is missing")
            else:
                given[attribute] = default
        return self.build(**given)

    def encode(self, message: Any) -> dict[str, Any]:
        """The document. Of a closed record without the names that the message leaves absent: the reader may be of an
        earlier release, and refuse a name that it does not know.
        """
        document: dict[str, Any] = {}
        for name, attribute, encode, absent in self._writers:
            value = getattr(message, attribute)
            if not (self.closed and (value is None or value == absent)):
                document[name] = None if value is None else encode(value)
        return document

    def schema(self, limits: Limits) -> Schema:
        schema: Schema = {"type": "object"}
        if self.title:
            schema["title"] = self.title
        if self.doc:
            schema["description"] = self.doc
        required = [entry.name for entry in self.entries if self.complete or entry.default is REQUIRED]
        if required:
            schema["required"] = required
        schema["properties"] = {entry.name: self.entry_schema(entry, limits) for entry in self.entries}
        if self.closed:
            schema["additionalProperties"] = False
        return schema

    def entry_schema(self, entry: Property, limits: Limits) -> Schema:
        schema = entry.field.schema(limits)
        nullable = entry.default is None if self.complete else entry.default is not REQUIRED
        if nullable and "type" in schema:
            schema["type"] = [schema["type"], "null"]
        if entry.doc:
            schema["description"] = entry.doc
        if isinstance(entry.default, (int, str)) and not self.complete:
            schema["default"] = entry.default
        return schema

    def from_query(self, parameters: Iterable[tuple[str, str]]) -> dict[str, Any]:
        """The document that a query string stands for: lists repeat their name, numbers are digits."""
        document: dict[str, Any] = {}
        kinds = {entry.name: entry.field for entry in self.entries}
        for name, text in parameters:
            match kinds.get(name):
                case None if self.closed:
                    raise invalid(unknown("query parameter", name, self._names))
                case None:
                    continue
                case ListOf():
                    document.setdefault(name, []).append(text)
                case Integer() | Wait():
                    document[name] = integer_from_text(text)
                case _:
                    document[name] = text
        return document

    def to_query(self, message: Any) -> list[tuple[str, str]]:
        """The reverse of `from_query`; None and empty values are left out."""
        pairs: list[tuple[str, str]] = []
        for name, value in self.encode(message).items():
            values = value if isinstance(value, list) else [value]
            pairs += [(name, str(item)) for item in values if item not in (None, "")]
        return pairs

    def _first_unknown(self, names: Iterable[str]) -> str:
        return next(name for name in names if name not in self._names)

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(entry.name for entry in self.entries)

    @cached_property
    def _readers(self) -> tuple[tuple[str, str, Callable[[Any, Limits], Any], Any], ...]:
        """What `decode` needs of each entry, looked up once: it is on the way of every heartbeat."""
        return tuple((entry.name, entry.attribute_name, entry.field.decode, entry.default) for entry in self.entries)

    @cached_property
    def _writers(self) -> tuple[tuple[str, str, Callable[[Any], Any], Any], ...]:
        return tuple((each.name, each.attribute_name, each.field.encode, each.absent) for each in self.entries)


def _placed(name: str, detail: str) -> str:
    """`members` + `[3].name must be …`; `member_id` + `must be …`. Checks of ids name themselves already."""
    if detail.startswith(_UNKNOWN_FIELD):
        return _unknown_below(name, detail)
    if detail.startswith("unknown "):
        return detail
    rest = detail.removeprefix(f"{name} ")
    return name + rest if rest.startswith("[") else f"{name} {rest}"


def _unknown_below(place: str, detail: str) -> str:
    """`unknown field 'nam'` at `protocols[0]` becomes `unknown field 'protocols[0].nam'`."""
    rest = detail.removeprefix(_UNKNOWN_FIELD)
    return f"{_UNKNOWN_FIELD}{place}{'' if rest.startswith('[') else '.'}{rest}"


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of one kind of item, as a tuple. The length is checked before any item is."""

    item: Field
    max_items: Bound = "max_partitions_per_request"

    def decode(self, value: Any, limits: Limits) -> tuple[Any, ...]:
        if type(value) is not list:
            raise invalid("must be a list")
        if len(value) > resolve(self.max_items, limits):
            raise too_large(f"must have at most {resolve(self.max_items, limits)} items")
        return tuple([self._read(index, each, limits) for index, each in enumerate(value)])

    def encode(self, value: Iterable[Any]) -> list[Any]:
        return [self.item.encode(each) for each in value]

    def schema(self, limits: Limits) -> Schema:
        return {"type": "array", "items": self.item.schema(limits), "maxItems": resolve(self.max_items, limits)}

    def _read(self, index: int, value: Any, limits: Limits) -> Any:
        try:
            return self.item.decode(value, limits)
        except RejectedRequest as rejected:
            if rejected.detail.startswith(_UNKNOWN_FIELD):
                raise RejectedRequest(rejected.code, _unknown_below(f"[{index}]", rejected.detail)) from None
            glue = " " if rejected.detail.startswith("must ") else "."
            raise RejectedRequest(rejected.code, f"[{index}]{glue}{rejected.detail}") from None


def given(build: Callable[..., Any], entries: tuple[Property, ...], *, doc: str = "", title: str = "") -> ObjectShape:
    """The record of something that callers send: no other names than these are admitted."""
    return ObjectShape(build, entries, doc=doc, title=title, closed=True)


class Pair:
    """A record of two names that is a plain tuple in memory."""

    def __init__(self, first: Property, second: Property) -> None:
        self.names = (first.name, second.name)
        self._fields = (first.field, second.field)
        self._record = ObjectShape(
            lambda **values: tuple(values[name] for name in self.names), (first, second), closed=True
        )

    def decode(self, value: Any, limits: Limits) -> Any:
        if type(value) is dict and len(value) == 2:
            (first, second), (one, other) = self.names, self._fields
            try:
                return one.decode(value[first], limits), other.decode(value[second], limits)
            except (KeyError, RejectedRequest):
                pass  # the record names the error
        return self._record.decode(value, limits)

    def encode(self, value: tuple[Any, Any]) -> dict[str, Any]:
        return {name: kind.encode(item) for name, kind, item in zip(self.names, self._fields, value, strict=True)}

    def schema(self, limits: Limits) -> Schema:
        return self._record.schema(limits)
