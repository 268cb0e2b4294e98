"""A protocol type for the coordinator: its name, and the functions that read its bytes and assign on the server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from typing import Any, TypeAlias, TypeVar, cast

from rota.core.types.topics import TopicFacts
from rota.core.types.wire_format import MalformedMetadata
from rota.protocol.fencing_token import NO_TOKEN

Readable: TypeAlias = Mapping[str, Any]
"""JSON values, for people."""


@dataclass(frozen=True, slots=True)
class JoinedWith:
    """A member of the generation to assign; `former` is its previous assignment, empty without one."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes
    former: bytes = b""
    fencing_token: int = NO_TOKEN
    """The member's fencing token in this generation."""


@dataclass(frozen=True, slots=True)
class Departed:
    """A member of the last assignment that is gone: it left, expired or was removed at `at_ms`.

    The owner of the group's shard remembers it until the next assignment; a new owner does not know of it.
    """

    member_id: str
    group_instance_id: str | None
    metadata: bytes
    former: bytes
    at_ms: int


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation that is to be assigned. Members are in the order of joining.

    `now_ms` is when the assignment was asked for, by the clock of the shard's owner, as are the times of `departed`.
    """

    generation_id: int
    leader_id: str
    protocol_name: str
    members: Sequence[JoinedWith]
    leader_token: int = NO_TOKEN
    """The fencing token of the leader."""
    successor_id: str = ""
    """The member that the leader is asked to hand over to; empty as a rule. See `Succession`."""
    departed: Sequence[Departed] = ()
    now_ms: int = 0
    is_stable: bool = False
    """The group is Stable: members hold their former shares, whatever their metadata say."""


def _any_share_changes(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> bool:
    """Bytes that only their type can read: a change may take something away."""
    return any(share and after.get(member_id, b"") != share for member_id, share in before.items())


@dataclass(frozen=True, slots=True)
class Succession:
    """How a type chooses the leaders of its groups (ADR 63). All of it pure, quick, and by metadata alone.

    `elect(members, leader_id)`: which of the members that have joined leads the next generation. They are in the order
    of joining; `leader_id` is the present leader, empty if it has gone or is to step down.
    `challengers(members, leader_id)`: the members that are to preempt the leader of a Stable group, the best one first,
    each with the milliseconds for which it must have outranked the leader. A leader that was asked is not asked again.
    `priority(metadata)`: a member outranks those of a lower one. The time counts from the last change of either's.
    `successor(assignment)`: the member that the leader was asked to hand over to, from its assignment; empty if none.
    `holding(metadata)`: whether the work of a leader with this metadata may go on while it joins; None if it does
    not say, and cannot be asked to hand over.
    `followers_hold_nothing`: members that do not lead have no work of the group. Then the next leader is elected as
    soon as the present one is gone, in the same transaction, and the others need not join first; not where `assign`
    needs topics.
    """

    elect: Callable[[Sequence[JoinedWith], str], str]
    challengers: Callable[[Sequence[JoinedWith], str], Mapping[str, int]]
    priority: Callable[[bytes], int]
    successor: Callable[[bytes], str]
    holding: Callable[[bytes], bool | None]
    followers_hold_nothing: bool = False


@dataclass(frozen=True, slots=True)
class ServerSide:
    """How the coordinator does phase two itself. All of it pure. A function that raises fails its own group alone.

    `assigns` says for which protocol names; a join with a name that begins with `server:` and is none of them is
    rejected. `check` raises `MalformedMetadata` for metadata that `assign` could not read.
    `wants_topic` returns which topics `assign` needs; None if it needs none, and is quick.
    `takes_away` says, of the shares by member id before and after a change of topics, whether a member would lose
    something. Then the group rebalances, for another member may be given that now or in the next change; otherwise the
    members fetch the new shares as they are (a resync). By default a share that becomes another one loses something.
    `of_members`: a share says which member it is for, or has its token. Then the group is assigned anew if a static
    member comes back under another member id, and rebalances where its metadata differs from before.
    `describe` says for the journal, in a few words, what changes between two shares; `describe_topics` does so
    where topics have changed, also for what a leader assigns.
    `topics_debounce_ms`: for how long changes of topics collect, from the first one on, before the group is assigned
    anew. The first assignment of a generation waits for none of it.
    `succession` chooses the leader; by default it is the one before, or the member that joined first.
    `promote`: the shares after members have gone, if those that are left have to give up nothing; else None. They are
    in effect at once, without a join phase, and the group is assigned anew after that.
    `again_at_ms`: when the group is to be assigned anew although nothing else happens, by these shares; None: never.
    """

    assigns: Callable[[str], bool]
    assign: Callable[[Generation, Mapping[str, TopicFacts]], Mapping[str, bytes]]
    check: Callable[[bytes], object] = bytes
    wants_topic: Callable[[Generation], Callable[[str], bool]] | None = None
    takes_away: Callable[[Mapping[str, bytes], Mapping[str, bytes]], bool] = _any_share_changes
    of_members: bool = False
    describe: Callable[[Mapping[str, bytes], Mapping[str, bytes]], str] | None = None
    describe_topics: Callable[[Mapping[str, bytes], Mapping[str, bytes]], str] | None = None
    topics_debounce_ms: Callable[[Generation], int] | None = None
    succession: Succession | None = None
    again_at_ms: Callable[[Mapping[str, bytes]], int | None] | None = None
    promote: Callable[[Generation], Mapping[str, bytes] | None] | None = None

    def checked_assign(self, generation: Generation, topics: Mapping[str, TopicFacts]) -> dict[str, bytes]:
        """Call `assign`, and raise `TypeError` where it returns anything but bytes by member id."""
        assignments = dict(self.assign(generation, topics))
        for member_id, share in cast("dict[object, object]", assignments).items():
            if not isinstance(member_id, str) or not isinstance(share, bytes):
                raise TypeError(f"the assignment of {member_id!r} is {type(share).__name__}, bytes are expected")
        return assignments


@dataclass(frozen=True, slots=True)
class Units:
    """The units of work in an assignment, by names such as `docs/3`: those that fell their holders can be left out.

    `of(assignment)`: their names. `without(assignment, names)`: the same assignment, less these units. Both raise
    `MalformedMetadata` for bytes that they cannot read.
    """

    of: Callable[[bytes], Iterable[str]]
    without: Callable[[bytes, frozenset[str]], bytes]


@dataclass(frozen=True, slots=True)
class ProtocolType:
    """A protocol type. Registered ones come from the entry point group `rota.protocol_types`, ours are built in.

    The `read_` functions raise `MalformedMetadata`; `topics_of` returns the topics that a member subscribes to, by its
    metadata, or None if that cannot be said, as with patterns. A type with patterns has `subscribes`, too: whether
    a member with this metadata subscribes to the topic of this name. It is asked of all members, so it is quick.
    `units`: None if shares do not consist of units of work.
    """

    name: str
    read_metadata: Callable[[bytes], Readable]
    read_assignment: Callable[[bytes], Readable]
    topics_of: Callable[[bytes], Iterable[str] | None] | None = None
    server: ServerSide | None = None
    subscribes: Callable[[bytes, str], bool] | None = None
    units: Units | None = None


# --- exceptions of plug-ins -----------------------------------------------------------------------

# Reports exceptions of plug-ins' functions: the core catches them and goes on without an answer.


Report: TypeAlias = Callable[[str, Exception], None]
"""Gets the name of a function, such as `gamble.takes_away`, and its exception."""
Part = TypeVar("Part", bound=ProtocolType | ServerSide | Succession | Units)


def reporting(protocol_type: ProtocolType, report: Report) -> ProtocolType:
    """The same type; each of its functions reports its exceptions, and raises them.

    Not `MalformedMetadata`, by which a function says that a client's bytes are wrong.
    """
    return _reporting(protocol_type, protocol_type.name, report)


def _reporting(part: Part, name: str, report: Report) -> Part:
    changes: dict[str, Any] = {}
    for each in fields(part):
        value = getattr(part, each.name)
        if isinstance(value, (ServerSide, Succession, Units)):
            changes[each.name] = _reporting(value, name, report)
        elif callable(value):
            changes[each.name] = _reported(value, f"{name}.{each.name}", report)
    return replace(part, **changes)


def _reported(function: Callable[..., Any], name: str, report: Report) -> Callable[..., Any]:
    @wraps(function)
    def called(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except MalformedMetadata:
            raise
        except Exception as error:
            report(name, error)
            raise

    return called
