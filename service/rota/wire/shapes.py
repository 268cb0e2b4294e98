"""How messages look on the wire, derived from the annotations of their fields.

A `Shape` makes a msgspec struct of the fields of a message that are on the wire: it decodes and validates JSON and
protobuf, writes JSON, and describes itself as a JSON schema. ADR 112 has the reasons.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property
from operator import attrgetter
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import astuple

from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.limits import Limits
from rota.protocol.messages import TopicPartitions
from rota.protocol.suggestions import unknown
from rota.protocol.values import REQUIRED, AtMost, Bound, Checked, Internal, OnWire, Via, Within
from rota.wire.rejections import Rule, is_null, reject

Convert = Callable[[Any], Any]

_NO_JSON = "the body is not valid JSON"
_INTEGER = re.compile(r"-?[0-9]{1,17}")
_NO_NUL = r"^[^\x00]*$"
"""Postgres stores no text with NUL."""
_SELECTOR = re.compile(r"(?s)(.*)/(-?[0-9]{1,10}(?:,-?[0-9]{1,10})*)", re.ASCII)


def invalid(detail: str) -> RejectedRequest:
    return RejectedRequest(ErrorCode.INVALID_REQUEST, detail)


def too_large(detail: str) -> RejectedRequest:
    return RejectedRequest(ErrorCode.PAYLOAD_TOO_LARGE, detail)


@dataclass(frozen=True, slots=True)
class Kind:
    """An annotation, taken apart."""

    core: Any
    is_optional: bool
    marks: tuple[Any, ...]
    """The outermost first."""

    def mark(self, kind: type) -> Any:
        return next((mark for mark in self.marks if isinstance(mark, kind)), None)

    @property
    def item(self) -> Kind | None:
        """The kind of the items of a list."""
        arguments = get_args(self.core)
        return kind_of(arguments[0]) if get_origin(self.core) is tuple and arguments[-1] is Ellipsis else None


def kind_of(annotation: Any) -> Kind:
    marks: list[Any] = []
    is_optional = False
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *inner = get_args(annotation)
            marks += reversed(inner)
        elif get_origin(annotation) in (Union, UnionType) and NoneType in get_args(annotation):
            is_optional = True
            annotation = Union[tuple(each for each in get_args(annotation) if each is not NoneType)]  # noqa: UP007
        else:
            return Kind(annotation, is_optional, tuple(marks))


@dataclass(frozen=True, slots=True)
class Entry:
    """A field of a message that is on the wire."""

    name: str
    attribute: str
    kind: Kind
    default: Any
    """In the form of the message; `REQUIRED` if it has none."""

    @property
    def absent(self) -> Any:
        """The value that stands for none, as every release reads it: empty, false, or a number that is not positive.

        Another default (a timeout, a page's size) may differ between two releases, so callers send it.
        """
        return self.default if not self.default or (type(self.default) is int and self.default < 0) else REQUIRED

    @property
    def doc(self) -> str:
        return next((mark.description for mark in self.kind.marks if isinstance(mark, Meta) and mark.description), "")


class _OnWire(NamedTuple):
    """A type of msgspec, and how its values are converted; None: they are those of the message."""

    type: Any
    read: Convert | None = None
    write: Convert | None = None


class _Body(NamedTuple):
    """The struct of a shape under certain limits."""

    read_type: Any
    decoder: msgspec.json.Decoder[Any]
    reads: tuple[tuple[int, Convert], ...]
    """The conversions of fields, by their places."""
    written_type: Any
    written: Callable[[Any], Iterable[Any]]
    """The values of a message on the wire, in the order of its fields."""


class Shape:
    """A message on the wire.

    `path` names the fields that the path of the call holds. A `closed` shape is what callers send: it refuses an
    unknown name, because a misspelt name must not count as absent, and it applies all bounds. An open one is what a
    server sends: a reader ignores the names that a newer server adds. In a closed one, null means absent.
    """

    def __init__(
        self,
        message: type[Struct],
        *,
        closed: bool,
        path: Collection[str] = (),
        build: Callable[..., Any] | None = None,
        head: Mapping[str, Any] | None = None,
        tail: Mapping[str, Any] | None = None,
        takes_nulls: bool = False,
    ) -> None:
        """`build` makes the message of its fields; `head` and `tail` have the types of names that no field of it has,
        which an open shape writes before and after the fields. One that `takes_nulls` reads the documents in which the
        other one finds a null: to look for nulls takes time, and hardly any document has one.
        """
        self.message = message
        self.closed = closed
        self.title = message.__name__
        self._takes_nulls = takes_nulls
        self._path = frozenset(path)
        self._build = build or message
        self._head = tuple((head or {}).items())
        self._tail = tuple((tail or {}).items())
        self._compiled: tuple[Limits, _Body] | None = None
        """One value, because a thread reads large messages."""

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        fields = self.message.__struct_fields__
        defaults = (REQUIRED,) * (
            len(fields) - len(self.message.__struct_defaults__)
        ) + self.message.__struct_defaults__
        hints = get_type_hints(self.message, include_extras=True)
        found = []
        for attribute, plain in zip(fields, defaults, strict=True):
            kind = kind_of(hints[attribute])
            if attribute in self._path or kind.mark(Internal):
                continue
            on_wire = kind.mark(OnWire) or OnWire()
            default = plain if on_wire.default is ... else on_wire.default
            found.append(Entry(on_wire.name or attribute, attribute, kind, default))
        return tuple(found)

    @cached_property
    def _with_nulls(self) -> Shape:
        """This shape for documents in which a null stands for an absent value."""
        return Shape(self.message, closed=self.closed, path=self._path, build=self._build, takes_nulls=True)

    @cached_property
    def names(self) -> dict[str, Entry]:
        return {entry.name: entry for entry in self.entries}

    # --- reading ------------------------------------------------------------------------------------

    def read(self, data: bytes, limits: Limits, **given: Any) -> Any:
        """The message of a JSON text; `given` has what the text does not hold. Raises `RejectedRequest`.

        An empty text is an empty object.
        """
        known = self._compiled
        body = known[1] if known is not None and limits is known[0] else self.body(limits)
        data = data or b"{}"
        try:
            values = body.decoder.decode(data)
        except msgspec.ValidationError as error:
            if self._takes_nulls or not self.closed or not is_null(error):
                raise reject(error, self._rule_at, limits) from None
            return self._with_nulls.read(data, limits, **given)
        except (msgspec.DecodeError, RecursionError):
            raise invalid(_NO_JSON) from None
        return self.message_of(body, values, given)

    def decode(self, document: Any, limits: Limits, **given: Any) -> Any:
        """Build the message of a parsed document, in which bytes may be bytes or base64."""
        body = self.body(limits)
        try:
            values = msgspec.convert(document, body.read_type)
        except msgspec.ValidationError as error:
            if self._takes_nulls or not self.closed or not is_null(error):
                raise reject(error, self._rule_at, limits) from None
            return self._with_nulls.decode(document, limits, **given)
        return self.message_of(body, values, given)

    def message_of(self, body: _Body, values: Any, given: dict[str, Any]) -> Any:
        found = astuple(values)
        if body.reads:
            found = self._converted(body, [*found])
        if self._takes_nulls:
            found = tuple(map(_unless_null, found, self.entries))
        if tuple(given) == self._leading:
            return self.message(*given.values(), *found)
        return self._build(**given, **dict(zip(self._attributes, found, strict=True)))

    def _converted(self, body: _Body, found: list[Any]) -> tuple[Any, ...]:
        for at, convert in body.reads:
            try:
                found[at] = convert(found[at])
            except RejectedRequest as rejected:
                raise _placed(self.entries[at].name, rejected) from None
        return tuple(found)

    @cached_property
    def _attributes(self) -> tuple[str, ...]:
        return tuple(entry.attribute for entry in self.entries)

    @cached_property
    def _leading(self) -> tuple[str, ...] | None:
        """The message's fields before those on the wire, if these follow one another and no function builds it."""
        fields, named = self.message.__struct_fields__, self._attributes
        first = fields.index(named[0]) if named and self._build is self.message else -1
        return fields[:first] if first >= 0 and fields[first : first + len(named)] == named else None

    def from_query(self, parameters: Iterable[tuple[str, str]]) -> dict[str, Any]:
        """The document that a query string stands for: lists repeat their name."""
        document: dict[str, Any] = {}
        for name, text in parameters:
            entry = self.names.get(name)
            if entry is None:
                raise invalid(unknown("query parameter", name, self.names))
            kind = _wire_kind(entry.kind)
            if kind.item is None:
                document[name] = int(text) if kind.core is int and _INTEGER.fullmatch(text) else text
            else:
                items = document.setdefault(name, [])
                is_selector = kind.item.core is TopicPartitions
                items.append(_read_selector(text, f"{name}[{len(items)}]") if is_selector else text)
        return document

    # --- writing ------------------------------------------------------------------------------------

    def encode(self, message: Any) -> dict[str, Any]:
        """The document of what a caller sends, without the names that the message leaves absent: the reader may be of
        an earlier release, and refuse a name that it does not know. An open shape writes all names.
        """
        document = {}
        for entry in self.entries:
            value = getattr(message, entry.attribute)
            if not self.closed or (value is not None and value != entry.absent):
                document[entry.name] = _json(entry.kind, value, closed=self.closed)
        return document

    def write(self, message: Any, *tail: Any, head: tuple[Any, ...] = ()) -> bytes:
        """The JSON text of a message of an open shape, with what comes before and after the fields."""
        body = self.body(_DEFAULT_LIMITS)
        return _ENCODER.encode(body.written_type(*head, *body.written(message), *tail))

    def to_query(self, message: Any) -> list[tuple[str, str]]:
        """The reverse of `from_query`; None and empty values are left out."""
        pairs: list[tuple[str, str]] = []
        for name, value in self.encode(message).items():
            values = value if isinstance(value, list) else [value]
            pairs += [(name, _query_text(item)) for item in values if item not in (None, "")]
        return pairs

    # --- the struct ---------------------------------------------------------------------------------

    def body(self, limits: Limits) -> _Body:
        known = self._compiled
        if known is None or limits != known[0]:
            known = self._compiled = limits, self._compile(limits)
        return known[1]

    def read_type(self, limits: Limits) -> type[Struct]:
        """The struct that `read` decodes, for JSON schemas."""
        found: type[Struct] = self.body(limits).read_type
        return found

    def written_type(self, limits: Limits) -> type[Struct]:
        """The struct that `write` encodes, for JSON schemas."""
        found: type[Struct] = self.body(limits).written_type
        return found

    def _compile(self, limits: Limits) -> _Body:
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
        reads, writes = [], []
        for at, entry in enumerate(self.entries):
            # Null is absent: only where absent is None, a struct has it.
            as_given = self.closed and entry.default is not None
            found = (_required if as_given else _on_wire)(
                entry.kind, limits, closed=self.closed, takes_nulls=self._takes_nulls
            )
            if self._takes_nulls:
                found = _OnWire(found.type | None, _unless_none(found.read), found.write)
            described = Annotated[found.type, Meta(description=entry.doc)] if entry.doc else found.type
            default = entry.default
            if default is REQUIRED or not self.closed:
                fields.append((entry.name, described))
            else:
                written = default if found.write is None or default is None else found.write(default)
                nullable = described | None if default is None and not entry.kind.is_optional else described
                fields.append((entry.name, nullable, written))
            if found.read is not None:
                reads.append((at, found.read))
            writes.append((entry.attribute, found.write))
        made = msgspec.defstruct(
            self.title,
            fields,
            namespace={"__post_init__": _checking(self.entries)} if self.closed else None,
            kw_only=self.closed,
            forbid_unknown_fields=self.closed,
        )
        whole = [*self._head, *fields, *self._tail]
        written = made if len(whole) == len(fields) else msgspec.defstruct(self.title, whole)
        return _Body(made, msgspec.json.Decoder(made), tuple(reads), written, _writing(writes))

    def _rule_at(self, path: tuple[str, ...]) -> Rule:
        """The rule of the field there."""
        shape: Shape | None = self
        kind: Kind | None = None
        for step in path:
            if shape is not None and step in shape.names:
                kind = shape.names[step].kind
            else:
                kind = _wire_kind(kind).item if kind is not None else None
            nested = _wire_kind(kind).core if kind is not None else None
            shape = nested_shape(nested, closed=self.closed) if is_struct(nested) else None
        names = frozenset(shape.names) if shape is not None else frozenset[str]()
        is_enum = kind is not None and isinstance(kind.core, type) and issubclass(kind.core, StrEnum)
        return Rule(names, _bounds_of(kind), tuple(kind.core) if kind is not None and is_enum else ())


_DEFAULT_LIMITS = Limits()
_ENCODER = msgspec.json.Encoder()


@cache
def nested_shape(message: type[Struct], *, closed: bool, takes_nulls: bool = False) -> Shape:
    """The shape of a message that is a part of others."""
    return Shape(message, closed=closed, build=BUILDERS.get(message), takes_nulls=takes_nulls)


BUILDERS: dict[type, Callable[..., Any]] = {}
"""Functions that make a message of its fields, and check what no field says alone."""


def _bounds_of(kind: Kind | None) -> Within | None:
    """The bounds of an integer."""
    if kind is None:
        return None
    via = kind.mark(Via)
    marks = kind.marks if via is None else kind_of(via.wire).marks
    bounds = ((mark.ge, mark.le) for mark in marks if isinstance(mark, Meta))
    static = next(((least, most) for least, most in bounds if least is not None and most is not None), None)
    return kind.mark(Within) or (Within(int(static[0]), int(static[1])) if static else None)


def is_struct(core: Any) -> bool:
    return isinstance(core, type) and issubclass(core, Struct)


def _wire_kind(kind: Kind) -> Kind:
    via = kind.mark(Via)
    return kind if via is None else kind_of(via.wire)


def _on_wire(kind: Kind, limits: Limits, *, closed: bool, takes_nulls: bool) -> _OnWire:
    found = _required(kind, limits, closed=closed, takes_nulls=takes_nulls)
    if not kind.is_optional:
        return found
    return _OnWire(found.type | None, _unless_none(found.read), _unless_none(found.write))


def _required(kind: Kind, limits: Limits, *, closed: bool, takes_nulls: bool) -> _OnWire:
    via = kind.mark(Via)
    if via is not None:
        inner = _on_wire(kind_of(via.wire), limits, closed=closed, takes_nulls=takes_nulls)
        return _OnWire(inner.type, _chain(inner.read, via.read), _chain(via.write, inner.write))
    if kind.item is not None:
        item = _on_wire(kind.item, limits, closed=closed, takes_nulls=takes_nulls)
        wire: Any = tuple[item.type, ...]  # type: ignore[name-defined]
        if closed:
            most = (kind.mark(AtMost) or AtMost("max_partitions_per_request")).most
            wire = Annotated[wire, Meta(max_length=resolve(most, limits))]
        return _OnWire(wire, _each(item.read), _each(item.write))
    if is_struct(kind.core):
        shape = nested_shape(kind.core, closed=closed, takes_nulls=takes_nulls)
        if not closed and not takes_nulls and all(_is_plain(entry) for entry in shape.entries):
            return _OnWire(kind.core)
        body = shape.body(limits)
        read, write = _nested(shape, body)
        return _OnWire(body.read_type, read, write)
    if closed and get_origin(kind.core) is dict:
        key, value = (
            _on_wire(kind_of(each), limits, closed=True, takes_nulls=takes_nulls).type for each in get_args(kind.core)
        )
        return _OnWire(_bounded(dict[key, value], kind, limits))  # type: ignore[valid-type]
    return _OnWire(_bounded(kind.core, kind, limits) if closed else kind.core)


def _is_plain(entry: Entry) -> bool:
    """Whether the field is on the wire as it is in the message."""
    kind = entry.kind
    inner = kind.item or kind
    return (
        kind.mark(Via) is None
        and entry.name == entry.attribute
        and (
            not is_struct(inner.core) or all(_is_plain(each) for each in nested_shape(inner.core, closed=False).entries)
        )
    )


def _nested(shape: Shape, body: _Body) -> tuple[Convert, Convert]:
    def read(value: Any) -> Any:
        return shape.message_of(body, value, {})

    return read, lambda value: body.written_type(*body.written(value))


def _writing(writes: Sequence[tuple[str, Convert | None]]) -> Callable[[Any], Iterable[Any]]:
    """A function that gets the values of a message, and converts them."""
    if len(writes) > 1 and all(convert is None for _, convert in writes):
        return attrgetter(*(attribute for attribute, _ in writes))
    return lambda message: [
        getattr(message, attribute) if convert is None else convert(getattr(message, attribute))
        for attribute, convert in writes
    ]


def _bounded(wire: Any, kind: Kind, limits: Limits) -> Any:
    """The type with the bounds of its marks."""
    metas = [mark for mark in kind.marks if isinstance(mark, Meta) and not mark.description]
    within, most, checked = kind.mark(Within), kind.mark(AtMost), kind.mark(Checked)
    if within is not None:
        metas = [Meta(ge=within.least, le=resolve(within.most, limits))]
    if most is not None:
        metas.append(Meta(max_length=resolve(most.most, limits)))
    if checked is not None:
        metas.append(Meta(extra_json_schema=checked.schema))
    elif wire is str:
        metas.append(Meta(pattern=_NO_NUL))
    for meta in metas:
        wire = Annotated[wire, meta]
    return wire


def _checking(entries: tuple[Entry, ...]) -> Callable[[Any], None]:
    """What a struct checks once it is made."""
    checks = [(entry.name, found.check) for entry in entries if (found := entry.kind.mark(Checked)) is not None]

    def check_all(values: Any) -> None:
        for name, check in checks:
            value = getattr(values, name)
            if value is not None:
                try:
                    check(value)
                except RejectedRequest as rejected:
                    raise ValueError(rejected.detail) from None

    return check_all


def _json(kind: Kind, value: Any, *, closed: bool) -> Any:
    """A value as JSON holds it."""
    if value is None:
        return None
    via = kind.mark(Via)
    if via is not None:
        kind, value = kind_of(via.wire), via.write(value)
    if is_struct(kind.core):
        return nested_shape(kind.core, closed=closed).encode(value)
    if kind.item is not None:
        return [_json(kind.item, each, closed=closed) for each in value]
    return msgspec.to_builtins(value)


def _unless_null(value: Any, entry: Entry) -> Any:
    """The value of a field; null is absent."""
    if value is not None or (entry.default is REQUIRED and entry.kind.is_optional):
        return value
    if entry.default is REQUIRED:
        raise invalid(f"{entry.name} is missing")
    return entry.default


def _unless_none(convert: Convert | None) -> Convert | None:
    return None if convert is None else lambda value: None if value is None else convert(value)


def _each(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None

    def convert_one(index: int, value: Any) -> Any:
        try:
            return convert(value)
        except RejectedRequest as rejected:
            raise _placed(f"[{index}]", rejected) from None

    def convert_all(values: Any) -> tuple[Any, ...]:
        try:
            return tuple([convert(value) for value in values])
        except RejectedRequest:
            return tuple([convert_one(*each) for each in enumerate(values)])  # It raises with the place.

    return convert_all


def _placed(place: str, rejected: RejectedRequest) -> RejectedRequest:
    """The rejection of a part, with its place: `members`, `[3]`."""
    detail = rejected.detail
    if not detail.startswith("unknown "):
        glue = " " if detail.startswith("must ") else "" if detail.startswith("[") else "."
        detail = f"{place}{glue}{detail}"
    return RejectedRequest(rejected.code, detail)


def _chain(first: Convert | None, then: Convert | None) -> Convert | None:
    if first is None or then is None:
        return first or then
    return lambda value: then(first(value))


def resolve(bound: Bound, limits: Limits) -> int:
    if isinstance(bound, int):
        return bound
    found: int = getattr(limits, bound)
    return found


def _read_selector(text: str, name: str) -> dict[str, Any]:
    """Partitions of a topic in a query string: `orders/0,1,2`."""
    matched = _SELECTOR.fullmatch(text)
    if matched is None:
        raise invalid(f"{name} must look like topic/0,1,2")
    return {"topic": matched[1], "partitions": [int(number) for number in matched[2].split(",")]}


def _query_text(item: Any) -> str:
    match item:
        case {"topic": topic, "partitions": partitions}:
            return f"{topic}/{','.join(map(str, partitions))}"
        case bool():
            return "true" if item else "false"
        case _:
            return str(item)
