"""What a sidecar knows, and for how long: an answer is never older than the member's own deadline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from rota.protocol.fencing_token import generation_of

_UUID_LENGTH = 36


class State(StrEnum):
    """`leader` and `follower` in an election, `assigned` in a pool of workers, also to nothing.

    `unknown`: not in the group (yet, or any more), or the coordinator has not been reached for too long.
    `draining`: given up for good, until the sidecar is started again.
    """

    LEADER = "leader"
    FOLLOWER = "follower"
    ASSIGNED = "assigned"
    UNKNOWN = "unknown"
    DRAINING = "draining"


KNOWING = frozenset({State.LEADER, State.FOLLOWER, State.ASSIGNED})


@dataclass(frozen=True, slots=True)
class Status:
    """Where the member stands. `expires_in_ms` is 0 where nothing is known, and then nothing is answered either."""

    group: str
    state: State
    name: str = ""
    """The leader's name, as `GET /` of the old leader-elector gives it; empty where it is not known."""
    is_self: bool = False
    member_id: str = ""
    token: int = -1
    """The fencing token, where something is held; with that, or without, it says the generation."""
    assignment: tuple[tuple[str, tuple[int, ...]], ...] = ()
    expires_in_ms: int = 0
    trouble: str = ""
    """Why the coordinator does not serve this member now, or which topics are not registered; otherwise empty."""
    config_offset: int = -1
    """How far the configuration was read that led to a share of connectors; -1 where no worker says."""

    def document(self) -> dict[str, Any]:
        """As JSON: the old elector's `name` first, then ours."""
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
        """The same with its expiry; after it has passed, the state is unknown."""
        if self.state not in KNOWING:
            return self
        if left_ms is None or left_ms <= 0:
            return Status(self.group, State.UNKNOWN)
        return replace(self, expires_in_ms=left_ms)


def name_of(member_id: str) -> str:
    """What a member calls itself: the coordinator's ids are that name, a hyphen and a UUID."""
    return member_id[: -_UUID_LENGTH - 1]


def by_topic(share: Sequence[tuple[str, int]]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Partitions by their topics, both in order."""
    numbers: dict[str, list[int]] = {}
    for topic, partition in sorted(share):
        numbers.setdefault(topic, []).append(partition)
    return tuple((topic, tuple(found)) for topic, found in numbers.items())


def environment(status: Status, kind: str) -> Mapping[str, str]:
    """The same for a program: what a hook finds in its environment."""
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
