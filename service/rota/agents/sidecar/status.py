"""A sidecar's knowledge, its expiry and its changes: an answer is never older than the member's own deadline."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from rota.client.events import Broadcast
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


_REMEMBERED = 256


@dataclass(frozen=True, slots=True)
class Change:
    """One change. `kind` is elected, generation, following, assigned, revoked, lost, unknown or draining.

    `at_ms` is since 1970. `number` counts from 1 since the start of this sidecar, which `boot` identifies.
    """

    boot: str
    number: int
    kind: str
    at_ms: int
    status: Status

    @property
    def event_id(self) -> str:
        return f"{self.boot}-{self.number}"

    def document(self) -> dict[str, Any]:
        return {"id": self.event_id, "change": self.kind, "at_ms": self.at_ms, **self.status.document()}


class Changes:
    """Publishes changes to all listeners. Changes are few, so listeners never wait."""

    def __init__(self, boot: str) -> None:
        self._boot = boot
        self._remembered: deque[Change] = deque(maxlen=_REMEMBERED)
        self._broadcast: Broadcast[Change] = Broadcast()
        self._number = 0

    @property
    def last(self) -> Change | None:
        return self._remembered[-1] if self._remembered else None

    def publish(self, kind: str, status: Status, at_ms: int) -> Change:
        """Publish a change."""
        self._number += 1
        change = Change(self._boot, self._number, kind, at_ms, status)
        self._remembered.append(change)
        self._broadcast.publish(change)
        return change

    def end(self) -> None:
        """End all listeners."""
        self._broadcast.end()

    async def listen(self, last_event_id: str = "") -> AsyncGenerator[Change, None]:
        """Yield the changes missed since that event, as far as they are kept, or else the last one; then
        all new ones.
        """
        async with aclosing(self._broadcast.listen(*self._missed(last_event_id))) as changes:
            async for change in changes:
                yield change

    def _missed(self, last_event_id: str) -> list[Change]:
        boot, _, number = last_event_id.rpartition("-")
        if boot == self._boot and number.isdigit():
            return [change for change in self._remembered if change.number > int(number)]
        return [] if self.last is None else [self.last]
