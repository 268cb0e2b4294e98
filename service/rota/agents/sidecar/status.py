"""A sidecar's knowledge and its expiry: an answer is never older than the member's own deadline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from rota.protocol.fencing_token import generation_of

_UUID_LENGTH = 36


class State(StrEnum):
    """`leader` and `follower` in an election, `assigned` in a pool of workers, even without partitions.

    `unknown`: not in the group (yet, or any more), or the coordinator is unreachable for too long. `draining`: the
    share is released until the sidecar restarts.
    """

    LEADER = "leader"
    FOLLOWER = "follower"
    ASSIGNED = "assigned"
    UNKNOWN = "unknown"
    DRAINING = "draining"


KNOWING = frozenset({State.LEADER, State.FOLLOWER, State.ASSIGNED})


@dataclass(frozen=True, slots=True)
class Status:
    """The state of the member. `expires_in_ms` is 0 if the state is unknown, and no answer is given then."""

    group: str
    state: State
    name: str = ""
    """The leader's name, as in `GET /` of the old leader-elector; empty if unknown."""
    is_self: bool = False
    member_id: str = ""
    token: int = -1
    """The fencing token if a share is held, otherwise the generation."""
    assignment: tuple[tuple[str, tuple[int, ...]], ...] = ()
    expires_in_ms: int = 0
    trouble: str = ""
    """Why the coordinator does not serve this member now, or the topics that are not registered; otherwise empty."""
    config_offset: int = -1
    """The configuration position from which a share of connectors was assigned; -1 if workers report none."""

    def document(self) -> dict[str, Any]:
        """Return the status as JSON: the old elector's `name` first, then our fields."""
        holds = self.state in (State.LEADER, State.ASSIGNED)
        return {
            "name": self.name,
            "self": self.is_self,
            "state": self.state,
            "group": self.group,
            "member_id": self.member_id,
            "generation": generation_of(self.token),
            "fencing_token": self.token if holds else None,
            "assignment": [{"topic": topic, "partitions": list(numbers)} for topic, numbers in self.assignment],
            "expires_in_ms": self.expires_in_ms,
            "trouble": self.trouble,
            **({"config_offset": self.config_offset} if self.config_offset >= 0 else {}),
        }

    def unless_over(self, left_ms: int | None) -> Status:
        """Return the status with its expiry; after it has passed, the state is unknown."""
        if self.state not in KNOWING:
            return self
        if left_ms is None or left_ms <= 0:
            return Status(self.group, State.UNKNOWN)
        return replace(self, expires_in_ms=left_ms)


def name_of(member_id: str) -> str:
    """Return a member's own name: the coordinator's ids are that name, a hyphen and a UUID."""
    return member_id[: -_UUID_LENGTH - 1]


def by_topic(share: Sequence[tuple[str, int]]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return partitions by their topics, both sorted."""
    numbers: dict[str, list[int]] = {}
    for topic, partition in sorted(share):
        numbers.setdefault(topic, []).append(partition)
    return tuple((topic, tuple(found)) for topic, found in numbers.items())


def environment(status: Status, kind: str) -> Mapping[str, str]:
    """Return the environment of a hook's program."""
    document = status.document()
    return {
        "ROTA_CHANGE": kind,
        "ROTA_STATE": status.state,
        "ROTA_GROUP": status.group,
        "ROTA_LEADER": status.name,
        "ROTA_MEMBER_ID": status.member_id,
        "ROTA_GENERATION": str(generation_of(status.token)),
        "ROTA_FENCING_TOKEN": str(document["fencing_token"] or ""),
        "ROTA_PARTITIONS": " ".join(f"{topic}/{number}" for topic, found in status.assignment for number in found),
    }
