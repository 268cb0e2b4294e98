"""The kinds of values that messages hold, and what the wire demands of each.

A message annotates its fields with these kinds, in msgspec's own words: bounds, patterns and descriptions are a `Meta`.
What msgspec has no word for is in the `extra` of a `Meta`, and `rota.protocol.wire.shapes` reads it there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from msgspec import Meta

from rota.protocol.errors import ErrorCode
from rota.protocol.fencing_token import MAX_TOKEN
from rota.protocol.filters import STATES_PATTERN, read_page_token, read_states, write_page_token
from rota.protocol.ids import (
    CLIENT_ID_PATTERN,
    CLIENT_ID_RULE,
    MEMBER_ID_PATTERN,
    MEMBER_ID_RULE,
    NAME_PATTERN,
    NAME_RULE,
    NAMESPACE_PATTERN,
    NAMESPACE_RULE,
)
from rota.protocol.limits import MAX_SAFE_INTEGER, Limits

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
MAX_PAGE_SIZE = 1_000
END = r"$(?!\n)"
"""The end of a text in a pattern, where Python's `$` also admits a line feed behind it."""

Value = TypeVar("Value")


class Unit(StrEnum):
    """What a limit counts."""

    ITEMS = "items"
    CHARACTERS = "characters"
    BYTES = "bytes"
    NUMBER = "number"


@dataclass(frozen=True, slots=True)
class Limit:
    """A size is at most, or a number is from `least` to, what this field of `Limits` says."""

    name: str
    unit: Unit
    least: int
    code: ErrorCode
    """The error for a number that is out of bounds."""


@dataclass(frozen=True, slots=True)
class Via:
    """The wire holds another type: `read` and `write` convert from it and to it. `read` may raise `RejectedRequest`."""

    wire: Any
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]


INTERNAL = Meta(extra={"internal": True})
"""The field is not on the wire: a server sets it."""


REQUIRED_ON_WIRE = Meta(extra={"required": True})
"""The field's default is for programs alone."""


def limited(name: str, unit: Unit = Unit.ITEMS, least: int = 0, code: ErrorCode = ErrorCode.INVALID_REQUEST) -> Meta:
    """A bound that a setting of the server changes, so it is checked after decoding. The schema has its default."""
    most: int = getattr(Limits(), name)
    schemas = {
        Unit.ITEMS: {"maxItems": most},
        Unit.CHARACTERS: {"maxLength": most},
        Unit.BYTES: {"maxLength": (most + 2) // 3 * 4},
        Unit.NUMBER: {"minimum": least, "maximum": most},
    }
    return Meta(extra={"limit": Limit(name, unit, least, code)}, extra_json_schema=schemas[unit])


def via(wire: Any, read: Callable[[Any], Any], write: Callable[[Any], Any]) -> Meta:
    return Meta(extra={"via": Via(wire, read, write)})


def within(least: int, most: int) -> Meta:
    """The bounds of an integer."""
    return Meta(ge=least, le=most)


def at_most(most: int) -> Meta:
    """The bound of a text's characters, or of a list's items."""
    return Meta(max_length=most)


def matching(pattern: str, rule: str) -> Meta:
    """A text matches the pattern as a whole; a rejection says the rule."""
    return Meta(pattern=f"^{pattern}{END}", extra={"rule": rule})


MANY = limited("max_partitions_per_request")
NoNul = Annotated[str, matching(r"[^\x00]*", "must be Unicode text without NUL")]
"""Postgres stores no text with NUL."""
Text = Annotated[NoNul, at_most(249)]
LongText = Annotated[NoNul, at_most(512)]
Reason = Annotated[NoNul, limited("reason_max_chars", Unit.CHARACTERS)]
Int64 = Annotated[int, within(-(2**63), INT64_MAX)]
Number = Annotated[int, within(0, MAX_SAFE_INTEGER)]
Partition = Annotated[int, within(0, INT32_MAX)]
PartitionCount = Annotated[int, limited("max_topic_partitions", Unit.NUMBER, 1, ErrorCode.INVALID_PARTITIONS)]
GenerationId = Annotated[int, within(-1, INT32_MAX)]
FencingToken = Annotated[int, within(0, MAX_TOKEN)]
_Digits = Annotated[str, matching("(0|[1-9][0-9]{0,18})", "must be an integer, or a string of its digits")]
# On the wire a field may hold another type; a message that was read holds the first one.
if TYPE_CHECKING:
    OrNull = Annotated[Value, None]
    OrDigits = Annotated[Value, str]
else:
    OrNull = Value | None
    OrDigits = Value | _Digits
Progress = OrDigits[Annotated[int, within(0, INT64_MAX)]]
KnownProgress = OrDigits[Annotated[int, within(-1, INT64_MAX)]]
"""An integer of 64 bits; `KnownProgress` also has -1, which says that nothing was committed. Above 2^53 - 1 JSON has it
as a string of digits, and below it may be one: readers that know only doubles would change the number."""
Wait = Number
"""How long a call may stay parked, in milliseconds. A longer time than the server allows is not refused: the call is
parked for as long as `parks_for_ms` says."""
MemberId = Annotated[str, matching(MEMBER_ID_PATTERN, MEMBER_ID_RULE)]
InstanceId = Annotated[str, matching(NAME_PATTERN, NAME_RULE)]
ClientId = Annotated[str, matching(CLIENT_ID_PATTERN, CLIENT_ID_RULE)]
Namespace = Annotated[str, matching(NAMESPACE_PATTERN, NAMESPACE_RULE)]
Topic = Annotated[str, matching(NAME_PATTERN, NAME_RULE)]
TopicOrAll = Annotated[str, matching(f"(?:{NAME_PATTERN})?", NAME_RULE)]
"""Protobuf has no difference between an empty name and none."""
Metadata = Annotated[bytes, limited("metadata_max_bytes", Unit.BYTES)]
Assignment = Annotated[bytes, limited("assignment_max_bytes", Unit.BYTES)]
Attributes = Annotated[dict[Text, Annotated[NoNul, at_most(4_096)]], at_most(64)]
_StatesText = Annotated[Text, Meta(extra_json_schema={"pattern": STATES_PATTERN})]
States = Annotated[tuple[str, ...], via(Annotated[tuple[_StatesText, ...], at_most(64)], read_states, tuple)]
Filter = Annotated[tuple[Text, ...], at_most(64)]
PageSize = Annotated[int, within(1, MAX_PAGE_SIZE)]
After = Annotated[str, via(Annotated[str, at_most(400)], read_page_token, write_page_token)]
NextAfter = Annotated[str | None, via(str | None, read_page_token, write_page_token)]
"""What the caller names to get the next page; None on the last page."""
Revision = Annotated[Number, Meta(description="The shard's last journal entry that this answer reflects.")]
Epoch = Annotated[Number, Meta(description="The epoch of the shard's owner.")]
