"""Records as JSON values and back: the form in which the journal keeps them, and the pipeline reads them.

A payload holds the record's fields by name, less `reason`, which is a column of its own. Bytes are
base64, tuples are lists, a member's protocols are `[name, metadata]` pairs, and an offset above 2^53 - 1 is a string.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

from rota.core.group import records as r
from rota.core.group.records import (
    AssignmentFailed,
    AssignmentSynced,
    GenerationRaised,
    GroupEmptied,
    MemberExpired,
    MemberFenced,
    MemberJoined,
    MemberLeft,
    MemberRemoved,
    MemberUpdated,
    RebalanceStarted,
    Record,
)
from rota.core.group.rows import MemberImage
from rota.protocol.causes import Cause
from rota.protocol.limits import MAX_SAFE_INTEGER
from rota.protocol.messages import Protocol

RECORD_KINDS: dict[str, type[Any]] = {
    record.kind: record
    for record in (
        r.RebalanceStarted,
        r.MemberJoined,
        r.MemberUpdated,
        r.MemberLeft,
        r.MemberExpired,
        r.MemberRemoved,
        r.MemberFenced,
        r.GenerationCompleted,
        r.LeaderChanged,
        r.AssignmentSynced,
        r.AssignmentFailed,
        r.OffsetsCommitted,
        r.OffsetsDeleted,
        r.RequestFenced,
        r.SessionStats,
        r.GenerationRaised,
        r.GroupFrozen,
        r.GroupUnfrozen,
        r.LeaveGranted,
        r.QuarantineChanged,
        r.UnitsSuspected,
        r.UnitsQuarantined,
        r.UnitsReleased,
        r.GroupEmptied,
        r.GroupDeleted,
        r.TopicChanged,
        r.Administered,
        r.ShardAcquired,
        r.ShardReleased,
    )
}
_NAMES: dict[type, tuple[str, ...]] = {
    kind: tuple(each.name for each in fields(kind) if each.name != "reason") for kind in RECORD_KINDS.values()
}
"""The fields of each record that its payload holds."""


def encode_entry(entry: r.Entry) -> dict[str, Any]:
    """A journal line without its sequence number: JSON values only."""
    record = entry.record
    return {
        "at_ms": entry.at_ms,
        "namespace": entry.namespace,
        "group_id": entry.group_id,
        "generation_id": entry.generation_id,
        "kind": record.kind,
        "reason": reason_of(record),
        "payload": payload_of(record),
    }


def lines_of(records: Iterable[Record]) -> list[tuple[str, str, dict[str, Any]]]:
    """The kind, the reason and the payload of each record, as its line in the journal has them."""
    return [(record.kind, reason_of(record), payload_of(record)) for record in records]


def reason_of(record: r.Record) -> str:
    """The reason that a line gives; empty where its kind has none."""
    return getattr(record, "reason", "")


def payload_of(record: r.Record) -> dict[str, Any]:
    """All else that a line says of its record, by the names of the record's fields."""
    if type(record) is r.OffsetsCommitted:
        # The line that comes most often, written out.
        return {"member_id": record.member_id, "offsets": list(map(_encode_offset, record.offsets))}
    return {name: _encode(getattr(record, name)) for name in _NAMES[type(record)]}


def decode_entry(line: dict[str, Any]) -> r.Entry:
    """The entry that `encode_entry` wrote; raises KeyError for a kind that this version does not know."""
    kind = RECORD_KINDS[line["kind"]]
    fields = {name: _decode(name, value) for name, value in line["payload"].items()}
    if "reason" in kind.__slots__:
        fields["reason"] = line["reason"]
    return r.Entry(line["namespace"], line["group_id"], line["generation_id"], line["at_ms"], kind(**fields))


def encode_image(image: MemberImage) -> dict[str, Any]:
    return {
        "member_id": image.member_id,
        "group_instance_id": image.group_instance_id,
        "client_id": image.client_id,
        "host": image.host,
        "session_timeout_ms": image.session_timeout_ms,
        "rebalance_timeout_ms": image.rebalance_timeout_ms,
        "protocols": [[p.name, _base64(p.metadata)] for p in image.protocols],
        **({"subject": image.subject} if image.subject else {}),
    }


def decode_image(value: dict[str, Any]) -> MemberImage:
    protocols = tuple(Protocol(_plain(name), b64decode(metadata)) for name, metadata in value["protocols"])
    return MemberImage(**{**_plain_values(value, "protocols"), "protocols": protocols})


def _encode(value: Any) -> Any:
    encode = _ENCODERS.get(type(value))
    return value if encode is None else encode(value)


def _encode_all(values: tuple[Any, ...]) -> list[Any]:
    return [_encode(value) for value in values]


def _encode_offset(offset: r.CommittedOffset) -> list[Any]:
    if offset.offset > MAX_SAFE_INTEGER:
        offset = offset._replace(offset=str(offset.offset))  # type: ignore[arg-type]
    if offset.expires_at_ms is not None:
        return [*offset]
    return [*offset[:5]] if offset.committed_at_ms is None else [*offset[:6]]


def _base64(value: bytes) -> str:
    return b64encode(value).decode("ascii")


# By type, because a generation of a large group has thousands of values to look at.
_ENCODERS: dict[type, Callable[[Any], Any]] = {
    bytes: _base64,
    tuple: _encode_all,
    Cause: str,
    MemberImage: encode_image,
    r.CommittedOffset: _encode_offset,
}


def _decode(name: str, value: Any) -> Any:
    """The field of a record; a value that is nested where `encode_entry` nests none raises ValueError."""
    match name:
        case "member":
            return decode_image(value)
        case "assignments":
            return tuple((_plain(member_id), b64decode(assignment)) for member_id, assignment in value)
        case "offsets":
            return tuple(_decode_offset(*map(_plain, item)) for item in value)
        case "partitions" if isinstance(value, list):
            return tuple((_plain(topic), _plain(partition)) for topic, partition in value)
        case "members":
            return tuple((*map(_plain, said), _pairs(gaps)) for *said, gaps in value)
        case "lost" | "suspects":
            return tuple((_plain(one), _plain(two), _plain(three)) for one, two, three in value)
        case "member_ids" | "units":
            return tuple(map(_plain, value))
        case "attributes":
            return _pairs(value)
        case _:
            return _plain(value)


def _decode_offset(topic: Any, partition: Any, offset: Any, *rest: Any) -> r.CommittedOffset:
    return r.CommittedOffset(topic, partition, int(offset) if isinstance(offset, str) else offset, *rest)


def _pairs(value: Any) -> tuple[tuple[Any, Any], ...]:
    return tuple((_plain(one), _plain(other)) for one, other in value)


def _plain_values(value: dict[str, Any], but: str) -> dict[str, Any]:
    return {name: _plain(each) for name, each in value.items() if name != but}


def _plain(value: Any) -> Any:
    """A text, a number, a truth or null. To fold a line with anything else, or to print it, may take any time."""
    if isinstance(value, list | dict):
        raise ValueError("a value is nested that is not")
    return value


# --- which causes a record may have, by the line before it ----------------------------------------


_DEPARTURES: Mapping[type[Record], tuple[Cause, ...]] = {
    MemberLeft: (Cause.MEMBER_LEFT,),
    MemberExpired: (Cause.MEMBER_EXPIRED, Cause.SYNC_TIMEOUT),
    MemberRemoved: (Cause.MEMBER_REMOVED, Cause.GROUP_FULL),
}
_FORMER: Mapping[Cause, tuple[type[Record], ...]] = {
    Cause.MEMBER_JOINED: (MemberJoined,),
    Cause.MEMBER_LEFT: (MemberLeft,),
    Cause.MEMBER_EXPIRED: (MemberExpired,),
    Cause.SYNC_TIMEOUT: (MemberExpired,),
    Cause.MEMBER_REMOVED: (MemberRemoved,),
    Cause.METADATA_CHANGED: (MemberUpdated,),
    Cause.STATIC_MEMBER_RETURNED: (MemberFenced, MemberUpdated),
    Cause.ASSIGNMENT_FAILED: (AssignmentFailed,),
    Cause.GENERATION_RAISED: (GenerationRaised,),
}
"""What the coordinator writes just before a rebalance of this cause, where that is a line of its own."""
TELLING = (*_DEPARTURES, MemberJoined, MemberUpdated, MemberFenced, AssignmentFailed, GenerationRaised)
"""The records that can stand before one with a cause; the caller keeps the group's last one."""


def has_cause(record: Record) -> bool:
    """Whether the coordinator gives records of this kind a code, which the rules below can check."""
    if isinstance(record, AssignmentSynced):
        return record.resync
    return isinstance(record, RebalanceStarted | GroupEmptied | MemberLeft | MemberExpired | MemberRemoved)


def wrong_cause(record: Record, former: Record | None) -> str:
    """What contradicts the record's code, empty where nothing does.

    `former` is the group's last record of `TELLING` by the same owner, None where there is none: what an earlier owner
    had not settled never was.
    """
    match record:
        case MemberLeft() | MemberExpired() | MemberRemoved():
            allowed = _DEPARTURES[type(record)]
            return "" if record.cause in allowed else f"{record.kind} has the cause {record.cause!r}"
        case AssignmentSynced():
            allowed = (Cause.RESYNC, getattr(former, "cause", Cause.RESYNC))
            return "" if record.cause in allowed else f"a resync has the cause {record.cause!r}"
        case GroupEmptied() if former is not None:
            agrees = isinstance(former, MemberLeft | MemberExpired | MemberRemoved) and former.cause == record.cause
            return "" if agrees else f"the group is empty for {record.cause!r}, after {former.kind}"
        case RebalanceStarted():
            if record.cause not in tuple(Cause) or record.cause == Cause.OTHER:
                return f"a rebalance has the cause {record.cause!r}"
            expected = _FORMER.get(Cause(record.cause))
            if former is not None and expected is not None and not isinstance(former, expected):
                return f"a rebalance has the cause {record.cause!r}, after {former.kind}"
    return ""
