"""How messages look on the wire, derived from the annotations of their fields.

A `Shape` makes a msgspec struct of the fields of a message that are on the wire: it decodes and validates JSON and
protobuf, writes JSON, and describes itself as a JSON schema. ADR 113 has the reasons.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property
from operator import attrgetter
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct, structs

from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.limits import Limits
from rota.protocol.messages import TopicPartitions
from rota.protocol.suggestions import unknown
from rota.protocol.values import REQUIRED, AtMost, Bound, Checked, Internal, OnWire, Via, Within
from rota.wire.rejections import Rule, reject

Convert = Callable[[Any], Any]
Conversions = tuple[tuple[int, Convert], ...]
"""The fields whose values are converted, by their places."""
Field = tuple[str, Any]
"""The name of a field and its type."""

_NO_JSON = "the body is not valid JSON"
_INTEGER = re.compile(r"-?[0-9]{1,17}")
_NO_NUL = r"^[^\x00]*$"
"""Postgres stores no text with NUL."""
_SELECTOR = re.compile(r"(?s)(.*)/(-?[0-9]{1,10}(?:,-?[0-9]{1,10})*)", re.ASCII)
_DEFAULT_LIMITS = Limits()
_encode = msgspec.json.Encoder().encode

BUILDERS: dict[type, Callable[..., Any]] = {}
"""Functions that make a message of its fields, and check what no field says alone."""


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

    @property
    def on_wire(self) -> Kind:
        """The kind that the wire holds."""
        via = self.mark(Via)
        return self if via is None else kind_of(via.wire)


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


class _Codec(NamedTuple):
    """A type of msgspec, and how its values are converted; None: they are those of the message."""

    type: Any
    read: Convert | None = None
    write: Convert | None = None


class _Body(NamedTuple):
    """The struct of a shape under certain limits."""

    limits: Limits
    struct: Any
    decoder: msgspec.json.Decoder[Any]
    reads: Conversions
    writes: Conversions


class Shape:
    """A message on the wire.

    `path` names the fields that the path of the call holds. A `closed` shape is what callers send: it refuses an
    unknown name, because a misspelt name must not count as absent, and it applies all bounds. In it, null means absent.
    An open one is what a server sends: a reader ignores the names that a newer server adds. `head` and `tail` are
    fields of the document before and after those of the message.
    """

    def __init__(
        self,
        message: type[Struct],
        *,
        closed: bool,
        path: Collection[str] = (),
        head: Sequence[Field] = (),
        tail: Sequence[Field] = (),
    ) -> None:
        self.message = message
        self.closed = closed
        self.title = message.__name__
        self._path = frozenset(path)
        self._build = BUILDERS.get(message, message)
        self._head, self._tail = head, tail
        self._compiled: _Body | None = None
        """One value, because a thread reads large messages."""

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        found = []
        for field in structs.fields(self.message):
            kind = kind_of(field.type)
            if field.name in self._path or kind.mark(Internal):
                continue
            on_wire = kind.mark(OnWire) or OnWire()
            default = REQUIRED if field.required else field.default
            found.append(
                Entry(
                    on_wire.name or field.name,
                    field.name,
                    kind,
                    default if on_wire.default is ... else on_wire.default,
                )
            )
        return tuple(found)

    @cached_property
    def names(self) -> dict[str, Entry]:
        return {entry.name: entry for entry in self.entries}

    @cached_property
    def _attributes(self) -> tuple[str, ...]:
        return tuple(entry.attribute for entry in self.entries)

    @cached_property
    def _defaults(self) -> tuple[tuple[int, Any], ...]:
        """The defaults of fields that a caller must not set to null, by their places."""
        defaults = enumerate((entry.default, entry.kind.is_optional) for entry in self.entries if self.closed)
        return tuple(
            (at, default)
            for at, (default, is_optional) in defaults
            if default is not None and not (default is REQUIRED and is_optional)
        )

    @cached_property
    def _values_of(self) -> Callable[[Any], tuple[Any, ...]]:
        names = self._attributes
        return attrgetter(*names) if len(names) > 1 else lambda message: tuple(getattr(message, name) for name in names)

    # --- reading ------------------------------------------------------------------------------------

    def read(self, data: bytes, limits: Limits, **given: Any) -> Any:
        """The message of a JSON text; `given` has what the text does not hold. Raises `RejectedRequest`.

        An empty text is an empty object.
        """
        body = self.body(limits)
        try:
            values = body.decoder.decode(data or b"{}")
        except msgspec.ValidationError as error:
            raise reject(error, self._rule_at, limits) from None
        except (msgspec.DecodeError, RecursionError):
            raise invalid(_NO_JSON) from None
        return self._message_of(body, values, given)

    def decode(self, document: Any, limits: Limits, **given: Any) -> Any:
        """Build the message of a parsed document, in which bytes may be bytes or base64."""
        body = self.body(limits)
        return self._message_of(body, self.values(document, limits), given)

    def values(self, document: Any, limits: Limits) -> Any:
        """The struct of a parsed document, with what it has beside the fields of the message."""
        try:
            return msgspec.convert(document, self.body(limits).struct)
        except msgspec.ValidationError as error:
            raise reject(error, self._rule_at, limits) from None

    def message_of(self, values: Any, limits: Limits) -> Any:
        """The message in a struct."""
        return self._message_of(self.body(limits), values, {})

    def _message_of(self, body: _Body, values: Any, given: dict[str, Any]) -> Any:
        found = list(structs.astuple(values))[len(self._head) :]
        for at, convert in body.reads:
            if found[at] is not None:
                try:
                    found[at] = convert(found[at])
                except RejectedRequest as rejected:
                    raise _placed(self.entries[at].name, rejected) from None
        for at, default in self._defaults:
            if found[at] is None:  # Null is absent.
                if default is REQUIRED:
                    raise invalid(f"{self.entries[at].name} is missing")
                found[at] = default
        return self._build(**given, **dict(zip(self._attributes, found, strict=False)))

    def from_query(self, parameters: Iterable[tuple[str, str]]) -> dict[str, Any]:
        """The document that a query string stands for: lists repeat their name."""
        document: dict[str, Any] = {}
        for name, text in parameters:
            entry = self.names.get(name)
            if entry is None:
                raise invalid(unknown("query parameter", name, self.names))
            kind = entry.kind.on_wire
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
        an earlier release, and refuse a name that it does not know.
        """
        document: dict[str, Any] = msgspec.json.decode(_encode(self._named(message)))
        return document

    def _named(self, message: Any) -> dict[str, Any]:
        """The values of a message by their names, without those that it leaves absent."""
        written = zip(self.entries, self._values_of(message), self._written(message), strict=True)
        return {entry.name: to for entry, given, to in written if given is not None and given != entry.absent}

    def write(self, message: Any, *tail: Any, head: tuple[Any, ...] = ()) -> bytes:
        """The JSON text of a message of an open shape, with the values of `head` and `tail`."""
        return _encode(self.body(_DEFAULT_LIMITS).struct(*head, *self._written(message), *tail))

    def _written(self, message: Any) -> Sequence[Any]:
        """The values of a message as the wire has them."""
        values, writes = self._values_of(message), self.body(_DEFAULT_LIMITS).writes
        if not writes:
            return values
        found = list(values)
        for at, convert in writes:
            if found[at] is not None:
                found[at] = convert(found[at])
        return found

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
        if known is None or (limits is not known.limits and limits != known.limits):
            known = self._compiled = self._compile(limits)
        return known

    def _compile(self, limits: Limits) -> _Body:
        fields: list[Field | tuple[str, Any, Any]] = [*self._head]
        codecs = [_codec(entry.kind, limits, closed=self.closed) for entry in self.entries]
        for entry, codec in zip(self.entries, codecs, strict=True):
            wire = codec.type | None if self.closed or entry.kind.is_optional else codec.type
            described = Annotated[wire, Meta(description=entry.doc)] if entry.doc else wire
            if entry.default is REQUIRED or not self.closed:
                fields.append((entry.name, described))
            else:
                write = codec.write if entry.default is not None else None
                fields.append((entry.name, described, write(entry.default) if write else entry.default))
        made = msgspec.defstruct(
            self.title,
            [*fields, *self._tail],
            namespace={"__post_init__": _checking(self.entries)} if self.closed else None,
            kw_only=self.closed,
            forbid_unknown_fields=self.closed,
        )
        reads, writes = (
            tuple((at, convert) for at, convert in enumerate(each) if convert is not None)
            for each in ([codec.read for codec in codecs], [codec.write for codec in codecs])
        )
        return _Body(limits, made, msgspec.json.Decoder(made), reads, writes)

    def as_part(self, limits: Limits) -> _Codec:
        """This message as a part of others. An open one is on the wire as it is, unless its values are converted."""
        body = self.body(limits)
        if not self.closed and not body.reads:
            return _Codec(self.message)

        def read(values: Any) -> Any:
            return self._message_of(body, values, {})

        def write(message: Any) -> Any:
            return self._named(message) if self.closed else body.struct(*self._written(message))

        return _Codec(body.struct, read, write)

    def _rule_at(self, path: tuple[str, ...]) -> Rule:
        """The rule of the field there."""
        shape: Shape | None = self
        kind: Kind | None = None
        for step in path:
            if shape is not None and step in shape.names:
                kind = shape.names[step].kind.on_wire
            else:
                kind = kind.item.on_wire if kind is not None and kind.item is not None else None
            shape = nested_shape(kind.core, closed=self.closed) if kind is not None and is_struct(kind.core) else None
        names = frozenset(shape.names) if shape is not None else frozenset[str]()
        if kind is None:
            return Rule(names)
        bounds = next((mark for mark in kind.marks if isinstance(mark, Meta) and None not in (mark.ge, mark.le)), None)
        static = Within(int(bounds.ge or 0), int(bounds.le or 0)) if bounds is not None else None
        is_enum = isinstance(kind.core, type) and issubclass(kind.core, StrEnum)
        return Rule(names, kind.mark(Within) or static, tuple(kind.core) if is_enum else ())


@cache
def nested_shape(message: type[Struct], *, closed: bool) -> Shape:
    """The shape of a message that is a part of others."""
    return Shape(message, closed=closed)


def is_struct(core: Any) -> bool:
    return isinstance(core, type) and issubclass(core, Struct)


def _codec(kind: Kind, limits: Limits, *, closed: bool) -> _Codec:
    via = kind.mark(Via)
    if via is not None:
        inner = _codec(kind.on_wire, limits, closed=closed)
        return _Codec(inner.type, _chain(inner.read, via.read), _chain(via.write, inner.write))
    if kind.item is not None:
        item = _codec(kind.item, limits, closed=closed)
        wire: Any = tuple[item.type, ...]  # type: ignore[name-defined]
        return _Codec(_bounded(wire, kind, limits) if closed else wire, _each(item.read), _each(item.write))
    if is_struct(kind.core):
        return nested_shape(kind.core, closed=closed).as_part(limits)
    if not closed:
        return _Codec(kind.core)
    if get_origin(kind.core) is dict:
        key, value = (_codec(kind_of(each), limits, closed=True).type for each in get_args(kind.core))
        return _Codec(_bounded(dict[key, value], kind, limits))  # type: ignore[valid-type]
    return _Codec(_bounded(kind.core, kind, limits))


def _bounded(wire: Any, kind: Kind, limits: Limits) -> Any:
    """The type with the bounds of its marks. Every list has one."""
    metas = [mark for mark in kind.marks if isinstance(mark, Meta) and not mark.description]
    within, most, checked = kind.mark(Within), kind.mark(AtMost), kind.mark(Checked)
    if most is None and kind.item is not None:
        most = AtMost("max_partitions_per_request")
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


def _each(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None

    def convert_all(values: Any) -> tuple[Any, ...]:
        found: list[Any] = []
        try:
            for value in values:
                found.append(convert(value))  # noqa: PERF401  # The rejection needs the place.
        except RejectedRequest as rejected:
            raise _placed(f"[{len(found)}]", rejected) from None
        return tuple(found)

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
    return bound if isinstance(bound, int) else int(getattr(limits, bound))


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
