"""The `leader` protocol type: a single writer. The coordinator completes phase two itself, so one call elects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rota.types.json_object import decode_object
from rota.types.plugin import Generation, ProtocolType, Readable, ServerSide
from rota.types.topic_facts import TopicFacts
from rota.types.wire_format import MalformedMetadata

PROTOCOL_TYPE: Final = "leader"
PROTOCOL_NAMES: Final = ("single", "server:single")


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a candidate says of itself: where it is reached, and how much it would like to lead (for people)."""

    endpoint: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Election:
    """Who leads, where, and the fencing token of the term."""

    leader_id: str
    token: int
    endpoint: str = ""


def encode_candidate(candidate: Candidate) -> bytes:
    return _encoded(endpoint=candidate.endpoint, priority=candidate.priority)


def decode_candidate(metadata: bytes) -> Candidate:
    """Metadata is the candidate's own affair: what is not ours says nothing. It never keeps anybody from leading."""
    values = decode_object(metadata) if metadata[:1] == b"{" else {}
    endpoint, priority = values.get("endpoint", ""), values.get("priority", 0)
    return Candidate(endpoint if isinstance(endpoint, str) else "", priority if isinstance(priority, int) else 0)


def encode_election(election: Election) -> bytes:
    return _encoded(leader_id=election.leader_id, token=election.token, endpoint=election.endpoint)


def decode_election(assignment: bytes) -> Election:
    values = decode_object(assignment)
    try:
        return Election(str(values["leader_id"]), int(values["token"]), str(values.get("endpoint", "")))
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedMetadata(f"no election: {error!r}") from error


def elect(generation: Generation, _topics: Mapping[str, TopicFacts]) -> dict[str, bytes]:
    """The group's leader leads: it was there first, or led before. Everybody is told."""
    leader = next(member for member in generation.members if member.member_id == generation.leader_id)
    endpoint = _endpoint_of(leader.metadata)
    told = encode_election(Election(generation.leader_id, generation.leader_token, endpoint))
    return {member.member_id: told for member in generation.members}


def _endpoint_of(metadata: bytes) -> str:
    try:
        return decode_candidate(metadata).endpoint
    except MalformedMetadata:
        return ""


def _read_candidate(metadata: bytes) -> Readable:
    candidate = decode_candidate(metadata)
    return {"endpoint": candidate.endpoint, "priority": candidate.priority}


def _read_election(assignment: bytes) -> Readable:
    election = decode_election(assignment)
    return {"leader_id": election.leader_id, "token": election.token, "endpoint": election.endpoint}


def _encoded(**values: Any) -> bytes:
    return json.dumps(values, separators=(",", ":"), sort_keys=True).encode()


LEADER: Final = ProtocolType(
    PROTOCOL_TYPE, _read_candidate, _read_election, server=ServerSide(PROTOCOL_NAMES.__contains__, elect)
)
