"""The `leader` protocol type: a single writer. The coordinator completes phase two itself, so one call elects.

The candidate of the highest priority leads. One that joins later preempts a leader at work in order (ADR 63): the
coordinator asks the leader to hand over, the leader ends its work and joins again, and the candidate leads then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from msgspec import Struct, structs

from rota.core.types.plugin import Generation, JoinedWith, ProtocolType, Readable, ServerSide, Succession
from rota.core.types.topics import TopicFacts
from rota.core.types.wire_format import MalformedMetadata, decode_object, read_object
from rota.protocol.defaults import PREEMPT_AFTER_MS
from rota.protocol.limits import MAX_PREEMPT_AFTER_MS

PROTOCOL_TYPE: Final = "leader"
PROTOCOL_NAMES: Final = ("single", "server:single")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate's metadata.

    Where members of different priority are candidates, the highest leads. A leader that is at work keeps the leadership
    until a candidate has outranked it for that candidate's `preempt_after_ms`; None: that candidate preempts no leader.
    """

    endpoint: str = ""
    priority: int = 0
    preempt_after_ms: int | None = PREEMPT_AFTER_MS
    holding: bool | None = None
    """Whether its work as the leader may be under way while it joins. None: it does not say, as candidates of earlier
    releases and members without a library; it is never asked to hand over, and leads for as long as it joins again."""


class Election(Struct, frozen=True):
    """The leader, its address, and the fencing token of the term."""

    leader_id: str
    token: int
    endpoint: str = ""
    successor_id: str = ""
    """The candidate that the leader is asked to hand over to: it ends its work and joins again. Empty as a rule."""


def encode_candidate(candidate: Candidate, own: Mapping[str, Any] | None = None) -> bytes:
    """`own` are fields that the user has chosen: they count where the candidate says nothing that differs."""
    said: dict[str, Any] = {"endpoint": candidate.endpoint, "priority": candidate.priority} if own is None else {**own}
    if candidate.priority:
        said["priority"] = candidate.priority
    if candidate.preempt_after_ms != PREEMPT_AFTER_MS:
        said["preempt_after_ms"] = candidate.preempt_after_ms
    if candidate.holding is not None:
        said["holding"] = candidate.holding
    return _encoded(**said)


def decode_candidate(metadata: bytes) -> Candidate:
    """Read a candidate's metadata. Unknown formats are ignored: they never keep a candidate from leading."""
    values = decode_object(metadata) if metadata[:1] == b"{" else {}
    endpoint, priority, holding = values.get("endpoint", ""), values.get("priority", 0), values.get("holding")
    return Candidate(
        endpoint if isinstance(endpoint, str) else "",
        priority if type(priority) is int else 0,
        _preempt_after_ms(values.get("preempt_after_ms", PREEMPT_AFTER_MS)),
        holding if isinstance(holding, bool) else None,
    )


def encode_election(election: Election) -> bytes:
    said: dict[str, Any] = {"leader_id": election.leader_id, "token": election.token, "endpoint": election.endpoint}
    return _encoded(**said, **({"successor_id": election.successor_id} if election.successor_id else {}))


def decode_election(assignment: bytes) -> Election:
    return read_object(assignment, Election)


def assign_election(generation: Generation, _topics: Mapping[str, TopicFacts]) -> dict[str, bytes]:
    """All members get the same: the leader, and its successor where it is to hand over."""
    leader = next(member for member in generation.members if member.member_id == generation.leader_id)
    endpoint = _read(leader.metadata).endpoint
    election = Election(generation.leader_id, generation.leader_token, endpoint, generation.successor_id)
    said = encode_election(election)
    return {member.member_id: said for member in generation.members}


# --- succession -----------------------------------------------------------------------------------


def elect(members: Sequence[JoinedWith], leader_id: str) -> str:
    """The member that leads the next generation, of those that joined.

    The leader stays while its work may be under way. Otherwise the candidate that it was asked to hand over to leads,
    if that has joined; else the highest priority, then the present leader, then the order of joining.
    """
    leader = next((member for member in members if member.member_id == leader_id), None)
    if leader is not None:
        if holding(leader.metadata) is not False:
            return leader_id
        successor_id = successor_of(leader.former)
        if any(member.member_id == successor_id for member in members):
            return successor_id
    return max(members, key=lambda member: (priority_of(member.metadata), member.member_id == leader_id)).member_id


def challengers(members: Sequence[JoinedWith], leader_id: str) -> dict[str, int]:
    """The candidates that are to preempt the leader, the highest priority first, each with the milliseconds for which
    it must have outranked the leader. None if the leader cannot hand over, or is asked to already.
    """
    leader = next(member for member in members if member.member_id == leader_id)
    if holding(leader.metadata) is None or successor_of(leader.former):
        return {}
    floor = priority_of(leader.metadata)
    above = [(member.member_id, _read(member.metadata)) for member in members if priority_of(member.metadata) > floor]
    above.sort(key=lambda each: -each[1].priority)
    return {name: said.preempt_after_ms for name, said in above if said.preempt_after_ms is not None}


def holding(metadata: bytes) -> bool | None:
    return _read(metadata).holding


def priority_of(metadata: bytes) -> int:
    return _read(metadata).priority


def successor_of(assignment: bytes) -> str:
    try:
        return decode_election(assignment).successor_id
    except MalformedMetadata:
        return ""


def _preempt_after_ms(said: object) -> int | None:
    if said is None:
        return None
    return min(said, MAX_PREEMPT_AFTER_MS) if type(said) is int and said >= 0 else PREEMPT_AFTER_MS


def _read(metadata: bytes) -> Candidate:
    """A candidate's metadata; bytes that are no JSON say nothing."""
    try:
        return decode_candidate(metadata)
    except MalformedMetadata:
        return Candidate()


def _read_candidate(metadata: bytes) -> Readable:
    return asdict(decode_candidate(metadata))


def _read_election(assignment: bytes) -> Readable:
    return structs.asdict(decode_election(assignment))


def _encoded(**values: Any) -> bytes:
    return json.dumps(values, separators=(",", ":"), sort_keys=True).encode()


LEADER: Final = ProtocolType(
    PROTOCOL_TYPE,
    _read_candidate,
    _read_election,
    server=ServerSide(
        PROTOCOL_NAMES.__contains__,
        assign_election,
        succession=Succession(elect, challengers, priority_of, successor_of, holding, followers_hold_nothing=True),
    ),
)
