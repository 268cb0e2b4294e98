"""The kinds of values that messages hold, and what the wire demands of each.

A message annotates its fields with these kinds. `rota.wire.shapes` derives the decoder, the encoder, the JSON schema
and the protobuf codec of a message from its annotations, so a new field is one line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.fencing_token import MAX_TOKEN
from rota.protocol.filters import STATES_PATTERN, read_page_token, read_states, write_page_token
from rota.protocol.ids import NAME_PATTERN, check_client_id, check_instance_id, check_member_id, check_topic
from rota.protocol.limits import MAX_SAFE_INTEGER

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
MAX_PAGE_SIZE = 1_000

Bound = int | str
"""A number, or the name of the field of `Limits` that holds it."""


@dataclass(frozen=True, slots=True)
class Within:
    """An integer has these bounds; `code` is the error for an integer outside of them.

    Bounds that depend on no limit are a `Meta`, which replicas apply to one another's messages as well.
    """

    least: int
    most: Bound
    code: ErrorCode = ErrorCode.INVALID_REQUEST


@dataclass(frozen=True, slots=True)
class AtMost:
    """A text has at most so many characters, a byte string so many bytes, a list so many items."""

    most: Bound


@dataclass(frozen=True, slots=True)
class Checked:
    """`check` raises `RejectedRequest` unless the text is well-formed. Its JSON schema says the same to people."""

    check: Callable[[str], None]
    pattern: str = ""
    max_chars: int = 0

    @property
    def schema(self) -> dict[str, Any]:
        return {"pattern": f"^{self.pattern}$"} if self.pattern else {"maxLength": self.max_chars}


@dataclass(frozen=True, slots=True)
class Via:
    """The wire holds another type: `read` and `write` convert from it and to it. `read` may raise `RejectedRequest`."""

    wire: Any
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]


REQUIRED: Any = object()
"""The default of a field that has none."""


@dataclass(frozen=True, slots=True)
class OnWire:
    """The wire has another name for the field, or another default."""

    name: str = ""
    default: Any = ...


class Internal:
    """The field is not on the wire: a server sets it."""


INTERNAL = Internal()


def within(least: int, most: int) -> Meta:
    """The bounds of an integer."""
    return Meta(ge=least, le=most)


def doc(text: str) -> Meta:
    """What a field means, for the API's documentation."""
    return Meta(description=text)


def _read_integer_64(value: int | str) -> int:
    number = int(value)
    if type(value) is str and not value.isdigit():  # `$` of a pattern admits a line feed behind the digits.
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, "must be an integer, or a string of its digits")
    if type(value) is int and number > MAX_SAFE_INTEGER:
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, f"must be a string of digits above {MAX_SAFE_INTEGER}")
    if number > INT64_MAX:
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, f"must be at most {INT64_MAX}")
    return number


def _write_integer_64(number: int) -> int | str:
    return number if number <= MAX_SAFE_INTEGER else str(number)


def _check_topic_or_all(topic: str) -> None:
    """Protobuf has no difference between an empty name and none."""
    if topic:
        check_topic(topic)


Text = Annotated[str, AtMost(249)]
LongText = Annotated[str, AtMost(512)]
Reason = Annotated[str, AtMost("reason_max_chars")]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Number = Annotated[int, Meta(ge=0, le=MAX_SAFE_INTEGER)]
Partition = Annotated[int, Meta(ge=0, le=INT32_MAX)]
PartitionCount = Annotated[Partition, Within(1, "max_topic_partitions", ErrorCode.INVALID_PARTITIONS)]
GenerationId = Annotated[int, Meta(ge=-1, le=INT32_MAX)]
FencingToken = Annotated[int, Meta(ge=0, le=MAX_TOKEN)]
_DIGITS = Annotated[str, Meta(pattern="^(0|[1-9][0-9]{0,18})$")]
Progress = Annotated[Int64, Via(Annotated[int, Meta(ge=0)] | _DIGITS, _read_integer_64, _write_integer_64)]
"""An integer of 64 bits. Above 2^53 - 1 JSON has it as a string of digits, and below it may be one: readers that know
only doubles would change the number."""
KnownProgress = Annotated[Int64, Via(int | _DIGITS, _read_integer_64, _write_integer_64)]
"""`Progress` as answers have it: -1 says that nothing was committed."""
Wait = Number
"""How long a call may stay parked, in milliseconds. A longer time than the server allows is not refused: the call is
parked for as long as `parks_for_ms` says."""
MemberId = Annotated[str, Checked(check_member_id, max_chars=512)]
InstanceId = Annotated[str, Checked(check_instance_id, NAME_PATTERN)]
ClientId = Annotated[str, Checked(check_client_id, max_chars=255)]
Topic = Annotated[str, Checked(check_topic, NAME_PATTERN)]
TopicOrAll = Annotated[str, Checked(_check_topic_or_all, f"(?:{NAME_PATTERN})?")]
Metadata = Annotated[bytes, AtMost("metadata_max_bytes")]
Assignment = Annotated[bytes, AtMost("assignment_max_bytes")]
PageToken = Annotated[str, Via(Annotated[str, AtMost(400)], read_page_token, write_page_token)]
Pairs = Annotated[
    tuple[tuple[str, str], ...],
    Via(
        Annotated[dict[Text, Annotated[str, AtMost(4_096)]], AtMost(64)],
        lambda entries: tuple(sorted(entries.items())),
        dict,
    ),
]
"""Names and texts; an object in JSON, in the order of the names in memory."""
States = Annotated[
    tuple[str, ...],
    Via(
        Annotated[
            tuple[Annotated[str, AtMost(249), Meta(extra_json_schema={"pattern": STATES_PATTERN})], ...], AtMost(64)
        ],
        read_states,
        tuple,
    ),
]
Filter = Annotated[tuple[Text, ...], AtMost(64)]
PageSize = Annotated[int, Meta(ge=1, le=MAX_PAGE_SIZE), OnWire("page_size"), doc("Most entries to answer.")]
After = Annotated[PageToken, OnWire("page_token"), doc("`next_page_token` of the page before.")]
Revision = Annotated[Number, doc("The shard's last journal entry that this answer reflects.")]
Epoch = Annotated[Number, doc("The epoch of the shard's owner.")]
