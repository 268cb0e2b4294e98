"""The protocol types that this process knows, and what the coordinator makes of their otherwise opaque bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint
from typing import Any, Final, TypeVar

from rota.core.types.consumer import CONSUMER
from rota.core.types.leader import LEADER
from rota.core.types.permits import PERMITS
from rota.core.types.plugin import Generation, ProtocolType, Readable, Report, ServerSide, reporting
from rota.core.types.wire_format import MalformedMetadata
from rota.core.types.worker import WORKER
from rota.protocol.texts import shortened, storable

ENTRY_POINT_GROUP: Final = "rota.protocol_types"
SERVER_PREFIX: Final = "server:"
MAX_DECODED_BYTES: Final = 256 * 1024

_TYPES: Final[dict[str, ProtocolType]] = {each.name: each for each in (CONSUMER, WORKER, LEADER, PERMITS)}
_REGISTERED: Final[dict[str, ProtocolType]] = dict(_TYPES)
"""The same as they were given to `register`."""


Answer = TypeVar("Answer")
Default = TypeVar("Default")


def attempt(default: Default, function: Callable[..., Answer], *arguments: Any) -> Answer | Default:
    """Call a function of a plug-in, which may fail in any way, or meet bytes that it cannot read."""
    try:
        return function(*arguments)
    except Exception:
        return default


class BrokenPlugin(Exception):
    """An entry point of `rota.protocol_types` that cannot be used; the message names it."""


def register(protocol_type: ProtocolType, report: Report | None = None) -> None:
    """Make a type known; at the start of the process, for groups that exist already are not looked at again.

    Registering it twice is harmless, another type of the same name is refused. `report` gets its functions' exceptions.
    """
    known = _REGISTERED.setdefault(protocol_type.name, protocol_type)
    if known is not protocol_type:
        raise BrokenPlugin(f"there is a protocol type {protocol_type.name!r} already")
    _TYPES.setdefault(protocol_type.name, protocol_type if report is None else reporting(protocol_type, report))


def register_entry_points(found: Iterable[EntryPoint], report: Report | None = None) -> list[str]:
    """Register installed plug-ins; returns the names. The process calls it at its start."""
    names = []
    for point in found:
        loaded = point.load()
        if not isinstance(loaded, ProtocolType):
            raise BrokenPlugin(f"{point.value} of entry point {point.name!r} is no ProtocolType")
        register(loaded, report)
        names.append(loaded.name)
    return names


def protocol_types() -> list[str]:
    """The names of all known types."""
    return sorted(_TYPES)


def server_side(protocol_type: str, protocol_name: str) -> ServerSide | None:
    """How the coordinator assigns for this protocol, None if members do it."""
    known = _TYPES.get(protocol_type)
    side = None if known is None else known.server
    return side if side is not None and attempt(False, side.assigns, protocol_name) else None


def why_not_assigned(protocol_type: str, protocol_name: str, metadata: bytes) -> str:
    """Return why a member must not join with this protocol: the server could not assign for it. Empty if it may."""
    side = server_side(protocol_type, protocol_name)
    if side is None:
        asks = protocol_name.startswith(SERVER_PREFIX)
        return f"the server cannot assign groups of type {protocol_type!r} by {protocol_name!r}" if asks else ""
    try:
        side.check(metadata)
    except MalformedMetadata as error:
        return f"metadata of {protocol_name!r}: {error}"
    except Exception as error:  # A plug-in may raise for bytes that its author did not expect.
        return f"metadata of {protocol_name!r}: {error!r}"
    return ""


def subscribed_topics(protocol_type: str, metadata: bytes) -> frozenset[str] | None:
    """The topics that a member with this metadata subscribes to: their offsets must neither expire nor be deleted.

    None if that cannot be said: the type has no notion of topics, or the bytes are malformed (a plug-in may raise
    any exception for these).
    """
    known = _TYPES.get(protocol_type)
    topics = None if known is None or known.topics_of is None else attempt(None, known.topics_of, metadata)
    return None if topics is None else attempt(None, frozenset[str], topics)


def subscribes(protocol_type: str, metadata: bytes, topic: str) -> bool | None:
    """Whether a member with this metadata subscribes to a topic, by name or by a pattern.

    None if that cannot be said, as in `subscribed_topics`.
    """
    known = _TYPES.get(protocol_type)
    if known is None or known.subscribes is None:
        topics = subscribed_topics(protocol_type, metadata)
        return None if topics is None else topic in topics
    return attempt(None, known.subscribes, metadata, topic)


def describe_topics(protocol_type: str, before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    """What new shares of members say of topics that have changed; empty if the type says nothing."""
    known = _TYPES.get(protocol_type)
    describe = None if known is None or known.server is None else known.server.describe_topics
    return "" if describe is None else attempt("", lambda: shortened(describe(before, after)))


def has_units(protocol_type: str) -> bool:
    """Whether shares of this type consist of units of work that can be left out."""
    known = _TYPES.get(protocol_type)
    return known is not None and known.units is not None


def units_of(protocol_type: str, assignment: bytes) -> frozenset[str]:
    """The units of work in a share; none where the type has no units, or cannot read the bytes."""
    known = _TYPES.get(protocol_type)
    of = None if known is None or known.units is None or not assignment else known.units.of
    return frozenset() if of is None else attempt(frozenset(), lambda: frozenset(map(storable, of(assignment))))


def without_units(protocol_type: str, assignment: bytes, units: frozenset[str]) -> bytes:
    """A share less these units: the same bytes if it has none of them, no bytes if a plug-in cannot write them."""
    known = _TYPES.get(protocol_type)
    if known is None or known.units is None or units.isdisjoint(units_of(protocol_type, assignment)):
        return assignment
    return attempt(b"", known.units.without, assignment, units)


def topics_debounce_ms(side: ServerSide, generation: Generation) -> int:
    """For how long changes of topics collect before this generation is assigned anew; 0 if the function raises."""
    debounce_ms = side.topics_debounce_ms
    return 0 if debounce_ms is None else attempt(0, lambda: max(0, int(debounce_ms(generation))))


def readable_metadata(protocol_type: str, metadata: bytes) -> Readable | None:
    """Metadata for people; None for a type that is not known and for bytes that it cannot read."""
    known = _TYPES.get(protocol_type)
    return None if known is None else attempt(None, known.read_metadata, metadata)


def readable_assignment(protocol_type: str, assignment: bytes) -> Readable | None:
    """An assignment for people; None for a type that is not known and for bytes that it cannot read."""
    known = _TYPES.get(protocol_type)
    return None if known is None else attempt(None, known.read_assignment, assignment)


def decoded(readable: Readable | None) -> dict[str, Any] | None:
    """The same as plain JSON that every wire can carry; None for anything too large, or not a JSON object."""
    if readable is None:
        return None
    try:
        text = json.dumps(readable, ensure_ascii=False, allow_nan=False, default=_plain)
        found = json.loads(text) if len(text.encode()) <= MAX_DECODED_BYTES else None
    except (TypeError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no JSON")
